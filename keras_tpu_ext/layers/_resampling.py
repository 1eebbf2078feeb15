"""Resampling of images by linear interpolation: a shear of the lines, and a scaling.

Positions and amounts are integers, in 256ths of a pixel, so that they are bitwise identical on every runtime and
device. Pixels beyond the border are zero.
"""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime

ops = _runtime.ops

SUBPIXELS = 256  # of a pixel: weights of two neighbours have 8 bits, which matrix units multiply exactly


def shear(images: Any, amounts: Any, max_amount: int, axis: int) -> Any:
    """Return images in which pixel `i` of each line is that of `i + max_amount + amount` before.

    It halves the largest amount repeatedly, and moves each line by that half or not: nothing is gathered.

    Args:
        images: Of shape `(batch, height, width, channels)`.
        amounts: In 256ths of a pixel, of dtype `int32` and shape `(batch, lines)`; lines are rows for axis 2, and
            columns for axis 1.
        max_amount: The largest amount to either side, in pixels; the images become smaller by twice as much.
        axis: Axis along which they move, 1 or 2.
    """
    offsets = ops.expand_dims(ops.expand_dims(amounts + max_amount * SUBPIXELS, axis), 3)
    pixels, part = offsets // SUBPIXELS, offsets % SUBPIXELS
    one = [[0, 0], [0, 1]] if axis == 2 else [[0, 1], [0, 0]]
    images = ops.pad(images, [[0, 0], *one, [0, 0]])  # the neighbour of the last pixel
    remaining = 2 * max_amount
    while remaining:
        step = (remaining + 1) // 2
        images = ops.where(pixels >= step, _drop_first(images, step, axis), _drop_last(images, step, axis))
        pixels = ops.where(pixels >= step, pixels - step, pixels)
        remaining -= step
    return _interpolate(_drop_last(images, 1, axis), _drop_first(images, 1, axis), part)


def scale(images: Any, rows: Any, columns: Any) -> Any:
    """Return images whose rows and columns are taken from other positions.

    Args:
        images: Of shape `(batch, height, width, channels)`, finite.
        rows: For each row of the outputs its position in `images`, in 256ths of a pixel, of shape `(batch, rows)`.
        columns: Likewise.
    """
    rows, columns = _weights(rows, images.shape[1]), _weights(columns, images.shape[2])
    return _runtime.ops.one_hot_einsum(images, ("bih,bhwc->biwc", rows), ("bjw,biwc->bijc", columns))


def _weights(places: Any, size: int) -> Any:
    """Return the interpolation weights of `size` pixels for each position: all but two are 0."""
    pixel, part = ops.expand_dims(places // SUBPIXELS, -1), ops.expand_dims(places % SUBPIXELS, -1)
    numbers = ops.arange(size, dtype="int32")
    lower = ops.where(ops.equal(numbers, pixel), SUBPIXELS - part, ops.zeros_like(part))
    upper = ops.where(ops.equal(numbers, pixel + 1), part, ops.zeros_like(part))
    return ops.cast(lower + upper, "float32") / SUBPIXELS


def _interpolate(lower: Any, upper: Any, part: Any) -> Any:
    """Interpolate between two images at `part` 256ths of the way, in their dtype."""
    if "uint8" in str(lower.dtype):
        lower, upper = ops.cast(lower, "int32"), ops.cast(upper, "int32")
        return ops.cast((lower * (SUBPIXELS - part) + upper * part + SUBPIXELS // 2) // SUBPIXELS, "uint8")
    wide = lower.dtype if "float64" in str(lower.dtype) else "float32"
    part = ops.cast(part, wide) / SUBPIXELS
    return ops.cast((1 - part) * ops.cast(lower, wide) + part * ops.cast(upper, wide), lower.dtype)


def _drop_first(images: Any, count: int, axis: int) -> Any:
    return images[:, count:] if axis == 1 else images[:, :, count:]


def _drop_last(images: Any, count: int, axis: int) -> Any:
    return images[:, :-count] if axis == 1 else images[:, :, :-count]
