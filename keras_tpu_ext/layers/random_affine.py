"""Random rotation, zoom, shear and translation of images, in the compiled step."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers._augmentation import Augmentation
from keras_tpu_ext.layers._random import below, look_up
from keras_tpu_ext.layers._resampling import PARTS, scaled, sheared

ops = _runtime.ops

_ANGLES = 1024
_ONE = 1 << 14  # slopes and scales are whole numbers, of which so many are 1
_LARGEST = 4096  # pixels: above them places would need more than 32 bits


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class RandomAffine(Augmentation):
    """Rotates, zooms, shears, moves and flips images about their middle, each by amounts of its own.

    It runs in the compiled step, on the device: every shape is static, there is no loop, and nothing is gathered. A
    rotation is a shear of the rows, a scaling, and a shear of the columns: lines are moved by half of the way again
    and again, and scaled by products, which a TPU does many times faster than it gathers pixels (docs/layers.md).

    What an example gets depends on the seed, on how many calls with `training=True` there were before, and on its
    number in the whole batch: not on the number of replicas, the size of the batch, the framework, or the device. The
    number of calls is a weight, so that a model that was saved goes on with other numbers. Without `training=True` it
    returns its inputs.

    The numbers mean what they mean in Keras's `RandomShear`, `RandomRotation`, `RandomZoom` and `RandomTranslation`,
    and are used in this order, with the flips after the rotation. Images keep their dtype, also under a mixed
    precision policy; on a TPU `uint8` ones cost least. What comes from beyond the border is 0. Places are right to a
    twentieth of a pixel at 224 x 224. Between pixels it interpolates along one axis after the other, four times where
    it rotates (Keras once, in both), and rounds `uint8` each time. One number that is infinite or NaN spoils the
    image. Images that are many times as high as wide take much memory: they are padded by the way of their uppermost
    row.

    Source of the three parts: Catmull and Smith, 3-D transformations of images in scanline order, SIGGRAPH 1980,
    https://doi.org/10.1145/800250.807505, here with the scaling on its own.

    Args:
        rotation: Largest angle to either side as a fraction of a full turn, up to 0.5. Defaults to 0.05, which is 18
            degrees. Above 0.125 images must be square, because some change their height for their width.
        zoom: Images show between `1 - zoom` and `1 + zoom` of their height and width; at most 0.99. Defaults to 0.1.
        shear: How far rows are moved to either side at most, as a part of their distance from the middle, up to 1.
            Defaults to 0.0.
        translation: How far images are moved to either side at most, as a part of their height and width, up to 1.
            Defaults to 0.1.
        horizontal: Whether to flip left and right, with probability 1/2. Defaults to `True`.
        vertical: Whether to flip top and bottom, with probability 1/2. Defaults to `False`.
        seed: Whole number from 0 to 2**32 - 1, or `None` (default) for one that is drawn when the layer is made and
            saved with it.
        **kwargs: As for every layer.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`, finite floats or `uint8`.
        training: Whether to draw.

    Raises:
        ArgumentError: If an option has no value that can work, or `seed` is `None` where several processes train
            together; when it is called, if the inputs are no such images, or not square for a `rotation` above 0.125.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte

        inputs = keras.Input((32, 32, 3), dtype="uint8")
        x = kte.layers.RandomAffine(rotation=0.04, zoom=0.1, translation=0.1, seed=0)(inputs)
        x = keras.layers.Rescaling(1 / 255)(x)
        model = keras.Model(inputs, keras.layers.Conv2D(16, 3)(x))
        ```
    """

    first_draw = 4 << 16

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
        self.rotation = self._number("rotation", rotation, 0.5, "a fraction of a full turn", 0.05)
        self.zoom = self._number(
            "zoom", zoom, 0.99, "how much more or less of their height and width images show", 0.1
        )
        self.shear = self._number("shear", shear, 1.0, "a part of the distance from the middle", 0.1)
        self.translation = self._number("translation", translation, 1.0, "a part of the height and width", 0.1)
        self.horizontal, self.vertical = bool(horizontal), bool(vertical)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the images, transformed."""
        inputs = self.known(inputs)
        self._check_sizes(tuple(inputs.shape))
        return self._transformed(inputs) if training else inputs

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return the shape of the inputs."""
        shape = tuple(input_shape)
        self.check_images(shape)
        self._check_sizes(shape)
        return shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = ("rotation", "zoom", "shear", "translation", "horizontal", "vertical")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}

    def _transformed(self, images: Any) -> Any:
        """Return images in which what is at `p` was at `rows(scales(columns(turn(p + moves))))`, from the middle.

        That is `[1 m; 0 1] [w 0; 0 h] [1 0; k 1]` and quarters of a turn. A rotation by up to 45 degrees has
        `m = -tan`, `w = 1 / cos`, `h = cos` and `k = tan`.
        """
        _, height, width, _ = images.shape
        angles = _angles(self.rotation)
        drawn = self._drawn(angles, ops.shape(images)[0], height, width)
        margin_x = _reach(angles.steepest + round(self.shear * _ONE), height)
        margin_y = _reach(angles.steepest, width)

        if margin_x:
            images = ops.pad(images, [[0, 0], [0, 0], [2 * margin_x, 2 * margin_x], [0, 0]])
            images = sheared(images, _from_middle(drawn.rows, height), margin_x, axis=2)
        (of_rows, of_columns), (down, right) = drawn.scales, drawn.moves
        rows = _from_middle(of_rows, height + 2 * margin_y) + _middle(down, height)
        columns = _from_middle(of_columns, width) + _middle(right, width + 2 * margin_x)
        images = scaled(images, rows, columns)
        if margin_y:
            images = sheared(images, _from_middle(drawn.columns, width), margin_y, axis=1)
        if not angles.odd.any():
            return images
        transposed = ops.transpose(images, (0, 2, 1, 3))
        return ops.where(ops.reshape(drawn.is_transposed, (-1, 1, 1, 1)), transposed, images)

    def _drawn(self, angles: _Angles, count: Any, height: int, width: int) -> _Drawn:
        """Return what each of `count` examples draws."""
        words = self.draw(count, 7)
        angle = below(words[0], _ANGLES)
        tangent, is_transposed = look_up(angles.tangents, angle), ops.equal(look_up(angles.odd, angle), 1)
        signs = self._flips(words[1:3], is_transposed)
        signs = [sign * look_up(table, angle) for sign, table in zip(signs, angles.signs, strict=True)]
        zoom = _ONE + _symmetric(words[3], round(self.zoom * _ONE))
        scales = [zoom * look_up(table, angle) // _ONE for table in angles.scales]
        of_rows, of_columns = (sign * scale for sign, scale in zip(signs, scales, strict=True))
        columns = signs[0] * signs[1] * tangent
        # They move when all else is done, so what moves them here goes through all that comes after.
        down, right = (
            _symmetric(word, 2048) * round(self.translation * size * PARTS) // 2048
            for word, size in zip(words[5:], (height, width), strict=True)
        )
        down, right = ops.where(is_transposed, right, down), ops.where(is_transposed, down, right)
        return _Drawn(
            rows=_symmetric(words[4], round(self.shear * _ONE)) - tangent,
            scales=[of_rows, of_columns],
            columns=columns,
            moves=[_times(of_rows, down + _times(columns, right)), _times(of_columns, right)],
            is_transposed=is_transposed,
        )

    def _flips(self, words: Sequence[Any], is_transposed: Any) -> list[Any]:
        """Return the signs of rows and of columns, before the image changes its height for its width."""
        ones = ops.cast(ops.ones_like(words[0]), "int32")
        vertical = ones - 2 * below(words[0], 2) if self.vertical else ones
        horizontal = ones - 2 * below(words[1], 2) if self.horizontal else ones
        return [ops.where(is_transposed, horizontal, vertical), ops.where(is_transposed, vertical, horizontal)]

    def _check_sizes(self, shape: tuple[Any, ...]) -> None:
        """Refuse sizes that cannot be transformed."""
        owner, (height, width) = type(self).__name__, shape[1:3]
        if height != width and self.rotation > 0.125:
            raise ArgumentError(
                f"images must be square for a rotation above 0.125, an eighth of a turn; they came with height "
                f"{height}, width {width} and rotation={self.rotation}. Write: {owner}(rotation=0.125), or cut them "
                "square first"
            )
        if max(height, width) >= _LARGEST:
            raise ArgumentError(
                f"images must be below {_LARGEST} pixels high and wide; they came with height {height} and width "
                f"{width}. Write: tf.image.resize(images, (224, 224)) in the pipeline"
            )

    def _number(self, name: str, value: Any, most: float, of: str, write: float) -> float:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= most:
            raise ArgumentError(
                f"{name} must be {of}, a number from 0 to {most}; it came as {value!r}. "
                f"Write: {type(self).__name__}({name}={write})"
            )
        return float(value)


class _Angles(NamedTuple):
    """What belongs to each angle: a quarter of a turn, several or none, and a rotation by up to 45 degrees.

    Attributes:
        tangents: Of the rest, in parts of `_ONE`.
        scales: Of rows and of columns, likewise: the cosine of the rest, and one by it.
        signs: Of rows and of columns, by the quarters.
        odd: 1 for an odd number of quarters.
        steepest: The largest tangent.
    """

    tangents: np.ndarray
    scales: tuple[np.ndarray, np.ndarray]
    signs: tuple[np.ndarray, np.ndarray]
    odd: np.ndarray
    steepest: int


class _Drawn(NamedTuple):
    """What the examples draw, a number of dtype `int32` for each.

    Attributes:
        rows: The slope of rows, in parts of `_ONE`.
        scales: Of rows and of columns, likewise, with their signs.
        columns: The slope of columns, likewise.
        moves: Down and to the right in the image before it is scaled, in 256ths of a pixel.
        is_transposed: Whether the image changes its height for its width.
    """

    rows: Any
    scales: list[Any]
    columns: Any
    moves: list[Any]
    is_transposed: Any


def _angles(rotation: float) -> _Angles:
    """Return what belongs to each of the angles up to `rotation` of a turn to either side."""
    turns = rotation * ((2 * np.arange(_ANGLES) + 1) / _ANGLES - 1)
    quarters = np.rint(4 * turns).astype("int32")
    rest = 2 * math.pi * (turns - quarters / 4)
    tangents, cosines, secants = (
        np.rint(_ONE * values).astype("int32") for values in (np.tan(rest), np.cos(rest), 1 / np.cos(rest))
    )
    # A quarter of a turn leads from (x, y) to (-y, x): height for width, and then the sign of the columns.
    rows, columns = (np.where(np.isin(quarters % 4, of), -1, 1).astype("int32") for of in ((2, 3), (1, 2)))
    return _Angles(tangents, (cosines, secants), (rows, columns), quarters % 2, int(np.abs(tangents).max()))


def _symmetric(word: Any, most: int) -> Any:
    """Return a whole number from `-most` to `most`, which is below 32768."""
    return below(word, 2 * most + 1) - most


def _times(scale: Any, amounts: Any) -> Any:
    """Return `scale * amounts // _ONE`, for which 32 bits do where they do not for the product."""
    root = 128  # of `_ONE`
    return (scale // root * amounts + scale % root * amounts // root) // root


def _from_middle(slope: Any, size: int) -> Any:
    """Return for each of `size` places the slope by its distance from the middle, in 256ths of a pixel."""
    twice = 2 * ops.arange(size, dtype="int32") - (size - 1)
    return ops.expand_dims(slope, 1) * twice // (2 * _ONE // PARTS)


def _middle(moved_by: Any, size: int) -> Any:
    """Return the place of the middle of `size` places, moved, in 256ths of a pixel, of shape `(batch, 1)`."""
    return ops.expand_dims(moved_by, 1) + (size - 1) * PARTS // 2


def _reach(slope: int, size: int) -> int:
    """Return how many pixels the outermost of `size` places are moved by a slope, at most."""
    return -(-slope * (size - 1) // (2 * _ONE))
