"""Functions of the old `keras.backend`, and the same in Keras 3; written as in `tensorflow.py`.

All others are on the drop-in only.
"""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows

BACKEND: dict[str, str] = read_rows("""
abs: abs(x)
all: all(x, axis=axis, keepdims=keepdims)
any: any(x, axis=axis, keepdims=keepdims)
arange: arange(start, stop=stop, step=step, dtype=dtype or "int32")
argmax: argmax(x, axis=axis or -1)
argmin: argmin(x, axis=axis or -1)
binary_crossentropy: target output from_logits -> binary_crossentropy(target, output, from_logits=from_logits)
categorical_crossentropy: target output from_logits axis ->
  categorical_crossentropy(target, output, from_logits=from_logits, axis=axis)
sparse_categorical_crossentropy: target output from_logits axis ->
  sparse_categorical_crossentropy(target, output, from_logits=from_logits, axis=axis)
cast: cast(x, dtype)
cast_to_floatx: cast(x, keras.config.floatx())
clip: clip(x, min_value, max_value)
concatenate: concatenate(tensors, axis=axis or -1)
constant: convert_to_tensor(value, dtype=dtype or keras.config.floatx())
cos: cos(x)
cumsum: cumsum(x, axis=axis or 0)
cumprod: cumprod(x, axis=axis or 0)
dot: dot(x, y)
elu: elu(x, alpha=alpha)
equal: equal(x, y)
exp: exp(x)
expand_dims: expand_dims(x, axis or -1)
eye: eye(size, dtype=dtype)
flatten: reshape(x, (-1,))
gather: take(reference, indices, axis=0)
greater: greater(x, y)
greater_equal: greater_equal(x, y)
hard_sigmoid: clip(0.2 * x + 0.5, 0.0, 1.0)
int_shape: tuple(x.shape)
l2_normalize: normalize(x, axis)
less: less(x, y)
less_equal: less_equal(x, y)
log: log(x)
max: max(x, axis=axis, keepdims=keepdims)
maximum: maximum(x, y)
mean: mean(x, axis=axis, keepdims=keepdims)
min: min(x, axis=axis, keepdims=keepdims)
minimum: minimum(x, y)
ndim: len(x.shape)
not_equal: not_equal(x, y)
one_hot: one_hot(indices, num_classes)
ones: ones(shape, dtype=dtype)
ones_like: ones_like(x, dtype=dtype)
permute_dimensions: transpose(x, axes=pattern)
pow: power(x, a)
prod: prod(x, axis=axis, keepdims=keepdims)
relu: relu(x)
repeat_elements: repeat(x, rep, axis=axis)
reshape: reshape(x, shape)
reverse: flip(x, axis=axes)
round: round(x)
shape: shape(x)
sigmoid: sigmoid(x)
sign: sign(x)
sin: sin(x)
softmax: softmax(x, axis=axis)
softplus: softplus(x)
softsign: softsign(x)
sqrt: sqrt(maximum(x, 0.0))
square: square(x)
squeeze: squeeze(x, axis=axis)
stack: stack(x, axis=axis)
std: std(x, axis=axis, keepdims=keepdims)
stop_gradient: stop_gradient(variables)
sum: sum(x, axis=axis, keepdims=keepdims)
tanh: tanh(x)
tile: tile(x, n)
transpose: transpose(x)
var: var(x, axis=axis, keepdims=keepdims)
zeros: zeros(shape, dtype=dtype)
zeros_like: zeros_like(x, dtype=dtype)
""")

# What has the same meaning wherever it is called, in a model or not.
ANYWHERE: dict[str, str] = read_rows("""
clear_session: keras.utils.clear_session
epsilon: keras.config.epsilon
floatx: keras.config.floatx
image_data_format: keras.config.image_data_format
set_epsilon: keras.config.set_epsilon
set_floatx: keras.config.set_floatx
set_image_data_format: keras.config.set_image_data_format
""")
