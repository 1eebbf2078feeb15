"""Functions of TensorFlow that models, losses and metrics call, and the same in `keras.ops`.

A key is the function's canonical name without `tf.`. A value is Python: functions without a module are those of
`keras.ops`, all other names are TensorFlow's parameters, in TensorFlow's order unless the order stands before `->`
(`-` is one that has no counterpart). A keyword argument is left out where the parameter is not given; `axis or 0` is
0 there. `name=` is always left out. `=f` is the function `f` with the same arguments. Behind `|`, forms for calls in
which parameters have certain values, `INT` any whole number, `ANY` no list. `F` is the last part of the key, without
`reduce_`. "" is what only the drop-in has.
"""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_functions, read_rows

_MODERN = read_functions("""
cast: cast(x, dtype)
clip_by_value: clip(t, clip_value_min, clip_value_max)
concat: concatenate(values, axis=axis)
constant: convert_to_tensor(value, dtype=dtype)
convert_to_tensor: convert_to_tensor(value, dtype=dtype)
expand_dims: expand_dims(input, axis)
eye: num_rows num_columns - dtype -> eye(num_rows, M=num_columns, dtype=dtype)
fill: full(dims, value)
gather: params indices - axis -> take(params, indices, axis=axis or 0)
identity: convert_to_tensor(input)
linspace: linspace(start, stop, num=num or 50)
one_hot: indices depth - - axis dtype -> one_hot(indices, depth, axis=axis, dtype=dtype)
ones, zeros: F(shape, dtype=dtype)
ones_like, zeros_like: F(input, dtype=dtype)
pad: pad(tensor, paddings)
range: arange(start, stop=limit, step=delta, dtype=dtype)
rank: ndim(input)
repeat: | repeats=ANY: repeat(input, repeats, axis=axis)
reshape: reshape(tensor, shape)
reverse: flip(tensor, axis=axis)
roll: roll(input, shift, axis=axis)
shape, size, stop_gradient, linalg.det, linalg.inv, linalg.cholesky, math.angle, math.imag, math.real: F(input)
sort: values axis direction -> sort(values, axis=axis) | direction="DESCENDING": flip(sort(values, axis=axis or -1),
  axis=axis or -1)
argsort: values axis direction stable -> argsort(values, axis=axis) | direction="DESCENDING": argsort(-values,
  axis=axis)
split: | num_or_size_splits=INT: split(value, num_or_size_splits, axis=axis or 0)
squeeze, math.count_nonzero: F(input, axis=axis)
stack: stack(values, axis=axis)
unstack: unstack(value, num=num, axis=axis)
tensordot: tensordot(a, b, axes=axes)
tile: tile(input, multiples)
transpose: transpose(a, axes=perm)
where: where(condition, x, y)
broadcast_to: broadcast_to(input, shape)
einsum: =einsum
meshgrid: =meshgrid
norm: tensor - axis keepdims -> norm(tensor) | axis=ANY: norm(tensor, axis=axis, keepdims=keepdims)
image.resize: images size -> keras.ops.image.resize(cast(images, "float32"), size)
image.flip_left_right: flip(image, axis=-2)
linalg.band_part: | num_lower=-1 num_upper=0: tril(input) | num_lower=0 num_upper=-1: triu(input)
linalg.trace: trace(x, axis1=-2, axis2=-1)
linalg.matmul: a b transpose_a transpose_b -> matmul(a, b) | transpose_b=True: matmul(a, swapaxes(b, -1, -2)) |
  transpose_a=True: matmul(swapaxes(a, -1, -2), b)
math.abs, math.ceil, math.cos, math.cosh, math.erf, math.exp, math.expm1, math.floor, math.log, math.log1p,
  math.log_sigmoid, math.logical_not, math.negative, math.reciprocal, math.round, math.rsqrt, math.sigmoid, math.sign,
  math.sin, math.sinh, math.sqrt, math.square, math.tan, math.tanh, math.conj, math.erfinv: F(x)
math.acos: arccos(x)
math.add, math.divide_no_nan, math.equal, math.greater, math.greater_equal, math.less, math.less_equal,
  math.logical_and, math.logical_or, math.logical_xor, math.maximum, math.minimum, math.multiply, math.not_equal,
  math.subtract: F(x, y)
math.argmax, math.argmin: F(input, axis=axis or 0)
math.asin: arcsin(x)
math.atan: arctan(x)
math.atan2: arctan2(y, x)
math.cumprod, math.cumsum: F(x, axis=axis or 0)
math.divide: true_divide(x, y)
math.floordiv: floor_divide(x, y)
math.floormod: mod(x, y)
math.is_finite: isfinite(x)
math.is_inf: isinf(x)
math.is_nan: isnan(x)
math.l2_normalize: normalize(x, axis)
math.pow: power(x, y)
math.reduce_all, math.reduce_any, math.reduce_logsumexp, math.reduce_max, math.reduce_mean, math.reduce_min,
  math.reduce_prod, math.reduce_std, math.reduce_sum: F(input_tensor, axis=axis, keepdims=keepdims)
math.reduce_variance: var(input_tensor, axis=axis, keepdims=keepdims)
math.softplus, nn.elu, nn.relu, nn.relu6, nn.selu, nn.silu, nn.softsign: F(features)
math.squared_difference: square(x - y)
nn.embedding_lookup: take(params, ids, axis=0)
nn.gelu: gelu(features, approximate=approximate or False)
nn.leaky_relu: leaky_relu(features, negative_slope=alpha or 0.2)
nn.log_softmax, nn.softmax: F(logits, axis=axis)
nn.moments: x axes - keepdims -> moments(x, axes, keepdims=keepdims)
nn.sigmoid_cross_entropy_with_logits: binary_crossentropy(labels, logits, from_logits=True)
nn.softmax_cross_entropy_with_logits: categorical_crossentropy(labels, logits, from_logits=True, axis=axis or -1)
nn.sparse_softmax_cross_entropy_with_logits: sparse_categorical_crossentropy(labels, logits, from_logits=True)
cond: cond(pred, true_fn, false_fn)
map_fn: map(fn, elems)
image.flip_up_down: flip(image, axis=-3)
linalg.cross: cross(a, b)
linalg.matrix_transpose: swapaxes(a, -1, -2)
linalg.solve: matrix rhs -> solve(matrix, rhs)
math.acosh: arccosh(x)
math.asinh: arcsinh(x)
math.atanh: arctanh(x)
math.reciprocal_no_nan: divide_no_nan(1.0, x)
math.rint: round(x)
math.scalar_mul: multiply(scalar, x)
math.truediv: true_divide(x, y)
nn.l2_loss: sum(square(t)) / 2
""")

# The others of the drop-in, by module: no one line says the same.
_ON_DROPIN = read_rows("""
tf: boolean_mask case clip_by_norm custom_gradient dynamic_partition ensure_shape foldl foldr gather_nd
  numpy_function print py_function reverse_sequence scan scatter_nd searchsorted sequence_mask slice switch_case
  tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min tensor_scatter_nd_sub tensor_scatter_nd_update
  unique unique_with_counts vectorized_map while_loop
debugging: Assert assert_all_finite assert_equal assert_greater assert_greater_equal assert_less assert_less_equal
  assert_non_negative assert_positive assert_rank assert_rank_at_least check_numerics
dtypes: complex
image: adjust_brightness adjust_contrast adjust_gamma adjust_hue adjust_saturation central_crop
  combined_non_max_suppression convert_image_dtype crop_and_resize crop_to_bounding_box extract_patches
  grayscale_to_rgb hsv_to_rgb image_gradients non_max_suppression pad_to_bounding_box per_image_standardization psnr
  random_brightness random_contrast random_crop random_flip_left_right random_flip_up_down random_hue
  random_saturation resize_with_crop_or_pad resize_with_pad rgb_to_grayscale rgb_to_hsv rot90 ssim
  stateless_random_brightness stateless_random_contrast stateless_random_crop stateless_random_flip_left_right
  stateless_random_flip_up_down stateless_random_hue stateless_random_saturation total_variation transpose
linalg: adjoint diag diag_part eigh global_norm logdet matvec normalize pinv qr set_diag svd triangular_solve
math: add_n confusion_matrix digamma erfc in_top_k lgamma multiply_no_nan reduce_euclidean_norm top_k
  unsorted_segment_max unsorted_segment_mean unsorted_segment_sum xdivy xlog1py xlogy
nn: avg_pool avg_pool1d avg_pool2d avg_pool3d batch_normalization bias_add compute_average_loss conv1d
  conv1d_transpose conv2d conv2d_transpose conv3d conv3d_transpose convolution ctc_loss depth_to_space
  depthwise_conv2d dropout local_response_normalization max_pool max_pool1d max_pool2d max_pool3d separable_conv2d
  space_to_depth weighted_cross_entropy_with_logits
random: categorical gamma normal shuffle stateless_categorical stateless_gamma stateless_normal
  stateless_truncated_normal stateless_uniform truncated_normal uniform
signal: fft fft2d frame ifft ifft2d irfft rfft stft
""")

TENSORFLOW: dict[str, str] = {
    **_MODERN,
    **{f"{part}.{name}".removeprefix("tf."): "" for part, names in _ON_DROPIN.items() for name in names.split()},
}


def canonical_name(name: str) -> str | None:
    """Return the key of `TENSORFLOW` for one of TensorFlow's names of a function, such as `reduce_sum`."""
    last = _RENAMED.get(name.rpartition(".")[2], name.rpartition(".")[2])
    if name in TENSORFLOW:
        return name
    if name.rpartition(".")[0] not in ("", *_PARTS):
        return None
    return next((key for key in (last, *(f"{part}.{last}" for part in _PARTS)) if key in TENSORFLOW), None)


_PARTS = ("math", "linalg", "nn", "debugging", "dtypes")
# Aliases whose last part is another one.
_RENAMED = {
    "swish": "silu",
    "mod": "floormod",
    "arg_max": "argmax",
    "arg_min": "argmin",
    "lrn": "local_response_normalization",
}
