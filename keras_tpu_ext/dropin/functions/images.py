"""The functions of `tf.image` without randomness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import number
from keras_tpu_ext.dropin.functions.elementwise import absolute
from keras_tpu_ext.dropin.functions.nn import depthwise

Array = Any
_METHODS = {"bilinear": "linear", "bicubic": "cubic", "lanczos3": "lanczos3", "lanczos5": "lanczos5"}


def _resize(x: Array, size: Any, method: Any, antialias: bool) -> Array:
    """Resize height and width; the result is float32, unless the method is nearest or there is nothing to do."""
    height, width = size
    if (height, width) == x.shape[-3:-1]:
        return x if method == "nearest" else x.astype("float32")
    if method == "nearest":
        return _nearest(_nearest(x, height, -3), width, -2)
    if method not in _METHODS:
        raise out_of_reach(
            what=f"tf.image.resize(method={method!r})",
            why="JAX has bilinear, nearest, bicubic, lanczos3 and lanczos5",
            write='method="bilinear", or the call in the tf.data pipeline',
        )
    shape = (*x.shape[:-3], height, width, x.shape[-1])
    return jax.image.resize(x.astype("float32"), shape, _METHODS[method], antialias=bool(antialias))


def _nearest(x: Array, size: Any, axis: int) -> Array:
    have, want = jnp.asarray(x.shape[axis]).astype("float32"), jnp.asarray(size).astype("float32")
    indices = jnp.minimum(jnp.floor((jnp.arange(size) + 0.5) * (have / want)), have - 1)
    return jnp.take(x, indices.astype("int32"), axis=axis)


def _resize_with_pad(x: Array, height: int, width: int, method: Any, antialias: bool) -> Array:
    """Resize without changing the ratio of height and width, and pad with zeros."""
    ratio = max(x.shape[-2] / width, x.shape[-3] / height)
    inner = (x.shape[-3] / ratio, x.shape[-2] / ratio)
    resized = _resize(x, [math.floor(size) for size in inner], method, antialias)
    top, left = (max(0, math.floor((want - got) / 2)) for want, got in zip((height, width), inner, strict=True))
    return _pad_to_box(resized, top, left, height, width)


def _pad_to_box(x: Array, top: Any, left: Any, height: int, width: int) -> Array:
    top, left = number(top), number(left)
    spaces = [(top, height - top - x.shape[-3]), (left, width - left - x.shape[-2])]
    if min(map(min, spaces)) < 0:
        raise ValueError(f"tf.image.pad_to_bounding_box: {x.shape[-3:-1]} does not fit at {(top, left)}")
    return jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [*spaces, (0, 0)])


def _crop_to_box(x: Array, top: Any, left: Any, height: int, width: int) -> Array:
    """Return a part of an image, which must lie in it; where it begins may depend on data."""
    if any(isinstance(at, jax.core.Tracer) for at in (top, left)):
        part = jax.lax.dynamic_slice_in_dim(x, top, height, x.ndim - 3)
        return jax.lax.dynamic_slice_in_dim(part, left, width, x.ndim - 2)
    top, left = number(top), number(left)
    if min(top, left) < 0 or top + height > x.shape[-3] or left + width > x.shape[-2]:
        raise ValueError(f"tf.image.crop_to_bounding_box: {(top, left, height, width)} is not in {x.shape[-3:-1]}")
    return x[..., top : top + height, left : left + width, :]


def _resize_with_crop_or_pad(x: Array, height: int, width: int) -> Array:
    more = (height - x.shape[-3], width - x.shape[-2])
    top, left = (max(-extra // 2, 0) for extra in more)
    x = _crop_to_box(x, top, left, min(height, x.shape[-3]), min(width, x.shape[-2]))
    top, left = (max(extra // 2, 0) for extra in more)
    return _pad_to_box(x, top, left, height, width)


def _central_crop(x: Array, fraction: Any) -> Array:
    if not 0 < float(fraction) <= 1:
        raise ValueError("central_fraction must be within (0, 1]")
    top, left = (int((size - size * float(fraction)) / 2) for size in x.shape[-3:-1])
    return x[..., top : x.shape[-3] - top, left : x.shape[-2] - left, :]


def _extract_patches(x: Array, sizes: Any, strides: Any, rates: Any, padding: str) -> Array:
    """Return the patches of an image, each as one vector."""
    patches = jax.lax.conv_general_dilated_patches(
        x,
        *(sizes[1:3], strides[1:3], padding.upper()),
        rhs_dilation=rates[1:3],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # whose vectors have channels first
    places = patches.shape[:3]
    return jnp.moveaxis(patches.reshape(*places, x.shape[-1], -1), -1, -2).reshape(*places, -1)


def _crop_and_resize(x: Array, boxes: Array, indices: Array, size: Any, method: str, outside: Any) -> Array:
    """Return the parts of images that lie in boxes, given as fractions, in one size."""
    x = x.astype("float32")

    def positions(first: Array, last: Array, length: int, count: int) -> Array:
        if count == 1:
            return 0.5 * (first + last)[None] * (length - 1)
        return first * (length - 1) + jnp.arange(count) * ((last - first) * (length - 1) / (count - 1))

    def crop(box: Array, index: Array) -> Array:
        rows = positions(box[0], box[2], x.shape[1], size[0])[:, None]
        columns = positions(box[1], box[3], x.shape[2], size[1])[None, :]
        inside = (rows >= 0) & (rows <= x.shape[1] - 1) & (columns >= 0) & (columns <= x.shape[2] - 1)
        at = list(jnp.broadcast_arrays(jnp.clip(rows, 0, x.shape[1] - 1), jnp.clip(columns, 0, x.shape[2] - 1)))
        at = [jnp.floor(where + 0.5) for where in at] if method == "nearest" else at
        sample = jax.vmap(lambda plane: jax.scipy.ndimage.map_coordinates(plane, at, order=1, mode="nearest"), -1, -1)
        return jnp.where(inside[..., None], sample(x[index]), outside)

    return jax.vmap(crop)(boxes, indices)


def _image_gradients(x: Array) -> tuple[Array, Array]:
    """Return the differences to the next row and column, 0 at the end."""
    rows, columns = jnp.diff(x, axis=1), jnp.diff(x, axis=2)
    return jnp.pad(rows, [(0, 0), (0, 1), (0, 0), (0, 0)]), jnp.pad(columns, [(0, 0), (0, 0), (0, 1), (0, 0)])


def _per_image_standardization(x: Array) -> Array:
    x = x.astype("float32")
    count = jnp.asarray(math.prod(x.shape[-3:])).astype("float32")
    spread = jnp.maximum(jnp.std(x, (-3, -2, -1), keepdims=True), jax.lax.rsqrt(count))
    return (x - jnp.mean(x, (-3, -2, -1), keepdims=True)) / spread


def _as_floats(a: Array, b: Array, largest: Any) -> tuple[Array, Array, Array]:
    largest = jnp.asarray(largest).astype(a.dtype)
    a, b, largest = (_convert_dtype(one, "float32", False) for one in (a, b, largest))
    return a, b, largest


def _psnr(a: Array, b: Array, largest: Any) -> Array:
    a, b, largest = _as_floats(a, b, largest)
    error = jnp.mean(jnp.square(a - b), (-3, -2, -1))
    return 20 * jnp.log(largest) / math.log(10) - 10 / math.log(10) * jnp.log(error)


def _ssim(a: Array, b: Array, largest: Any, size: int, sigma: Any, k1: Any, k2: Any) -> Array:
    """Return the structural similarity: luminance times structure, on average."""
    a, b, largest = _as_floats(a, b, largest)
    squares = -0.5 * np.square(np.arange(size) - (size - 1) / 2) / sigma**2
    weights = np.exp(squares[:, None] + squares[None, :])
    kernel = np.tile((weights / weights.sum())[:, :, None, None], [1, 1, a.shape[-1], 1]).astype("float32")

    def average(x: Array) -> Array:
        mean = depthwise(x.reshape(-1, *x.shape[-3:]), kernel, 1, "VALID", None, 1)
        return mean.reshape(*x.shape[:-3], *mean.shape[1:])

    c1, c2 = (k1 * largest) ** 2, (k2 * largest) ** 2
    mean_a, mean_b = average(a), average(b)
    product, squared = 2 * mean_a * mean_b, jnp.square(mean_a) + jnp.square(mean_b)
    structure = (2 * average(a * b) - product + c2) / (average(jnp.square(a) + jnp.square(b)) - squared + c2)
    return jnp.mean((product + c1) / (squared + c1) * structure, (-3, -2, -1))


def _convert_dtype(x: Any, to: Any, saturate: Any) -> Array:
    """Cast an image; what has integers has their whole range, floats have 0 to 1."""
    x = jnp.asarray(x)
    of_integers, to_integers = jnp.issubdtype(x.dtype, jnp.integer), jnp.issubdtype(to, jnp.integer)
    if x.dtype == to:
        return x
    if of_integers and to_integers:
        raise out_of_reach(
            what=f"tf.image.convert_image_dtype from {x.dtype} to {to}",
            why="the drop-in has it from or to floats",
            write="the call in the tf.data pipeline",
        )
    if of_integers:
        return x.astype(to) * (1 / jnp.iinfo(x.dtype).max)
    if not to_integers:
        return x.astype(to)
    scaled = x * (jnp.iinfo(to).max + 0.5)
    if not saturate:
        return scaled.astype(to)
    low, high = max(jnp.iinfo(to).min, float(jnp.finfo(scaled.dtype).min)), jnp.iinfo(to).max
    return jnp.where(scaled >= high, high, jnp.clip(scaled, low, None)).astype(to)


def _on_floats(function: Callable[..., Array]) -> Callable[..., Array]:
    """Let `function` have an image of floats, and return one of the dtype that was given."""

    def call(x: Array, *values: Any) -> Array:
        floats = x.dtype if x.dtype in (jnp.float16, jnp.float32) else "float32"
        return _convert_dtype(function(_convert_dtype(x, floats, False), *values), x.dtype, True)

    return call


def _of_colours(function: Callable[..., Array]) -> Callable[[Array], Array]:
    """Return a function of Keras for images as one for colours in an array of any rank."""
    return lambda x: function(x.reshape(1, -1, 3), data_format="channels_last").reshape(x.shape)


_rgb_to_hsv, _hsv_to_rgb = map(_of_colours, (keras.ops.image.rgb_to_hsv, keras.ops.image.hsv_to_rgb))


def _adjust_contrast(x: Array, factor: Any) -> Array:
    mean = jnp.mean(x, (-3, -2), keepdims=True)
    return (x - mean) * factor + mean


def _adjust_saturation(x: Array, factor: Any) -> Array:
    hue, saturation, value = jnp.moveaxis(_rgb_to_hsv(x), -1, 0)
    return _hsv_to_rgb(jnp.stack([hue, jnp.clip(saturation * factor, 0, 1), value], -1))


def _adjust_hue(x: Array, delta: Any) -> Array:
    hue, saturation, value = jnp.moveaxis(_rgb_to_hsv(x), -1, 0)
    return _hsv_to_rgb(jnp.stack([jnp.mod(hue + delta, 1), saturation, value], -1))


def _rgb_to_grayscale(x: Array) -> Array:
    gray = jnp.sum(_convert_dtype(x, "float32", False) * jnp.asarray([0.2989, 0.587, 0.114]), -1, keepdims=True)
    return _convert_dtype(gray, x.dtype, False)


COLOURS: dict[str, Callable[..., Array]] = {
    "image.adjust_brightness": _on_floats(lambda x, delta: x + delta),
    "image.adjust_contrast": _on_floats(_adjust_contrast),
    "image.adjust_gamma": _on_floats(lambda x, gamma, gain: gain * x**gamma),
    "image.adjust_saturation": _on_floats(_adjust_saturation),
    "image.adjust_hue": _on_floats(_adjust_hue),
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **COLOURS,
    "image.central_crop": _central_crop,
    "image.convert_image_dtype": _convert_dtype,
    "image.crop_and_resize": _crop_and_resize,
    "image.crop_to_bounding_box": _crop_to_box,
    "image.extract_patches": _extract_patches,
    "image.flip_left_right": lambda x: jnp.flip(x, -2),
    "image.flip_up_down": lambda x: jnp.flip(x, -3),
    "image.grayscale_to_rgb": lambda x: jnp.repeat(x, 3, axis=-1),
    "image.hsv_to_rgb": _hsv_to_rgb,
    "image.image_gradients": _image_gradients,
    "image.pad_to_bounding_box": _pad_to_box,
    "image.per_image_standardization": _per_image_standardization,
    "image.psnr": _psnr,
    "image.resize": _resize,
    "image.resize_with_crop_or_pad": _resize_with_crop_or_pad,
    "image.resize_with_pad": _resize_with_pad,
    "image.rgb_to_grayscale": _rgb_to_grayscale,
    "image.rgb_to_hsv": _rgb_to_hsv,
    "image.rot90": lambda x, k: jnp.rot90(x, k, (-3, -2)),
    "image.ssim": _ssim,
    "image.total_variation": lambda x: sum(jnp.sum(absolute(jnp.diff(x, axis=i)), (-3, -2, -1)) for i in (-3, -2)),
    "image.transpose": lambda x: jnp.swapaxes(x, -3, -2),
}
