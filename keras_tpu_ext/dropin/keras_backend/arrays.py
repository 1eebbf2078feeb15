"""Functions of `keras.backend` on JAX arrays, with the arguments and numbers of Keras 2.

Only those are here that Keras 3 has in a form which needs more than TensorFlow's functions: all others are made of
`tf.*` alone, and the dispatcher takes these to JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from jax import numpy as jnp
from keras import ops

from keras_tpu_ext.dropin.errors import out_of_reach

Array = Any
_FLOATX = keras.config.floatx


def cast_to_floatx(x: Array) -> Array:
    """Cast to the default float type."""
    return ops.cast(x, _FLOATX())


def _reduce(function: Callable[..., Array], x: Array, axis: Any, keepdims: bool) -> Array:
    """Reduce as TensorFlow does, in the type of `x`; truths are counted as numbers."""
    return function(ops.cast(x, _FLOATX()) if ops.dtype(x) == "bool" else x, axis=axis, keepdims=keepdims)


def mean(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Average; integers give an integer."""
    return _reduce(tf.reduce_mean, x, axis, keepdims)


def std(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the standard deviation of the population."""
    return _reduce(tf.math.reduce_std, x, axis, keepdims)


def var(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the variance of the population."""
    return _reduce(tf.math.reduce_variance, x, axis, keepdims)


def dot(x: Array, y: Array) -> Array:
    """Multiply, the last axis of `x` with the last but one of `y`, as `np.dot`."""
    return jnp.dot(jnp.asarray(x), jnp.asarray(y))


def batch_dot(x: Array, y: Array, axes: Any = None) -> Array:
    """Multiply example by example, one axis of `x` with one of `y`."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    if min(x.ndim, y.ndim) < 2:
        raise ValueError(f"K.batch_dot needs tensors of two axes or more, not {x.shape} and {y.shape}")
    if x.shape[0] != y.shape[0]:
        raise ValueError(f"K.batch_dot needs two batches of one size, not {x.shape} and {y.shape}")
    if axes is None:
        axes = (x.ndim - 1, y.ndim - 1 if y.ndim == 2 else y.ndim - 2)
    left, right = (axes, axes) if isinstance(axes, int) else axes
    left, right = left % x.ndim, right % y.ndim
    if 0 in (left, right):
        raise ValueError("K.batch_dot cannot sum over axis 0, the batch; use K.expand_dims(x, 0) if there is none")
    x, y = jnp.moveaxis(x, left, -1), jnp.moveaxis(y, right, 1)
    rest_of_x, rest_of_y = x.shape[1:-1], y.shape[2:]
    product = jnp.matmul(
        x.reshape(x.shape[0], math.prod(rest_of_x), x.shape[-1]), y.reshape(*y.shape[:2], math.prod(rest_of_y))
    )
    found = product.reshape(x.shape[0], *rest_of_x, *rest_of_y)
    return found[:, None] if found.ndim == 1 else found  # two matrices give a column


def batch_flatten(x: Array) -> Array:
    """Flatten all axes but the first."""
    return ops.reshape(x, (-1, math.prod(x.shape[1:])))


def _clipped(output: Array) -> Array:
    return ops.clip(output, keras.config.epsilon(), 1 - keras.config.epsilon())


def _probabilities(output: Array, axis: int) -> Array:
    return _clipped(output / ops.sum(output, axis, keepdims=True))


def categorical_crossentropy(target: Array, output: Array, from_logits: bool = False, axis: int = -1) -> Array:
    """Return the cross entropy; probabilities are first made to sum to one."""
    target, output = ops.convert_to_tensor(target), ops.convert_to_tensor(output)
    if target.shape != output.shape:
        raise ValueError(f"K.categorical_crossentropy needs two tensors of one shape: {target.shape}, {output.shape}")
    target = ops.cast(target, output.dtype)
    logs = ops.log_softmax(output, axis) if from_logits else ops.log(_probabilities(output, axis))
    return -ops.sum(target * logs, axis)


def categorical_focal_crossentropy(
    target: Array, output: Array, alpha: Any = 0.25, gamma: float = 2.0, from_logits: bool = False, axis: int = -1
) -> Array:
    """Return the cross entropy, weighted towards what is not yet told apart."""
    target, output = ops.convert_to_tensor(target), ops.convert_to_tensor(output)
    output = _probabilities(ops.softmax(output, axis) if from_logits else output, axis)
    return ops.sum(alpha * ops.power(1.0 - output, gamma) * -target * ops.log(output), axis)


def sparse_categorical_crossentropy(
    target: Array, output: Array, from_logits: bool = False, axis: int = -1, ignore_class: int | None = None
) -> Array:
    """Return the cross entropy for labels that are numbers; a label out of range gives NaN, as on GPUs."""
    output = ops.convert_to_tensor(output)
    logits = jnp.moveaxis(output if from_logits else ops.log(_clipped(output)), axis, -1)
    labels = jnp.reshape(ops.cast(target, "int32"), logits.shape[:-1])
    classes = logits.shape[-1]
    one_hot = ops.one_hot(labels, classes, dtype=logits.dtype)
    loss = -ops.sum(one_hot * ops.log_softmax(logits, -1), -1)
    loss = ops.where((labels >= 0) & (labels < classes), loss, np.nan)
    return loss if ignore_class is None else ops.where(labels == ignore_class, 0.0, loss)


def softmax(x: Array, axis: Any = -1) -> Array:
    """Return the softmax over one or several axes."""
    if len(x.shape) <= 1:
        raise ValueError(f"K.softmax needs a tensor of two axes or more, not {x.shape}")
    return jnp.exp(jnp.asarray(x) - ops.logsumexp(x, axis, keepdims=True))


def gather(reference: Array, indices: Array) -> Array:
    """Look up along the first axis."""
    return tf.gather(reference, indices)


def in_top_k(predictions: Array, targets: Array, k: int) -> Array:
    """Return whether the target is among the `k` most likely."""
    return tf.math.in_top_k(targets, predictions, k)


def moving_average_update(x: Array, value: Array, momentum: Array) -> Array:
    """Move a variable towards a value, and return what it is then."""
    x.assign(x - (x - ops.cast(value, x.dtype)) * (1 - momentum))
    return x.value


def update(x: Array, new_x: Array) -> Array:
    """Assign to a variable, and return its value."""
    x.assign(new_x)
    return x.value


def update_add(x: Array, increment: Array) -> Array:
    """Add to a variable, and return its value."""
    return update(x, x + increment)


def update_sub(x: Array, decrement: Array) -> Array:
    """Subtract from a variable, and return its value."""
    return update(x, x - decrement)


def repeat(x: Array, n: int) -> Array:
    """Repeat a matrix along a new axis after the first."""
    if len(x.shape) != 2:
        raise ValueError(f"K.repeat needs a tensor of two axes, not {x.shape}")
    return ops.repeat(ops.expand_dims(x, 1), n, 1)


def repeat_elements(x: Array, rep: int, axis: int) -> Array:
    """Repeat each element along an axis."""
    return ops.repeat(x, rep, axis)


def resize_images(
    x: Array, height_factor: int, width_factor: int, data_format: str, interpolation: str = "nearest"
) -> Array:
    """Make images larger by factors."""
    first = data_format == "channels_first"
    x = ops.transpose(x, (0, 2, 3, 1)) if first else ops.convert_to_tensor(x)
    x = tf.image.resize(x, (x.shape[1] * height_factor, x.shape[2] * width_factor), method=interpolation)
    return ops.transpose(x, (0, 3, 1, 2)) if first else x


def temporal_padding(x: Array, padding: Sequence[int] = (1, 1)) -> Array:
    """Pad the middle axis of three with zeros."""
    return ops.pad(x, ((0, 0), tuple(padding), (0, 0)))


def spatial_2d_padding(x: Array, padding: Any = ((1, 1), (1, 1)), data_format: str | None = None) -> Array:
    """Pad height and width with zeros; `spatial_3d_padding` is this with three axes."""
    around = [(0, 0)] * (2 if _format(data_format) == "channels_first" else 1)
    pads = [*around, *map(tuple, padding)]
    return ops.pad(x, pads + [(0, 0)] * (len(x.shape) - len(pads)))


def spatial_3d_padding(x: Array, padding: Any = ((1, 1), (1, 1), (1, 1)), data_format: str | None = None) -> Array:
    """Pad depth, height and width with zeros."""
    return spatial_2d_padding(x, padding, data_format)


def switch(condition: Array, then_expression: Any, else_expression: Any) -> Array:
    """Choose between tensors, or functions that return them: elementwise, or one of both for a scalar condition."""
    condition = ops.cast(condition, "bool")
    branches = [one if callable(one) else lambda one=one: one for one in (then_expression, else_expression)]
    if not condition.shape:
        return tf.cond(condition, *branches)
    then, other = (ops.convert_to_tensor(branch()) for branch in branches)
    if condition.ndim > then.ndim:
        raise ValueError(f"K.switch: the condition {condition.shape} has more axes than what it chooses {then.shape}")
    if condition.ndim > 1:  # a vector chooses along the last axis, as broadcasting has it
        condition = ops.reshape(condition, (*condition.shape, *(1,) * (then.ndim - condition.ndim)))
    return ops.where(condition, then, other)


def stop_gradient(variables: Any) -> Any:
    """Return what has no gradient."""
    return (
        [*map(ops.stop_gradient, variables)] if isinstance(variables, (list, tuple)) else ops.stop_gradient(variables)
    )


def _format(data_format: str | None) -> str:
    data_format = data_format or keras.config.image_data_format()
    if data_format not in ("channels_first", "channels_last"):
        raise ValueError(f"data_format is channels_first or channels_last, not {data_format!r}")
    return data_format


def conv(
    x: Array,
    kernel: Array,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Array:
    """Convolve over one, two or three axes; `causal` is for one axis."""
    if padding == "causal":
        before = int(np.max(dilation_rate)) * (kernel.shape[0] - 1)
        time = 1 if _format(data_format) == "channels_last" else 2
        x = ops.pad(x, [(before, 0) if axis == time else (0, 0) for axis in range(3)])
        padding = "valid"
    return ops.conv(x, kernel, strides, padding, _format(data_format), dilation_rate)


def conv2d_transpose(
    x: Array,
    kernel: Array,
    output_shape: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Array:
    """Run a convolution backwards; `output_shape` must be what the other arguments give."""
    found = ops.conv_transpose(x, kernel, strides, padding, None, _format(data_format), dilation_rate)
    if any(isinstance(n, int) and n != m for n, m in zip(output_shape, found.shape, strict=True)):
        raise out_of_reach(
            what=f"K.conv2d_transpose with output_shape={tuple(output_shape)}",
            why=f"these strides and this padding give {tuple(found.shape)}",
            write="keras.ops.conv_transpose(..., output_padding=...)",
        )
    return found


def depthwise_conv2d(
    x: Array,
    depthwise_kernel: Array,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Array:
    """Convolve each channel on its own."""
    return ops.depthwise_conv(x, depthwise_kernel, strides, padding, _format(data_format), dilation_rate)


def separable_conv2d(
    x: Array,
    depthwise_kernel: Array,
    pointwise_kernel: Array,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Array:
    """Convolve each channel on its own, then mix them."""
    kernels = (depthwise_kernel, pointwise_kernel)
    return ops.separable_conv(x, *kernels, strides, padding, _format(data_format), dilation_rate)


def pool(
    x: Array,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
    pool_mode: str = "max",
) -> Array:
    """Pool over two or three axes; strides are 1 by default."""
    function = {"max": ops.max_pool, "avg": ops.average_pool}[pool_mode]
    strides = (1,) * len(pool_size) if strides is None else strides
    return function(x, tuple(pool_size), tuple(strides), padding, _format(data_format))


def rnn(step_function: Callable[..., Any], inputs: Any, initial_states: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a recurrent step over time; Keras 3 has this function with the arguments of Keras 2."""
    return keras.src.backend.rnn(step_function, inputs, initial_states, *args, **kwargs)


def ctc_batch_cost(y_true: Array, y_pred: Array, input_length: Array, label_length: Array) -> Array:
    """Return the CTC loss of each example; the last class is the blank."""
    scores = ops.log(ops.convert_to_tensor(y_pred) + keras.config.epsilon())
    lengths = (ops.cast(ops.squeeze(one, -1), "int32") for one in (label_length, input_length))
    loss = ops.ctc_loss(ops.cast(y_true, "int32"), scores, *lengths, mask_index=scores.shape[-1] - 1)
    return ops.expand_dims(loss, 1)


def normalize_batch_in_training(
    x: Array, gamma: Array, beta: Array, reduction_axes: Sequence[int], epsilon: float = 1e-3
) -> tuple[Array, Array, Array]:
    """Normalise a batch, and return it with its mean and variance."""
    axes = tuple(reduction_axes)
    average, variance = ops.moments(x, axes, keepdims=True)
    shape = average.shape
    scale = 1.0 if gamma is None else ops.reshape(gamma, shape)
    shift = 0.0 if beta is None else ops.reshape(beta, shape)
    normal = (x - average) * ops.rsqrt(variance + epsilon) * scale + shift
    return normal, ops.squeeze(average, axes), ops.squeeze(variance, axes)


# By argument: on values of JAX these, on all others Keras's own.
ARRAYS: dict[str, Callable[..., Any]] = {
    **{
        function.__name__: function
        for function in (
            batch_dot,
            batch_flatten,
            cast_to_floatx,
            categorical_crossentropy,
            categorical_focal_crossentropy,
            conv2d_transpose,
            ctc_batch_cost,
            depthwise_conv2d,
            dot,
            gather,
            in_top_k,
            mean,
            moving_average_update,
            repeat,
            repeat_elements,
            resize_images,
            rnn,
            separable_conv2d,
            softmax,
            sparse_categorical_crossentropy,
            spatial_2d_padding,
            spatial_3d_padding,
            std,
            stop_gradient,
            switch,
            temporal_padding,
            update,
            update_add,
            update_sub,
            var,
        )
    },
    "conv1d": conv,
    "conv2d": conv,
    "conv3d": conv,
    "pool2d": pool,
    "pool3d": pool,
}
