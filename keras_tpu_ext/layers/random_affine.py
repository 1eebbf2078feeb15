"""Random rotation, zoom, shear and translation of images, in the compiled step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.layers._augmentation import Augmentation, interpolate
from keras_tpu_ext.layers._random import one_hot_lookup, randint

ops = _runtime.ops

_NUM_ANGLES = 1024
_ONE = 1 << 14  # slopes and scales are fixed-point numbers, of which this is 1
_SUBPIXELS = 256  # of a pixel: weights of two neighbours have 8 bits, which matrix units multiply exactly
_MAX_SIZE = 4096  # pixels: above that, positions would need more than 32 bits


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class RandomAffine(Augmentation):
    """Rotates, zooms, shears, moves and flips images about their centre, each by its own amounts.

    It runs in the compiled step, on the device: every shape is static, there is no loop, and nothing is gathered. A
    rotation is a shear of the rows, a scaling, and a shear of the columns: lines are moved in steps, each half of the
    one before, and scaled by matrix products, which a TPU does many times faster than gathering pixels
    (docs/layers.md).

    Random numbers are those of `RandomFlipCrop`: the same at any number of replicas, on every framework and device.
    Without `training=True` the layer returns its inputs.

    The amounts mean the same as in Keras's `RandomShear`, `RandomRotation`, `RandomZoom` and `RandomTranslation`, and
    are applied in this order, with the flips after the rotation. Images keep their dtype, also under a mixed
    precision policy; on a TPU `uint8` ones cost least. Pixels from beyond the border are 0. Positions are accurate to
    a twentieth of a pixel at 224 x 224. Between pixels the layer interpolates along one axis after the other, four
    times if it rotates (Keras once, in both), and rounds `uint8` each time. One number that is infinite or NaN spoils
    the image. Images that are many times as high as wide take much memory: they are padded by the shift of their top
    row.

    Source of the three parts: Catmull and Smith, 3-D transformations of images in scanline order, SIGGRAPH 1980,
    https://doi.org/10.1145/800250.807505, here with a separate scaling.

    Args:
        rotation: Largest angle to either side as a fraction of a full turn, up to 0.5. Defaults to 0.05, which is 18
            degrees. Above 0.125 images must be square, because some exchange height and width.
        zoom: Images show between `1 - zoom` and `1 + zoom` of their height and width; at most 0.99. Defaults to 0.1.
        shear: Largest shift of rows to either side, as a fraction of their distance from the centre, up to 1.
            Defaults to 0.0.
        translation: Largest shift of images to either side, as a fraction of their height and width, up to 1.
            Defaults to 0.1.
        horizontal: Whether to flip left and right, with probability 1/2. Defaults to `True`.
        vertical: Whether to flip top and bottom, with probability 1/2. Defaults to `False`.
        seed: Integer from 0 to 2**32 - 1, or `None` (default) to draw one when the layer is made; it is saved with
            the layer.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`, finite floats or `uint8`.
        training: Whether to transform the images.

    Raises:
        ArgumentError: If an option is invalid, or `seed` is `None` and several processes train together; when it is
            called, if the inputs are not such images, or not square for a `rotation` above 0.125.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        inputs = keras.Input((32, 32, 3), dtype="uint8")
        x = kte.layers.RandomAffine(rotation=0.04, zoom=0.1, translation=0.1, seed=0)(inputs)
        x = keras.layers.Rescaling(1 / 255)(x)
        model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(x)))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), "uint8")
        model.fit(images, np.arange(64) % 10)
        ```
    """

    _first_draw = 4 << 16
    _options = ("rotation", "zoom", "shear", "translation", "horizontal", "vertical")

    def __init__(
        self,
        *,
        rotation: float = 0.05,
        zoom: float = 0.1,
        shear: float = 0.0,
        translation: float = 0.1,
        horizontal: bool = True,
        vertical: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed=seed, **kwargs)
        self.rotation = self._option("rotation", rotation, 0.5, "a fraction of a full turn", 0.05)
        self.zoom = self._option("zoom", zoom, 0.99, "a part of the height and width", 0.1)
        self.shear = self._option("shear", shear, 1.0, "a part of the distance from the middle", 0.1)
        self.translation = self._option("translation", translation, 1.0, "a part of the height and width", 0.1)
        self.horizontal, self.vertical = bool(horizontal), bool(vertical)

    def _augment(self, images: Any) -> Any:
        """Return images whose pixel `p` was at `rows(scales(columns(turn(p + moves))))` before, from the centre.

        That is `[1 m; 0 1] [w 0; 0 h] [1 0; k 1]` and quarters of a turn. A rotation by up to 45 degrees has
        `m = -tan`, `w = 1 / cos`, `h = cos` and `k = tan`.
        """
        _, height, width, _ = images.shape
        angles = _angle_table(self.rotation)
        drawn = self._draw(angles, ops.shape(images)[0], height, width)
        margin_x = _max_offset(angles.steepest + round(self.shear * _ONE), height)
        margin_y = _max_offset(angles.steepest, width)

        if margin_x:
            images = ops.pad(images, [[0, 0], [0, 0], [2 * margin_x, 2 * margin_x], [0, 0]])
            images = _shear(images, _slope_offsets(drawn.rows, height), margin_x, axis=2)
        (of_rows, of_columns), (down, right) = drawn.scales, drawn.moves
        rows = _slope_offsets(of_rows, height + 2 * margin_y) + _center(down, height)
        columns = _slope_offsets(of_columns, width) + _center(right, width + 2 * margin_x)
        weights = _weights(rows, images.shape[1]), _weights(columns, images.shape[2])
        images = ops.one_hot_einsum(images, ("bih,bhwc->biwc", weights[0]), ("bjw,biwc->bijc", weights[1]))
        if margin_y:
            images = _shear(images, _slope_offsets(drawn.columns, width), margin_y, axis=1)
        if not angles.odd.any():
            return images
        transposed = ops.transpose(images, (0, 2, 1, 3))
        return ops.where(ops.reshape(drawn.is_transposed, (-1, 1, 1, 1)), transposed, images)

    def _draw(self, angles: _AngleTable, count: Any, height: int, width: int) -> _Transforms:
        """Draw the transform of each of `count` examples."""
        bits = self._random_bits(count, 7)
        angle = randint(bits[0], _NUM_ANGLES)
        tangent = one_hot_lookup(angles.tangents, angle)
        is_transposed = ops.equal(one_hot_lookup(angles.odd, angle), 1)
        signs = self._flips(bits[1:3], is_transposed)
        signs = [sign * one_hot_lookup(table, angle) for sign, table in zip(signs, angles.signs, strict=True)]
        zoom = _ONE + _symmetric(bits[3], round(self.zoom * _ONE))
        scales = [zoom * one_hot_lookup(table, angle) // _ONE for table in angles.scales]
        of_rows, of_columns = (sign * scale for sign, scale in zip(signs, scales, strict=True))
        columns = signs[0] * signs[1] * tangent
        # The translation comes last: to move the images here, everything that follows must be applied to it.
        down, right = (
            _symmetric(one, 2048) * round(self.translation * size * _SUBPIXELS) // 2048
            for one, size in zip(bits[5:], (height, width), strict=True)
        )
        down, right = ops.where(is_transposed, right, down), ops.where(is_transposed, down, right)
        return _Transforms(
            rows=_symmetric(bits[4], round(self.shear * _ONE)) - tangent,
            scales=[of_rows, of_columns],
            columns=columns,
            moves=[
                _fixed_point_product(of_rows, down + _fixed_point_product(columns, right)),
                _fixed_point_product(of_columns, right),
            ],
            is_transposed=is_transposed,
        )

    def _flips(self, bits: Sequence[Any], is_transposed: Any) -> list[Any]:
        """Return the signs of rows and of columns, before the transposition."""
        ones = ops.cast(ops.ones_like(bits[0]), "int32")
        vertical = ones - 2 * randint(bits[0], 2) if self.vertical else ones
        horizontal = ones - 2 * randint(bits[1], 2) if self.horizontal else ones
        return [ops.where(is_transposed, horizontal, vertical), ops.where(is_transposed, vertical, horizontal)]

    def _check_images(self, shape: Sequence[Any], dtype: Any = "float32") -> None:
        super()._check_images(shape, dtype)
        caller, (height, width) = type(self).__name__, shape[1:3]
        if height != width and self.rotation > 0.125:
            needed = "square images for a rotation above 0.125, an eighth of a turn"
            got = f"height {height}, width {width} and rotation={self.rotation}"
            raise check.argument_error(caller, "inputs", needed, got, "rotation=0.125, or cut them square first")
        if max(height, width) >= _MAX_SIZE:
            needed, got = f"below {_MAX_SIZE} pixels high and wide", f"height {height} and width {width}"
            write = "tf.image.resize(images, (224, 224)) in the pipeline"
            raise check.argument_error(caller, "inputs", needed, got, write)

    def _option(self, name: str, value: Any, maximum: float, what: str, example: float) -> float:
        return check.number(type(self).__name__, name, value, minimum=0, maximum=maximum, what=what, example=example)


class _AngleTable(NamedTuple):
    """Tables with an entry for each angle, split into quarter turns and a rotation by up to 45 degrees."""

    tangents: np.ndarray  # of the rotation, in fixed point
    # Of rows and of columns, likewise: the cosine of the rotation, and its reciprocal.
    scales: tuple[np.ndarray, np.ndarray]
    signs: tuple[np.ndarray, np.ndarray]  # of rows and of columns, by the quarter turns
    odd: np.ndarray  # 1 for an odd number of quarter turns
    steepest: int  # the largest tangent


class _Transforms(NamedTuple):
    """The transform of each example, as numbers of dtype `int32`."""

    rows: Any  # the slope of rows, in fixed point
    scales: list[Any]  # of rows and of columns, likewise, with their signs
    columns: Any  # the slope of columns, likewise
    moves: list[Any]  # translation down and to the right in the image before it is scaled, in 256ths of a pixel
    is_transposed: Any  # whether height and width are exchanged


def _angle_table(rotation: float) -> _AngleTable:
    """Return the tables of angles up to `rotation` of a turn to either side."""
    turns = rotation * ((2 * np.arange(_NUM_ANGLES) + 1) / _NUM_ANGLES - 1)
    quarters = np.rint(4 * turns).astype("int32")
    rest = 2 * math.pi * (turns - quarters / 4)
    tangents, cosines, secants = (
        np.rint(_ONE * values).astype("int32") for values in (np.tan(rest), np.cos(rest), 1 / np.cos(rest))
    )
    # A quarter turn maps (x, y) to (-y, x): it exchanges height and width, then changes the sign of the columns.
    rows, columns = (np.where(np.isin(quarters % 4, of), -1, 1).astype("int32") for of in ((2, 3), (1, 2)))
    return _AngleTable(tangents, (cosines, secants), (rows, columns), quarters % 2, int(np.abs(tangents).max()))


def _symmetric(bits: Any, maximum: int) -> Any:
    """Return a random integer from `-maximum` to `maximum`, which is below 32768."""
    return randint(bits, 2 * maximum + 1) - maximum


def _fixed_point_product(scale: Any, amounts: Any) -> Any:
    """Return `scale * amounts // _ONE` in 32 bits, although the product itself does not fit in them."""
    root = 128  # of `_ONE`
    return (scale // root * amounts + scale % root * amounts // root) // root


def _slope_offsets(slope: Any, size: int) -> Any:
    """Return the slope times the distance from the centre of each of `size` positions, in 256ths of a pixel."""
    twice = 2 * ops.arange(size, dtype="int32") - (size - 1)
    return ops.expand_dims(slope, 1) * twice // (2 * _ONE // _SUBPIXELS)


def _center(offset: Any, size: int) -> Any:
    """Return the centre of `size` positions plus an offset, in 256ths of a pixel, of shape `(batch, 1)`."""
    return ops.expand_dims(offset, 1) + (size - 1) * _SUBPIXELS // 2


def _max_offset(slope: int, size: int) -> int:
    """Return the largest offset in pixels that a slope gives any of `size` positions."""
    return -(-slope * (size - 1) // (2 * _ONE))


def _shear(images: Any, amounts: Any, max_amount: int, axis: int) -> Any:
    """Return images in which pixel `i` along `axis` of each line is that of `i + max_amount + amount` before.

    The amounts, of shape `(batch, lines)`, are in 256ths of a pixel, `max_amount` in pixels. It halves the largest
    amount repeatedly, and moves each line by that half or not: nothing is gathered.
    """
    offsets = ops.expand_dims(ops.expand_dims(amounts + max_amount * _SUBPIXELS, axis), 3)
    pixels, part = offsets // _SUBPIXELS, offsets % _SUBPIXELS
    images = ops.pad(images, [[0, int(i == axis)] for i in range(4)])  # the neighbour of the last pixel
    remaining = 2 * max_amount
    while remaining:
        step = (remaining + 1) // 2
        images = ops.where(pixels >= step, _crop(images, slice(step, None), axis), _crop(images, slice(-step), axis))
        pixels = ops.where(pixels >= step, pixels - step, pixels)
        remaining -= step
    return _between(_crop(images, slice(-1), axis), _crop(images, slice(1, None), axis), part)


def _weights(positions: Any, size: int) -> Any:
    """Return the interpolation weights of `size` pixels for each position: all but two are 0."""
    pixel, part = ops.expand_dims(positions // _SUBPIXELS, -1), ops.expand_dims(positions % _SUBPIXELS, -1)
    numbers = ops.arange(size, dtype="int32")
    lower = ops.where(ops.equal(numbers, pixel), _SUBPIXELS - part, ops.zeros_like(part))
    upper = ops.where(ops.equal(numbers, pixel + 1), part, ops.zeros_like(part))
    return ops.cast(lower + upper, "float32") / _SUBPIXELS


def _between(lower: Any, upper: Any, part: Any) -> Any:
    """Interpolate between two images at `part` 256ths of the way, in their dtype."""
    if "uint8" in str(lower.dtype):
        lower, upper = ops.cast(lower, "int32"), ops.cast(upper, "int32")
        return ops.cast((lower * (_SUBPIXELS - part) + upper * part + _SUBPIXELS // 2) // _SUBPIXELS, "uint8")
    return interpolate(ops.cast(_SUBPIXELS - part, "float32") / _SUBPIXELS, lower, upper)


def _crop(images: Any, part: slice, axis: int) -> Any:
    return images[:, part] if axis == 1 else images[:, :, part]
