"""Functions of the old `keras.backend`, and the same in Keras 3; written as in `tensorflow.py`.

All others are on the drop-in only.
"""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_functions, read_rows

BACKEND: dict[str, str] = read_functions("""
abs, cos, exp, log, relu, round, shape, sigmoid, sign, sin, softplus, softsign, square, tanh, transpose: F(x)
all, any, max, mean, min, prod, std, sum, var: F(x, axis=axis, keepdims=keepdims)
arange: arange(start, stop=stop, step=step, dtype=dtype or "int32")
argmax, argmin: F(x, axis=axis or -1)
binary_crossentropy: target output from_logits -> binary_crossentropy(target, output, from_logits=from_logits)
categorical_crossentropy, sparse_categorical_crossentropy: target output from_logits axis -> F(target, output,
  from_logits=from_logits, axis=axis)
cast: cast(x, dtype)
cast_to_floatx: cast(x, keras.config.floatx())
clip: clip(x, min_value, max_value)
concatenate: concatenate(tensors, axis=axis or -1)
constant: convert_to_tensor(value, dtype=dtype or keras.config.floatx())
cumsum, cumprod: F(x, axis=axis or 0)
dot, equal, greater, greater_equal, less, less_equal, maximum, minimum, not_equal: F(x, y)
elu: elu(x, alpha=alpha)
expand_dims: expand_dims(x, axis or -1)
eye: eye(size, dtype=dtype)
flatten: reshape(x, (-1,))
gather: take(reference, indices, axis=0)
hard_sigmoid: clip(0.2 * x + 0.5, 0.0, 1.0)
int_shape: tuple(x.shape)
l2_normalize: normalize(x, axis)
ndim: len(x.shape)
one_hot: one_hot(indices, num_classes)
ones, zeros: F(shape, dtype=dtype)
ones_like, zeros_like: F(x, dtype=dtype)
permute_dimensions: transpose(x, axes=pattern)
pow: power(x, a)
repeat_elements: repeat(x, rep, axis=axis)
reshape: reshape(x, shape)
reverse: flip(x, axis=axes)
softmax, squeeze, stack: F(x, axis=axis)
sqrt: sqrt(maximum(x, 0.0))
stop_gradient: stop_gradient(variables)
tile: tile(x, n)
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
