"""The functions of `tf.nn` that are not of each element: convolutions, pools, normalisations and losses.

Convolutions are those of `keras.ops`, which this package keeps exact on several devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import axes, number, numbers, tensor, tensors
from keras_tpu_ext.dropin.functions.elementwise import absolute

Array = Any
_K = keras.ops


def _is_channels_first(data_format: str | None) -> bool:
    return bool(data_format) and str(data_format).startswith("NC")


def _spatial(value: Any, rank: int, data_format: str | None) -> tuple[int, ...]:
    """Return a number for each spatial axis; there may be one for all, or also those of batch and channels."""
    values = (1,) if value is None else numbers(value)
    if len(values) == 1:
        return values * rank
    if len(values) == rank:
        return values
    return values[2:] if _is_channels_first(data_format) else values[1:-1]


def _padded(x: Array, padding: Any) -> tuple[Array, str]:
    if isinstance(padding, str):
        return x, padding.lower()
    return jnp.pad(x, [numbers(pair) for pair in padding]), "valid"


def _format(data_format: str | None) -> str:
    return "channels_first" if _is_channels_first(data_format) else "channels_last"


def convolution(x: Any, filters: Any, strides: Any, padding: Any, data_format: Any, dilations: Any) -> Array:
    """Convolve over as many axes as the filters have, in groups if these have fewer channels."""
    x, filters = tensors(x, filters)
    rank = filters.ndim - 2
    x, padding = _padded(x, padding)
    strides, dilations = _spatial(strides, rank, data_format), _spatial(dilations, rank, data_format)
    return _K.conv(x, filters, strides, padding, _format(data_format), dilations)


def transposed_convolution(
    x: Any, filters: Any, shape: Any, strides: Any, padding: Any, data_format: Any, dilations: Any
) -> Array:
    """Return the gradient of a convolution of an array that has this shape."""
    x, filters = tensors(x, filters)
    shape = (x.shape[0], *numbers(shape)[1:])

    def convolve(y: Array) -> Array:
        return convolution(y, filters, strides, padding, data_format, dilations)

    return jax.vjp(convolve, jnp.zeros(shape, x.dtype))[1](x)[0]


def depthwise(x: Any, filters: Any, strides: Any, padding: Any, data_format: Any, dilations: Any) -> Array:
    """Convolve each channel for itself."""
    x, filters = tensors(x, filters)
    x, padding = _padded(x, padding)
    strides, dilations = _spatial(strides, 2, data_format), _spatial(dilations, 2, data_format)
    return _K.depthwise_conv(x, filters, strides, padding, _format(data_format), dilations)


def separable(
    x: Any, filters: Any, pointwise: Any, strides: Any, padding: Any, data_format: Any, dilations: Any
) -> Array:
    """Convolve each channel for itself, then all of each point."""
    return convolution(
        depthwise(x, filters, strides, padding, data_format, dilations), pointwise, 1, "VALID", data_format, 1
    )


def _pool(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(x: Any, size: Any, strides: Any, padding: Any, data_format: Any) -> Array:
        x = tensor(x)
        size, strides = (_spatial(value, x.ndim - 2, data_format) for value in (size, strides))
        return function(x, size, strides, padding.lower(), _format(data_format))

    return call


def moments(x: Any, axis: Any, shift: Any, keepdims: Any) -> tuple[Array, Array]:
    """Return mean and variance; what is in half precision is summed in float32."""
    x, axis = tensor(x), axes(axis)
    precise = x.astype("float32") if x.dtype == jnp.float16 else x
    mean = jnp.mean(precise, axis, keepdims=True)
    variance = jnp.mean(jnp.square(precise - lax.stop_gradient(mean)), axis, keepdims=bool(keepdims))
    mean = mean if keepdims else jnp.squeeze(mean, tuple(range(x.ndim)) if axis is None else axis)
    return mean.astype(x.dtype), variance.astype(x.dtype)


def weighted_moments(x: Any, axis: Any, weights: Any, keepdims: Any) -> tuple[Array, Array]:
    """Return mean and variance, each element with its weight."""
    x, weights = tensors(x, weights)
    axis, keepdims = axes(axis), bool(keepdims)
    weights = jnp.broadcast_to(weights, jnp.broadcast_shapes(x.shape, jnp.shape(weights)))
    total = jnp.sum(weights, axis, keepdims=True)
    mean = jnp.sum(weights * x, axis, keepdims=True) / total
    variance = jnp.sum(weights * jnp.square(x - lax.stop_gradient(mean)), axis, keepdims=True) / total
    if keepdims:
        return mean, variance
    gone = tuple(range(x.ndim)) if axis is None else axis
    return jnp.squeeze(mean, gone), jnp.squeeze(variance, gone)


def normalize_moments(counts: Any, mean: Any, variance: Any, shift: Any) -> tuple[Array, Array]:
    """Return mean and variance, of sums."""
    counts, mean, variance = tensors(counts, mean, variance)
    shifted = mean / counts
    return shifted if shift is None else shifted + shift, variance / counts - jnp.square(shifted)


def batch_normalization(x: Any, mean: Any, variance: Any, offset: Any, scale: Any, epsilon: Any) -> Array:
    """Normalise with these moments."""
    x, mean, variance, offset, scale = tensors(x, mean, variance, offset, scale)
    factor = lax.rsqrt(variance + epsilon)
    factor = factor if scale is None else factor * scale
    return x * factor.astype(x.dtype) + ((0 if offset is None else offset) - mean * factor).astype(x.dtype)


def bias_add(x: Any, bias: Any, data_format: Any) -> Array:
    """Add a bias to each channel."""
    x, bias = tensors(x, bias)
    return x + (bias.reshape((-1,) + (1,) * (x.ndim - 2)) if _is_channels_first(data_format) else bias)


def local_response_normalization(x: Any, radius: Any, bias: float, alpha: float, beta: float) -> Array:
    """Divide by a power of the sum of squares of channels nearby."""
    x, radius = tensor(x), number(radius)
    window = (1,) * (x.ndim - 1) + (2 * radius + 1,)
    padding = [(0, 0)] * (x.ndim - 1) + [(radius, radius)]
    squares = lax.reduce_window(jnp.square(x), 0.0, lax.add, window, (1,) * x.ndim, padding)
    return x / (bias + alpha * squares) ** beta


def _along_last(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda logits, axis: function(tensor(logits), -1 if axis is None else number(axis))


def _precise(x: Array) -> Array:
    return x.astype("float32") if x.dtype in (jnp.float16, jnp.bfloat16) else x


def _log_exp(x: Array) -> Array:
    """Return log(1 + exp(-|x|)) with the gradient that TensorFlow's losses have at 0."""
    return jnp.log1p(jnp.exp(jnp.where(x >= 0, -x, x)))


def sigmoid_cross_entropy(labels: Any, logits: Any) -> Array:
    """Return the cross entropy of each logit."""
    logits, labels = tensors(logits, labels)
    return jnp.where(logits >= 0, logits, 0) - logits * labels + _log_exp(logits)


def weighted_cross_entropy(labels: Any, logits: Any, weight: Any) -> Array:
    """Return the cross entropy of each logit, with a weight for positive labels."""
    logits, labels, weight = tensors(logits, labels, weight)
    scale = 1 + (weight - 1) * labels
    return (1 - labels) * logits + scale * (jnp.log1p(jnp.exp(-absolute(logits))) + jax.nn.relu(-logits))


def softmax_cross_entropy(labels: Any, logits: Any, axis: Any) -> Array:
    """Return the cross entropy of distributions.

    Its gradient is TensorFlow's, softmax - labels, also for labels that do not sum up to 1.
    """
    (logits, labels), axis = tensors(logits, labels), number(axis)
    shifted = _precise(logits - lax.stop_gradient(jnp.max(logits, axis, keepdims=True)))
    total = jax.nn.logsumexp(shifted, axis)
    excess = (jnp.sum(labels, axis) - 1) * lax.stop_gradient(total)
    return (total - jnp.sum(labels * shifted, axis) + excess).astype(logits.dtype)


def sparse_softmax_cross_entropy(labels: Any, logits: Any) -> Array:
    """Return the cross entropy of classes; NaN if there is no such class."""
    logits, labels = tensor(logits), tensor(labels)
    chances = jax.nn.log_softmax(_precise(logits), -1)
    labels = jnp.where(labels < 0, logits.shape[-1], labels)[..., None]
    chosen = jnp.take_along_axis(chances, labels, axis=-1, mode="fill", fill_value=jnp.nan)
    return -chosen[..., 0].astype(logits.dtype)


def log_poisson_loss(targets: Any, log_input: Any, full: bool) -> Array:
    """Return the Poisson loss of logarithms; `full` adds Stirling's approximation."""
    log_input, targets = tensors(log_input, targets)
    loss = jnp.exp(log_input) - log_input * targets
    if not full:
        return loss
    safe = jnp.where((targets >= 0) & (targets <= 1), 1, targets)
    stirling = safe * jnp.log(safe) - safe + 0.5 * jnp.log(2 * math.pi * safe)
    return loss + jnp.where((targets >= 0) & (targets <= 1), 0, stirling)


def ctc_loss(
    labels: Any, logits: Any, label_length: Any, logit_length: Any, time_major: bool, _: Any, blank: Any
) -> Array:
    """Return the CTC loss of dense labels."""
    logits = jnp.swapaxes(tensor(logits), 0, 1) if time_major else tensor(logits)
    lengths = [tensor(length) for length in (label_length, logit_length)]
    blank = number(blank or 0) % logits.shape[-1]
    return _K.ctc_loss(tensor(labels), logits, *lengths, mask_index=blank).astype(logits.dtype)


def compute_average_loss(losses: Any, weights: Any, batch_size: Any) -> Array:
    """Return the sum of the losses of examples, divided by the global batch size."""
    losses, weights = tensors(losses, weights)
    losses = (
        losses if weights is None else losses * weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
    )
    return jnp.sum(losses) / (losses.shape[0] if batch_size is None else batch_size)


_max_pool, _avg_pool = _pool(_K.max_pool), _pool(_K.average_pool)


def pool(x: Any, size: Any, kind: str, strides: Any, padding: Any, data_format: Any, dilations: Any) -> Array:
    """Pool by maximum or mean."""
    if dilations is not None and set(numbers(dilations)) != {1}:
        raise out_of_reach(
            what="tf.nn.pool with dilations", why="keras.ops has none", write="tf.nn.pool without, or tf.nn.conv2d"
        )
    function = {"MAX": _max_pool, "AVG": _avg_pool}[kind]
    return function(x, size, 1 if strides is None else strides, padding, data_format)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"nn.conv{rank}d": convolution for rank in (1, 2, 3)},
    **{f"nn.conv{rank}d_transpose": transposed_convolution for rank in (1, 2, 3)},
    "nn.convolution": convolution,
    "nn.atrous_conv2d": lambda x, filters, rate, padding: convolution(x, filters, 1, padding, None, rate),
    "nn.depthwise_conv2d": depthwise,
    "nn.separable_conv2d": separable,
    **dict.fromkeys(["nn.max_pool", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"], _max_pool),
    **dict.fromkeys(["nn.avg_pool", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"], _avg_pool),
    "nn.pool": pool,
    "nn.moments": moments,
    "nn.weighted_moments": weighted_moments,
    "nn.normalize_moments": normalize_moments,
    "nn.batch_normalization": batch_normalization,
    "nn.bias_add": bias_add,
    "nn.local_response_normalization": local_response_normalization,
    "nn.softmax": _along_last(jax.nn.softmax),
    "nn.log_softmax": _along_last(jax.nn.log_softmax),
    "nn.crelu": lambda x, axis: jax.nn.relu(jnp.concatenate([tensor(x), -tensor(x)], number(axis))),
    "nn.sigmoid_cross_entropy_with_logits": sigmoid_cross_entropy,
    "nn.weighted_cross_entropy_with_logits": weighted_cross_entropy,
    "nn.softmax_cross_entropy_with_logits": softmax_cross_entropy,
    "nn.sparse_softmax_cross_entropy_with_logits": sparse_softmax_cross_entropy,
    "nn.log_poisson_loss": log_poisson_loss,
    "nn.l2_loss": lambda x: jnp.sum(jnp.square(tensor(x))) / 2,
    "nn.ctc_loss": ctc_loss,
    "nn.compute_average_loss": compute_average_loss,
    "nn.scale_regularization_loss": lambda loss: jnp.sum(tensor(loss)),
}
