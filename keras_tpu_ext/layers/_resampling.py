"""Images between pixels: each line moved by an amount of its own, and all of them scaled.

Places and amounts are whole numbers, in 256ths of a pixel, so that they are the same on every runtime and device to
the last bit. What lies between two pixels is on the straight line between them, and beyond the border are zeros.
"""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime

ops = _runtime.ops

PARTS = 256  # of a pixel: what weighs two neighbours has 8 bits then, which matrix units multiply exactly


def sheared(images: Any, amounts: Any, most: int, axis: int) -> Any:
    """Return images in which pixel `i` of each line shows what was at `i + most` and its amount further.

    The largest amount is halved again and again: at each half every line moves so far or does not. So nothing is
    gathered.

    Args:
        images: Of shape `(batch, height, width, channels)`.
        amounts: In 256ths of a pixel, of dtype `int32` and shape `(batch, lines)`; lines are rows for axis 2, and
            columns for axis 1.
        most: The largest amount to either side, in pixels; the images become smaller by twice as much.
        axis: Along which they move, 1 or 2.
    """
    offsets = ops.expand_dims(ops.expand_dims(amounts + most * PARTS, axis), 3)
    pixels, part = offsets // PARTS, offsets % PARTS
    one = [[0, 0], [0, 1]] if axis == 2 else [[0, 1], [0, 0]]
    images = ops.pad(images, [[0, 0], *one, [0, 0]])  # the neighbour of the last pixel
    left = 2 * most
    while left:
        step = (left + 1) // 2
        images = ops.where(pixels >= step, _from(images, step, axis), _up_to(images, step, axis))
        pixels = ops.where(pixels >= step, pixels - step, pixels)
        left -= step
    return _between(_up_to(images, 1, axis), _from(images, 1, axis), part)


def scaled(images: Any, rows: Any, columns: Any) -> Any:
    """Return images whose rows and columns show what was at other places.

    Args:
        images: Of shape `(batch, height, width, channels)`, finite.
        rows: For each row of the outputs its place among those of `images`, in 256ths, of shape `(batch, rows)`.
        columns: The same of columns.
    """
    rows, columns = _weights(rows, images.shape[1]), _weights(columns, images.shape[2])
    return _runtime.ops.one_hot_einsum(images, ("bih,bhwc->biwc", rows), ("bjw,biwc->bijc", columns))


def _weights(places: Any, size: int) -> Any:
    """Return how much of each of `size` pixels there is at each place: of all but two of them nothing."""
    pixel, part = ops.expand_dims(places // PARTS, -1), ops.expand_dims(places % PARTS, -1)
    numbers = ops.arange(size, dtype="int32")
    lower = ops.where(ops.equal(numbers, pixel), PARTS - part, ops.zeros_like(part))
    upper = ops.where(ops.equal(numbers, pixel + 1), part, ops.zeros_like(part))
    return ops.cast(lower + upper, "float32") / PARTS


def _between(lower: Any, upper: Any, part: Any) -> Any:
    """Return what is `part` 256ths of the way from one image to the other, in their dtype."""
    if "uint8" in str(lower.dtype):
        lower, upper = ops.cast(lower, "int32"), ops.cast(upper, "int32")
        return ops.cast((lower * (PARTS - part) + upper * part + PARTS // 2) // PARTS, "uint8")
    wide = lower.dtype if "float64" in str(lower.dtype) else "float32"
    part = ops.cast(part, wide) / PARTS
    return ops.cast((1 - part) * ops.cast(lower, wide) + part * ops.cast(upper, wide), lower.dtype)


def _from(images: Any, first: int, axis: int) -> Any:
    return images[:, first:] if axis == 1 else images[:, :, first:]


def _up_to(images: Any, last: int, axis: int) -> Any:
    return images[:, :-last] if axis == 1 else images[:, :, :-last]
