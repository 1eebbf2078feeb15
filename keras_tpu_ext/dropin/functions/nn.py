"""The functions of `tf.nn` that are not of each element: convolutions, pools, normalisations and losses.

Convolutions are those of `keras.ops`, which this package keeps exact on several devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from keras_tpu_ext.dropin.functions.arguments import numbers
from keras_tpu_ext.dropin.functions.elementwise import absolute

Array = Any
_K = keras.ops


def _is_channels_first(data_format: str | None) -> bool:
    return bool(data_format) and str(data_format).startswith("NC")


def _format(data_format: str | None) -> str:
    return "channels_first" if _is_channels_first(data_format) else "channels_last"


def _spatial(value: Any, rank: int, data_format: str | None) -> tuple[int, ...]:
    """Return a number for each spatial axis; there may be one for all, or also those of batch and channels."""
    values = (1,) if value is None else numbers(value)
    if len(values) == 1:
        return values * rank
    if len(values) == rank:
        return values
    return values[2:] if _is_channels_first(data_format) else values[1:-1]


def _convolve(
    function: Callable[..., Array],
    x: Array,
    filters: Any,
    strides: Any,
    padding: Any,
    data_format: Any,
    dilations: Any,
) -> Array:
    rank = x.ndim - 2
    if not isinstance(padding, str):
        x, padding = jnp.pad(x, [numbers(pair) for pair in padding]), "valid"
    strides, dilations = _spatial(strides, rank, data_format), _spatial(dilations, rank, data_format)
    return function(x, jnp.asarray(filters), strides, padding.lower(), _format(data_format), dilations)


def _convolution(*arguments: Any) -> Array:
    """Convolve over as many axes as the filters have, in groups if these have fewer channels."""
    return _convolve(_K.conv, *arguments)


def depthwise(*arguments: Any) -> Array:
    """Convolve each channel for itself."""
    return _convolve(_K.depthwise_conv, *arguments)


def _separable(
    x: Array, filters: Any, pointwise: Any, strides: Any, padding: Any, data_format: Any, dilations: Any
) -> Array:
    x = depthwise(x, filters, strides, padding, data_format, dilations)
    return _convolution(x, pointwise, 1, "VALID", data_format, 1)


def _transposed(
    x: Array, filters: Array, shape: Any, strides: Any, padding: Any, data_format: Any, dilations: Any
) -> Array:
    """Return the gradient of a convolution of an array that has this shape."""

    def convolve(y: Array) -> Array:
        return _convolution(y, filters, strides, padding, data_format, dilations)

    return jax.vjp(convolve, jnp.zeros((x.shape[0], *shape[1:]), x.dtype))[1](x)[0]


def _pool(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(x: Array, size: Any, strides: Any, padding: str, data_format: Any) -> Array:
        size, strides = (_spatial(value, x.ndim - 2, data_format) for value in (size, strides))
        return function(x, size, strides, padding.lower(), _format(data_format))

    return call


def _moments(x: Array, axis: Any, shift: Any, keepdims: Any) -> tuple[Array, Array]:
    """Return mean and variance; what is in half precision is summed in float32."""
    precise = x.astype("float32") if x.dtype == jnp.float16 else x
    mean = jnp.mean(precise, axis, keepdims=True)
    variance = jnp.mean(jnp.square(precise - lax.stop_gradient(mean)), axis, keepdims=bool(keepdims))
    mean = mean if keepdims else jnp.squeeze(mean, axis)
    return mean.astype(x.dtype), variance.astype(x.dtype)


def _batch_normalization(x: Array, mean: Array, variance: Array, offset: Any, scale: Any, epsilon: Any) -> Array:
    factor = lax.rsqrt(variance + epsilon)
    factor = factor if scale is None else factor * scale
    return x * factor.astype(x.dtype) + ((0 if offset is None else offset) - mean * factor).astype(x.dtype)


def _bias_add(x: Array, bias: Array, data_format: Any) -> Array:
    return x + (bias.reshape((-1,) + (1,) * (x.ndim - 2)) if _is_channels_first(data_format) else bias)


def _local_response_normalization(x: Array, radius: int, bias: float, alpha: float, beta: float) -> Array:
    """Divide by a power of the sum of squares of channels nearby."""
    window = (1,) * (x.ndim - 1) + (2 * radius + 1,)
    padding = [(0, 0)] * (x.ndim - 1) + [(radius, radius)]
    squares = lax.reduce_window(jnp.square(x), 0.0, lax.add, window, (1,) * x.ndim, padding)
    return x / (bias + alpha * squares) ** beta


def _along_last(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda logits, axis: function(logits, -1 if axis is None else axis)


def _precise(x: Array) -> Array:
    return x.astype("float32") if x.dtype in (jnp.float16, jnp.bfloat16) else x


def _sigmoid_cross_entropy(labels: Array, logits: Array) -> Array:
    log_exp = jnp.log1p(jnp.exp(jnp.where(logits >= 0, -logits, logits)))  # with TensorFlow's gradient at 0
    return jnp.where(logits >= 0, logits, 0) - logits * labels + log_exp


def _weighted_cross_entropy(labels: Array, logits: Array, weight: Any) -> Array:
    scale = 1 + (weight - 1) * labels
    return (1 - labels) * logits + scale * (jnp.log1p(jnp.exp(-absolute(logits))) + jax.nn.relu(-logits))


def _softmax_cross_entropy(labels: Array, logits: Array, axis: int) -> Array:
    """Return the cross entropy of distributions.

    Its gradient is TensorFlow's, softmax - labels, also for labels that do not sum up to 1.
    """
    shifted = _precise(logits - lax.stop_gradient(jnp.max(logits, axis, keepdims=True)))
    total = jax.nn.logsumexp(shifted, axis)
    excess = (jnp.sum(labels, axis) - 1) * lax.stop_gradient(total)
    return (total - jnp.sum(labels * shifted, axis) + excess).astype(logits.dtype)


def _sparse_softmax_cross_entropy(labels: Array, logits: Array) -> Array:
    """Return the cross entropy of classes; NaN if there is no such class."""
    chances = jax.nn.log_softmax(_precise(logits), -1)
    labels = jnp.where(labels < 0, logits.shape[-1], labels)[..., None]
    chosen = jnp.take_along_axis(chances, labels, axis=-1, mode="fill", fill_value=jnp.nan)
    return -chosen[..., 0].astype(logits.dtype)


def _ctc_loss(labels: Array, logits: Array, label_length: Any, length: Any, time_major: bool, blank: Any) -> Array:
    """Return the CTC loss of dense labels."""
    logits = jnp.swapaxes(logits, 0, 1) if time_major else logits
    blank = int(blank or 0) % logits.shape[-1]
    return _K.ctc_loss(labels, logits, label_length, length, mask_index=blank).astype(logits.dtype)


def _average_loss(losses: Array, weights: Any, batch_size: Any) -> Array:
    """Return the sum of the losses of examples, divided by the global batch size."""
    if weights is not None:
        losses = losses * weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
    return jnp.sum(losses) / (losses.shape[0] if batch_size is None else batch_size)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"nn.conv{rank}d": _convolution for rank in (1, 2, 3)},
    **{f"nn.conv{rank}d_transpose": _transposed for rank in (1, 2, 3)},
    "nn.convolution": _convolution,
    "nn.depthwise_conv2d": depthwise,
    "nn.separable_conv2d": _separable,
    **{f"nn.max_pool{rank}": _pool(_K.max_pool) for rank in ("", "1d", "2d", "3d")},
    **{f"nn.avg_pool{rank}": _pool(_K.average_pool) for rank in ("", "1d", "2d", "3d")},
    "nn.moments": _moments,
    "nn.batch_normalization": _batch_normalization,
    "nn.bias_add": _bias_add,
    "nn.local_response_normalization": _local_response_normalization,
    "nn.softmax": _along_last(jax.nn.softmax),
    "nn.log_softmax": _along_last(jax.nn.log_softmax),
    "nn.sigmoid_cross_entropy_with_logits": _sigmoid_cross_entropy,
    "nn.weighted_cross_entropy_with_logits": _weighted_cross_entropy,
    "nn.softmax_cross_entropy_with_logits": _softmax_cross_entropy,
    "nn.sparse_softmax_cross_entropy_with_logits": _sparse_softmax_cross_entropy,
    "nn.l2_loss": lambda x: jnp.sum(jnp.square(x)) / 2,
    "nn.ctc_loss": _ctc_loss,
    "nn.compute_average_loss": _average_loss,
}
