"""Functions of TensorFlow that models, losses and metrics call, and the same in `keras.ops`.

A key is the function's canonical name without `tf.`. A value is Python: functions without a module are those of
`keras.ops`, all other names are TensorFlow's parameters, in TensorFlow's order unless the order stands before `->`
(`-` is one that has no counterpart). A keyword argument is left out where the parameter is not given; `axis or 0` is
0 there. `name=` is always left out. `=f` is the function `f` with the same arguments. Behind `|`, forms for calls in
which parameters have certain values, `INT` any whole number. Nothing: the drop-in has this function, but no one line
says the same.
"""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows

TENSORFLOW: dict[str, str] = read_rows("""
cast: cast(x, dtype)
clip_by_value: clip(t, clip_value_min, clip_value_max)
concat: concatenate(values, axis=axis)
constant: convert_to_tensor(value, dtype=dtype)
convert_to_tensor: convert_to_tensor(value, dtype=dtype)
expand_dims: expand_dims(input, axis)
eye: num_rows num_columns - dtype -> eye(num_rows, num_columns, dtype=dtype)
fill: full(dims, value)
gather: params indices - axis -> take(params, indices, axis=axis or 0)
identity: convert_to_tensor(input)
linspace: linspace(start, stop, num)
one_hot: indices depth - - axis dtype -> one_hot(indices, depth, axis=axis, dtype=dtype)
ones: ones(shape, dtype=dtype)
ones_like: ones_like(input, dtype=dtype)
zeros: zeros(shape, dtype=dtype)
zeros_like: zeros_like(input, dtype=dtype)
pad: pad(tensor, paddings)
range: arange(start, stop=limit, step=delta, dtype=dtype)
rank: ndim(input)
repeat: repeat(input, repeats, axis=axis)
reshape: reshape(tensor, shape)
reverse: flip(tensor, axis=axis)
roll: roll(input, shift, axis=axis)
shape: shape(input)
size: size(input)
sort: values axis direction -> sort(values, axis=axis) | direction="DESCENDING":
  flip(sort(values, axis=axis or -1), axis=axis or -1)
argsort: values axis direction stable -> argsort(values, axis=axis) | direction="DESCENDING":
  argsort(-values, axis=axis)
split: | num_or_size_splits=INT: split(value, num_or_size_splits, axis=axis or 0)
squeeze: squeeze(input, axis=axis)
stack: stack(values, axis=axis)
unstack: unstack(value, num=num, axis=axis)
stop_gradient: stop_gradient(input)
tensordot: tensordot(a, b, axes=axes)
tile: tile(input, multiples)
transpose: transpose(a, axes=perm)
where: where(condition, x, y)
broadcast_to: broadcast_to(input, shape)
einsum: =einsum
meshgrid: =meshgrid
norm: tensor - axis keepdims -> norm(tensor, axis=axis, keepdims=keepdims)
boolean_mask, gather_nd, scatter_nd, searchsorted, sequence_mask, slice, tensor_scatter_nd_update:
image.resize: keras.ops.image.resize(images, size)
image.flip_left_right: flip(image, axis=-2)
image.rgb_to_grayscale: keras.ops.image.rgb_to_grayscale(images)
linalg.band_part: | num_lower=-1 num_upper=0: tril(input) | num_lower=0 num_upper=-1: triu(input)
linalg.det: det(input)
linalg.inv: inv(input)
linalg.trace: trace(x, axis1=-2, axis2=-1)
linalg.matmul: a b transpose_a transpose_b -> matmul(a, b) | transpose_b=True: matmul(a, swapaxes(b, -1, -2))
  | transpose_a=True: matmul(swapaxes(a, -1, -2), b)
linalg.diag, linalg.diag_part, linalg.matvec, linalg.set_diag:
math.abs: abs(x)
math.accumulate_n:
math.acos: arccos(x)
math.add: add(x, y)
math.argmax: argmax(input, axis=axis or 0)
math.argmin: argmin(input, axis=axis or 0)
math.asin: arcsin(x)
math.atan: arctan(x)
math.atan2: arctan2(y, x)
math.ceil: ceil(x)
math.cos: cos(x)
math.cosh: cosh(x)
math.count_nonzero: count_nonzero(input, axis=axis)
math.cumprod: cumprod(x, axis=axis or 0)
math.cumsum: cumsum(x, axis=axis or 0)
math.divide: true_divide(x, y)
math.divide_no_nan: divide_no_nan(x, y)
math.equal: equal(x, y)
math.erf: erf(x)
math.exp: exp(x)
math.expm1: expm1(x)
math.floor: floor(x)
math.floordiv: floor_divide(x, y)
math.floormod: mod(x, y)
math.greater: greater(x, y)
math.greater_equal: greater_equal(x, y)
math.is_finite: isfinite(x)
math.is_inf: isinf(x)
math.is_nan: isnan(x)
math.l2_normalize: normalize(x, axis)
math.less: less(x, y)
math.less_equal: less_equal(x, y)
math.log: log(x)
math.log1p: log1p(x)
math.log_sigmoid: log_sigmoid(x)
math.logical_and: logical_and(x, y)
math.logical_not: logical_not(x)
math.logical_or: logical_or(x, y)
math.logical_xor: logical_xor(x, y)
math.maximum: maximum(x, y)
math.minimum: minimum(x, y)
math.multiply: multiply(x, y)
math.multiply_no_nan:
math.negative: negative(x)
math.not_equal: not_equal(x, y)
math.pow: power(x, y)
math.reciprocal: reciprocal(x)
math.reduce_all: all(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_any: any(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_logsumexp: logsumexp(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_max: max(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_mean: mean(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_min: min(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_prod: prod(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_std: std(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_sum: sum(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_variance: var(input_tensor, axis=axis, keepdims=keepdims)
math.round: round(x)
math.rsqrt: rsqrt(x)
math.sigmoid: sigmoid(x)
math.sign: sign(x)
math.sin: sin(x)
math.sinh: sinh(x)
math.softplus: softplus(features)
math.sqrt: sqrt(x)
math.square: square(x)
math.squared_difference: square(x - y)
math.subtract: subtract(x, y)
math.tan: tan(x)
math.tanh: tanh(x)
math.top_k, math.unsorted_segment_sum, math.xlogy:
nn.elu: elu(features)
nn.embedding_lookup: take(params, ids, axis=0)
nn.gelu: gelu(features, approximate=approximate or False)
nn.leaky_relu: leaky_relu(features, negative_slope=alpha or 0.2)
nn.log_softmax: log_softmax(logits, axis=axis)
nn.moments: x axes - keepdims -> moments(x, axes, keepdims=keepdims)
nn.relu: relu(features)
nn.relu6: relu6(features)
nn.selu: selu(features)
nn.sigmoid_cross_entropy_with_logits: binary_crossentropy(labels, logits, from_logits=True)
nn.silu: silu(features)
nn.softmax: softmax(logits, axis=axis)
nn.softmax_cross_entropy_with_logits: categorical_crossentropy(labels, logits, from_logits=True, axis=axis or -1)
nn.softsign: softsign(features)
nn.sparse_softmax_cross_entropy_with_logits: sparse_categorical_crossentropy(labels, logits, from_logits=True)
""")


def canonical_name(name: str) -> str | None:
    """Return the key of `TENSORFLOW` for one of TensorFlow's names of a function, such as `reduce_sum`."""
    last = _RENAMED.get(name.rpartition(".")[2], name.rpartition(".")[2])
    if name in TENSORFLOW:
        return name
    if name.rpartition(".")[0] not in ("", "math", "nn", "linalg"):
        return None
    return next((key for key in (last, *(f"{part}.{last}" for part in _PARTS)) if key in TENSORFLOW), None)


_PARTS = ("math", "linalg", "nn")
# Aliases whose last part is another one.
_RENAMED = {"swish": "silu", "mod": "floormod", "truediv": "divide", "arg_max": "argmax", "arg_min": "argmin"}
