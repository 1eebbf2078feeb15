"""Random erasing of a rectangle of images, in the compiled step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.layers._augmentation import Augmentation, range_mask
from keras_tpu_ext.layers._random import one_hot_lookup, randint, uniform

ops = _runtime.ops

_LEVELS = 64  # of the area, and of the aspect ratio


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class RandomErasing(Augmentation):
    """Erases a rectangle of some images, with a random area, aspect ratio and position for each.

    It runs in the compiled step, on the device: every shape is static, there is no loop, and nothing is sliced.
    Random numbers are those of `RandomFlipCrop`: the same at any number of replicas, on every framework and device.
    Without `training=True` the layer returns its inputs.

    Source: Zhong et al., Random Erasing Data Augmentation, 2017, algorithm 1, https://arxiv.org/abs/1708.04896.
    Instead of its loop, which draws until a rectangle fits, sizes are drawn from a list of all that fit, made of 64
    areas and 64 aspect ratios when the size of the images is known; then the position is drawn from all in which the
    rectangle is wholly inside the image. Aspect ratios are spread evenly by their logarithm (in the paper by
    themselves), so that upright rectangles are as frequent as lying ones.

    Args:
        probability: Probability that a rectangle of an image is erased. Defaults to 0.5.
        scale: Smallest and largest area, as a fraction of that of the image. Defaults to `(0.02, 0.33)`.
        ratio: Smallest and largest ratio of height to width. Defaults to `(0.3, 3.3)`.
        value: The value to fill in: a number, or one for each channel. Defaults to 0.0.
        seed: Integer from 0 to 2**32 - 1, or `None` (default) to draw one when the layer is made; it is saved with
            the layer.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`, floats or `uint8`; they keep their dtype, also
            under a mixed precision policy.
        training: Whether to erase.

    Raises:
        ArgumentError: If an option is invalid, or `seed` is `None` and several processes train together; when it is
            called, if the inputs are not such images, no rectangle fits in, or `value` does not fit the channels or
            the dtype.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        inputs = keras.Input((32, 32, 3))
        x = kte.layers.RandomErasing(probability=0.25, seed=0)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(x)))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        images = np.random.default_rng(0).random((64, 32, 32, 3), "float32")
        model.fit(images, np.arange(64) % 10)
        ```
    """

    _first_draw = 1 << 16
    _options = ("probability", "scale", "ratio", "value")

    def __init__(
        self,
        *,
        probability: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed=seed, **kwargs)
        caller = type(self).__name__
        self.probability = check.number(
            caller, "probability", probability, minimum=0, maximum=1, what="a probability", example=0.5
        )
        self.scale = self._range("scale", scale, 1.0, "parts of the area, above 0 and at most 1", "(0.02, 0.33)")
        self.ratio = self._range("ratio", ratio, math.inf, "heights by widths, above 0", "(0.3, 3.3)")
        values = _finite_numbers(value if isinstance(value, (list, tuple)) else [value])
        if not values:
            needed = "a number, or one for each channel"
            raise check.argument_error(caller, "value", needed, repr(value), "value=0.0")
        self.value = values if isinstance(value, (list, tuple)) else values[0]

    def _augment(self, images: Any) -> Any:
        heights, widths = self._rectangles(*images.shape[1:3])
        chance, size, top, left = self._random_bits(ops.shape(images)[0], 4)
        size = randint(size, len(heights))
        erased = ops.reshape(uniform(chance) < np.float32(self.probability), (-1, 1, 1, 1))
        for axis, lengths, bits in ((1, heights, top), (2, widths, left)):
            length = one_hot_lookup(lengths, size)
            first = randint(bits, images.shape[axis] + 1 - length)
            erased = erased & range_mask(first, first + length, images.shape[axis], axis)
        value = ops.cast(ops.convert_to_tensor(np.asarray(self.value, "float32")), images.dtype)
        return ops.where(erased, value, images)

    def _rectangles(self, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the heights and widths of all rectangles that fit in."""
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * levels)
        ratio = self.ratio[0] * (self.ratio[1] / self.ratio[0]) ** levels
        area, ratio = (values.ravel() for values in np.meshgrid(area, ratio, indexing="ij"))
        heights, widths = (np.rint(np.sqrt(values)).astype("int32") for values in (area * ratio, area / ratio))
        fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
        if not fits.any():
            needed = f"such that, with `ratio`, a rectangle fits in an image of {height} x {width} pixels"
            got, write = f"scale={self.scale} and ratio={self.ratio}", "scale=(0.02, 0.33), ratio=(0.3, 3.3)"
            raise check.argument_error(type(self).__name__, "scale", needed, got, write)
        return heights[fits], widths[fits]

    def _range(self, name: str, pair: Any, maximum: float, what: str, example: str) -> tuple[float, float]:
        values = _finite_numbers(pair) if isinstance(pair, (list, tuple)) else []
        low, high = values if len(values) == 2 else (0.0, 0.0)
        if not 0 < low <= high <= maximum:
            needed = f"a smallest and a largest of {what}"
            raise check.argument_error(type(self).__name__, name, needed, repr(pair), f"{name}={example}")
        return low, high

    def _check_images(self, shape: Sequence[Any], dtype: Any = "float32") -> None:
        super()._check_images(shape, dtype)
        self._rectangles(*shape[1:3])
        values = np.atleast_1d(self.value)
        if isinstance(self.value, list) and len(values) not in (1, shape[3]):
            needed, write = f"a number, or one for each of the {shape[3]} channels", f"value={[0.0] * shape[3]}"
            raise check.argument_error(type(self).__name__, "value", needed, repr(self.value), write)
        if "uint8" in str(dtype) and not np.array_equal(values, np.clip(np.rint(values), 0, 255)):
            needed = "an integer from 0 to 255 for images of dtype uint8"
            raise check.argument_error(type(self).__name__, "value", needed, repr(self.value), "value=0.0")


def _finite_numbers(values: Sequence[Any]) -> list[float]:
    """Return `values` as floats; an empty list if one of them is not a finite number."""
    are_numbers = all(check.is_number(one) and math.isfinite(one) for one in values)
    return [float(one) for one in values] if are_numbers else []
