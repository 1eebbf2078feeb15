"""The functions of `tf.image` that change colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from keras_tpu_ext.dropin.functions.arguments import dtype, tensor

Array = Any

_GRAY = np.array([0.2989, 0.587, 0.114], "float32")
_YIQ = np.array([[0.299, 0.59590059, 0.2115], [0.587, -0.27455667, -0.52273617], [0.114, -0.32134392, 0.31119955]])
_YUV = np.array(
    [[0.299, -0.14714119, 0.61497538], [0.587, -0.28886916, -0.51496512], [0.114, 0.43601035, -0.10001026]]
)
_FROM_YIQ = np.array([[1, 1, 1], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]])
_FROM_YUV = np.array([[1, 1, 1], [0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0]])


def convert_image_dtype(x: Any, to: Any, saturate: Any) -> Array:
    """Cast an image; what has integers has their whole range, floats have 0 to 1."""
    x, to = tensor(x), dtype(to)
    of_integers, to_integers = jnp.issubdtype(x.dtype, jnp.integer), jnp.issubdtype(to, jnp.integer)
    if x.dtype == to:
        return x
    if of_integers and to_integers:
        return _rescale(x, to, saturate)
    if of_integers:
        return x.astype(to) * (1 / jnp.iinfo(x.dtype).max)
    if not to_integers:
        return x.astype(to)
    scaled = x * (jnp.iinfo(to).max + 0.5)
    return _cast(scaled, to, saturate)


def _cast(x: Array, to: Any, saturate: Any) -> Array:
    if not saturate:
        return x.astype(to)
    low, high = max(jnp.iinfo(to).min, float(jnp.finfo(x.dtype).min)), jnp.iinfo(to).max
    return jnp.where(x >= high, high, jnp.clip(x, low, None)).astype(to)


def _rescale(x: Array, to: Any, saturate: Any) -> Array:
    largest, target = int(jnp.iinfo(x.dtype).max), int(jnp.iinfo(to).max)
    if largest > target:
        x = x // ((largest + 1) // (target + 1))
        return jnp.clip(x, jnp.iinfo(to).min, target).astype(to) if saturate else x.astype(to)
    return (x.astype(to) if not saturate else jnp.maximum(x, jnp.iinfo(to).min).astype(to)) * (
        (target + 1) // (largest + 1)
    )


def as_float(function: Callable[..., Array]) -> Callable[..., Array]:
    """Let `function` have an image of floats, and return one of the dtype that was given."""

    def call(x: Any, *values: Any) -> Array:
        x = tensor(x)
        changed = function(convert_image_dtype(x, _float_of(x), False), *values)
        return convert_image_dtype(changed, x.dtype, True)

    return call


def _float_of(x: Array) -> Any:
    return x.dtype if x.dtype in (jnp.float16, jnp.float32) else "float32"


def adjust_contrast(x: Array, factor: Any) -> Array:
    """Move each channel away from its mean."""
    mean = jnp.mean(x, (-3, -2), keepdims=True)
    return (x - mean) * factor + mean


def adjust_saturation(x: Array, factor: Any) -> Array:
    """Multiply the saturation."""
    hue, saturation, value = _split(rgb_to_hsv(x))
    return hsv_to_rgb(jnp.stack([hue, jnp.clip(saturation * factor, 0, 1), value], -1))


def adjust_hue(x: Array, delta: Any) -> Array:
    """Turn the hue by a fraction of the circle."""
    hue, saturation, value = _split(rgb_to_hsv(x))
    return hsv_to_rgb(jnp.stack([jnp.mod(hue + delta, 1), saturation, value], -1))


def _split(x: Array) -> tuple[Array, Array, Array]:
    return x[..., 0], x[..., 1], x[..., 2]


def rgb_to_hsv(x: Any) -> Array:
    """Return hue, saturation and value."""
    red, green, blue = _split(tensor(x))
    value = jnp.maximum(jnp.maximum(red, green), blue)
    spread = value - jnp.minimum(jnp.minimum(red, green), blue)
    saturation = jnp.where(value > 0, spread / jnp.where(value > 0, value, 1), 0)
    norm = 1 / (6 * jnp.where(spread > 0, spread, 1))
    of_green, of_blue = norm * (blue - red) + 2 / 6, norm * (red - green) + 4 / 6
    hue = jnp.where(red == value, norm * (green - blue), jnp.where(green == value, of_green, of_blue))
    hue = jnp.where(spread > 0, hue, 0)
    return jnp.stack([jnp.where(hue < 0, hue + 1, hue), saturation, value], -1)


def hsv_to_rgb(x: Any) -> Array:
    """Return red, green and blue."""
    hue, saturation, value = _split(tensor(x))
    turn = hue * 6
    parts = [jnp.abs(turn - 3) - 1, 2 - jnp.abs(turn - 2), 2 - jnp.abs(turn - 4)]
    return jnp.stack([((1 - saturation) + saturation * jnp.clip(part, 0, 1)) * value for part in parts], -1)


def rgb_to_grayscale(x: Any) -> Array:
    """Return the luminance."""
    x = tensor(x)
    gray = jnp.sum(convert_image_dtype(x, "float32", False) * _GRAY, -1, keepdims=True)
    return convert_image_dtype(gray, x.dtype, False)


def _by_matrix(matrix: np.ndarray) -> Callable[..., Array]:
    return lambda x: jnp.matmul(tensor(x), matrix.astype(tensor(x).dtype))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "image.convert_image_dtype": convert_image_dtype,
    "image.adjust_brightness": as_float(lambda x, delta: x + delta),
    "image.adjust_contrast": as_float(adjust_contrast),
    "image.adjust_gamma": as_float(lambda x, gamma, gain: gain * x**gamma),
    "image.adjust_saturation": as_float(adjust_saturation),
    "image.adjust_hue": as_float(adjust_hue),
    "image.rgb_to_hsv": rgb_to_hsv,
    "image.hsv_to_rgb": hsv_to_rgb,
    "image.rgb_to_grayscale": rgb_to_grayscale,
    "image.grayscale_to_rgb": lambda x: jnp.repeat(tensor(x), 3, axis=-1),
    "image.rgb_to_yiq": _by_matrix(_YIQ),
    "image.rgb_to_yuv": _by_matrix(_YUV),
    "image.yiq_to_rgb": _by_matrix(_FROM_YIQ),
    "image.yuv_to_rgb": _by_matrix(_FROM_YUV),
}
