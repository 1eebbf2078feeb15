"""The functions of `tf.image` without randomness: sizes, places and measures; colours are in colours.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import number, numbers, tensor
from keras_tpu_ext.dropin.functions.colours import convert_image_dtype
from keras_tpu_ext.dropin.functions.elementwise import absolute
from keras_tpu_ext.dropin.functions.nn import depthwise

Array = Any
_METHODS = {"bilinear": "linear", "bicubic": "cubic", "lanczos3": "lanczos3", "lanczos5": "lanczos5"}


def resize(x: Any, size: Any, method: Any, keep_ratio: bool, antialias: bool) -> Array:
    """Resize height and width; the result is float32, unless the method is nearest or there is nothing to do."""
    x, (height, width) = tensor(x), numbers(size)
    if keep_ratio:
        scale = np.minimum(np.float32(height / x.shape[-3]), np.float32(width / x.shape[-2]))
        height, width = (int(np.round(scale * np.float32(x.shape[axis]))) for axis in (-3, -2))
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
    have, want = tensor(x.shape[axis]).astype("float32"), tensor(size).astype("float32")
    indices = jnp.minimum(jnp.floor((jnp.arange(size) + 0.5) * (have / want)), have - 1)
    return jnp.take(x, indices.astype("int32"), axis=axis)


def resize_with_pad(x: Any, height: Any, width: Any, method: Any, antialias: bool) -> Array:
    """Resize without changing the ratio of height and width, and pad with zeros."""
    x, height, width = tensor(x), number(height), number(width)
    ratio = max(x.shape[-2] / width, x.shape[-3] / height)
    inner = (x.shape[-3] / ratio, x.shape[-2] / ratio)
    resized = resize(x, [math.floor(size) for size in inner], method, False, antialias)
    top, left = (max(0, math.floor((want - got) / 2)) for want, got in zip((height, width), inner, strict=True))
    return pad_to_box(resized, top, left, height, width)


def pad_to_box(x: Any, top: Any, left: Any, height: Any, width: Any) -> Array:
    """Put an image into a larger one of zeros."""
    x, top, left, height, width = tensor(x), number(top), number(left), number(height), number(width)
    spaces = [(top, height - top - x.shape[-3]), (left, width - left - x.shape[-2])]
    if min(map(min, spaces)) < 0:
        raise ValueError(f"tf.image.pad_to_bounding_box: {x.shape[-3:-1]} does not fit at {(top, left)}")
    return jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [*spaces, (0, 0)])


def crop_to_box(x: Any, top: Any, left: Any, height: Any, width: Any) -> Array:
    """Return a part of an image, which must lie in it; where it begins may depend on data."""
    x, height, width = tensor(x), number(height), number(width)
    if any(isinstance(at, jax.core.Tracer) for at in (top, left)):
        part = jax.lax.dynamic_slice_in_dim(x, top, height, x.ndim - 3)
        return jax.lax.dynamic_slice_in_dim(part, left, width, x.ndim - 2)
    top, left = number(top), number(left)
    if min(top, left) < 0 or top + height > x.shape[-3] or left + width > x.shape[-2]:
        raise ValueError(f"tf.image.crop_to_bounding_box: {(top, left, height, width)} is not in {x.shape[-3:-1]}")
    return x[..., top : top + height, left : left + width, :]


def resize_with_crop_or_pad(x: Any, height: Any, width: Any) -> Array:
    """Crop or pad on all sides."""
    x, height, width = tensor(x), number(height), number(width)
    more = (height - x.shape[-3], width - x.shape[-2])
    top, left = (max(-extra // 2, 0) for extra in more)
    x = crop_to_box(x, top, left, min(height, x.shape[-3]), min(width, x.shape[-2]))
    top, left = (max(extra // 2, 0) for extra in more)
    return pad_to_box(x, top, left, height, width)


def central_crop(x: Any, fraction: Any) -> Array:
    """Return the centre, a fraction of height and width."""
    x, fraction = tensor(x), float(fraction)
    if not 0 < fraction <= 1:
        raise ValueError("central_fraction must be within (0, 1]")
    top, left = (int((size - size * fraction) / 2) for size in x.shape[-3:-1])
    return x[..., top : x.shape[-3] - top, left : x.shape[-2] - left, :]


def extract_patches(x: Any, sizes: Any, strides: Any, rates: Any, padding: str) -> Array:
    """Return the patches of an image, each as one vector."""
    x = tensor(x)
    sizes, strides, rates = (numbers(value)[1:3] for value in (sizes, strides, rates))
    patches = jax.lax.conv_general_dilated_patches(
        x, sizes, strides, padding.upper(), rhs_dilation=rates, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )  # whose vectors have channels first
    places = patches.shape[:3]
    return jnp.moveaxis(patches.reshape(*places, x.shape[-1], -1), -1, -2).reshape(*places, -1)


def crop_and_resize(x: Any, boxes: Any, indices: Any, size: Any, method: str, outside: Any) -> Array:
    """Return the parts of images that lie in boxes, given as fractions, in one size."""
    x, boxes, indices, size = tensor(x).astype("float32"), tensor(boxes), tensor(indices), numbers(size)

    def positions(first: Array, last: Array, length: int, count: int) -> Array:
        if count == 1:
            return 0.5 * (first + last)[None] * (length - 1)
        return first * (length - 1) + jnp.arange(count) * ((last - first) * (length - 1) / (count - 1))

    def crop(box: Array, index: Array) -> Array:
        rows = positions(box[0], box[2], x.shape[1], size[0])[:, None]
        columns = positions(box[1], box[3], x.shape[2], size[1])[None, :]
        inside = (rows >= 0) & (rows <= x.shape[1] - 1) & (columns >= 0) & (columns <= x.shape[2] - 1)
        at = list(jnp.broadcast_arrays(jnp.clip(rows, 0, x.shape[1] - 1), jnp.clip(columns, 0, x.shape[2] - 1)))
        if method == "nearest":
            at = [jnp.floor(where + 0.5) for where in at]
        sample = jax.vmap(lambda plane: jax.scipy.ndimage.map_coordinates(plane, at, order=1, mode="nearest"), -1, -1)
        return jnp.where(inside[..., None], sample(x[index]), outside)

    return jax.vmap(crop)(boxes, indices)


def total_variation(x: Any) -> Array:
    """Return the sum of the absolute differences of neighbours."""
    x, axes = tensor(x), (-3, -2, -1)
    return sum(jnp.sum(absolute(jnp.diff(x, axis=axis)), axes) for axis in (-3, -2))


def image_gradients(x: Any) -> tuple[Array, Array]:
    """Return the differences to the next row and column, 0 at the end."""
    x = tensor(x)
    rows, columns = jnp.diff(x, axis=1), jnp.diff(x, axis=2)
    return jnp.pad(rows, [(0, 0), (0, 1), (0, 0), (0, 0)]), jnp.pad(columns, [(0, 0), (0, 0), (0, 1), (0, 0)])


def sobel_edges(x: Any) -> Array:
    """Return both edges of each channel, in a new last axis."""
    x = tensor(x)
    rows = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]], x.dtype)
    kernel = np.tile(np.stack([rows, rows.T], -1)[:, :, None], [1, 1, x.shape[-1], 1])
    padded = jnp.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    return depthwise(padded, jnp.asarray(kernel), 1, "VALID", None, 1).reshape(*x.shape, 2)


def per_image_standardization(x: Any) -> Array:
    """Give each image mean 0 and variance 1."""
    x = tensor(x).astype("float32")
    count = tensor(math.prod(x.shape[-3:])).astype("float32")
    mean = jnp.mean(x, (-3, -2, -1), keepdims=True)
    spread = jnp.std(x, (-3, -2, -1), keepdims=True)
    return (x - mean) / jnp.maximum(spread, jax.lax.rsqrt(count))


def psnr(a: Any, b: Any, largest: Any) -> Array:
    """Return the peak signal-to-noise ratio."""
    largest = _as_image_of(largest, tensor(a))
    a, b = convert_image_dtype(a, "float32", False), convert_image_dtype(b, "float32", False)
    error = jnp.mean(jnp.square(a - b), (-3, -2, -1))
    return 20 * jnp.log(largest) / math.log(10) - 10 / math.log(10) * jnp.log(error)


def _as_image_of(value: Any, x: Array) -> Array:
    return convert_image_dtype(tensor(value).astype(x.dtype), "float32", False)


def _similarity(a: Array, b: Array, largest: Any, size: Any, sigma: Any, k1: Any, k2: Any) -> tuple[Array, Array]:
    """Return luminance times structure, and structure, of each place and channel."""
    squares = -0.5 * np.square(np.arange(number(size)) - (number(size) - 1) / 2) / sigma**2
    weights = np.exp(squares[:, None] + squares[None, :])
    kernel = np.tile((weights / weights.sum())[:, :, None, None], [1, 1, a.shape[-1], 1]).astype("float32")

    def average(x: Array) -> Array:
        mean = depthwise(x.reshape(-1, *x.shape[-3:]), jnp.asarray(kernel), 1, "VALID", None, 1)
        return mean.reshape(*x.shape[:-3], *mean.shape[1:])

    c1, c2 = (k1 * largest) ** 2, (k2 * largest) ** 2
    mean_a, mean_b = average(a), average(b)
    product, squared = 2 * mean_a * mean_b, jnp.square(mean_a) + jnp.square(mean_b)
    structure = (2 * average(a * b) - product + c2) / (average(jnp.square(a) + jnp.square(b)) - squared + c2)
    return (product + c1) / (squared + c1) * structure, structure


def ssim(a: Any, b: Any, largest: Any, size: Any, sigma: Any, k1: Any, k2: Any, index_map: bool) -> Array:
    """Return the structural similarity."""
    largest = _as_image_of(largest, tensor(a))
    a, b = convert_image_dtype(a, "float32", False), convert_image_dtype(b, "float32", False)
    similarity, _ = _similarity(a, b, largest, size, sigma, k1, k2)
    return jnp.mean(similarity, -1 if index_map else (-3, -2, -1))


def ssim_multiscale(a: Any, b: Any, largest: Any, powers: Any, size: Any, sigma: Any, k1: Any, k2: Any) -> Array:
    """Return the product of the structural similarities of the images, halved again and again."""
    largest = _as_image_of(largest, tensor(a))
    a, b = convert_image_dtype(a, "float32", False), convert_image_dtype(b, "float32", False)
    product: Any = 1.0
    for scale, power in enumerate(powers):
        a, b = (_halved(a), _halved(b)) if scale else (a, b)
        similarity, structure = _similarity(a, b, largest, size, sigma, k1, k2)
        chosen = jnp.mean(structure if scale < len(powers) - 1 else similarity, (-3, -2))
        product = product * jax.nn.relu(chosen) ** power
    return jnp.mean(product, -1)


def _halved(x: Array) -> Array:
    flat = x.reshape(-1, *x.shape[-3:])
    padded = jnp.pad(flat, [(0, 0), (0, x.shape[-3] % 2), (0, x.shape[-2] % 2), (0, 0)], mode="symmetric")
    half = keras.ops.average_pool(padded, 2, 2, "valid", "channels_last")
    return half.reshape(*x.shape[:-3], *half.shape[1:])


def _transposed(x: Any) -> Array:
    return jnp.swapaxes(tensor(x), -3, -2)


def _choosing_boxes(name: str) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise out_of_reach(
            what=f"tf.image.{name}",
            why="the number of its boxes depends on the data",
            write="the call after predict, on the arrays that it returns",
        )

    return call


_BOXES = ("non_max_suppression", "non_max_suppression_with_scores", "combined_non_max_suppression")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "image.resize": resize,
    "image.resize_with_pad": resize_with_pad,
    "image.resize_with_crop_or_pad": resize_with_crop_or_pad,
    "image.pad_to_bounding_box": pad_to_box,
    "image.crop_to_bounding_box": crop_to_box,
    "image.central_crop": central_crop,
    "image.crop_and_resize": crop_and_resize,
    "image.extract_patches": extract_patches,
    "image.flip_left_right": lambda x: jnp.flip(tensor(x), -2),
    "image.flip_up_down": lambda x: jnp.flip(tensor(x), -3),
    "image.rot90": lambda x, k: jnp.rot90(tensor(x), number(k), (-3, -2)),
    "image.transpose": _transposed,
    "image.total_variation": total_variation,
    "image.image_gradients": image_gradients,
    "image.sobel_edges": sobel_edges,
    "image.per_image_standardization": per_image_standardization,
    "image.psnr": psnr,
    "image.ssim": ssim,
    "image.ssim_multiscale": ssim_multiscale,
    **{f"image.{name}": _choosing_boxes(name) for name in _BOXES},
}
