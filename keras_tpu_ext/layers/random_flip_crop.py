"""Random crops and flips of images, in the compiled step."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.layers._augmentation import Augmentation
from keras_tpu_ext.layers._random import randint

ops = _runtime.ops


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class RandomFlipCrop(Augmentation):
    """Pads images with zeros, crops each at a random position, and flips it at random.

    It runs in the compiled step, on the device: every shape is static, and there is no loop. A crop is a product with
    ones and zeros, which the matrix units of a TPU do many times faster than it gathers; finite numbers come out
    unchanged. (One that is infinite or NaN spoils its row and column.)

    The random numbers of an example depend on the seed, on the number of earlier calls with `training=True`, and on
    its index in the whole batch: not on the number of replicas, the size of the batch, the framework, or the device.
    The number of calls is a weight, so a saved model continues with new random numbers.

    Without `training=True` it takes the central crop, and flips nothing.

    Images keep their dtype, also under a mixed precision policy: `uint8` ones cost least, and a
    `keras.layers.Rescaling` after this layer converts them to floats.

    Args:
        height: Height of the outputs in pixels, or `None` (default) for that of the inputs.
        width: Width of the outputs in pixels, or `None` (default) for that of the inputs.
        padding: Pixels of zeros on each of the four sides, before the crop. Defaults to 0.
        horizontal: Whether to flip left and right, with probability 1/2. Defaults to `True`.
        vertical: Whether to flip top and bottom, with probability 1/2. Defaults to `False`.
        seed: Integer from 0 to 2**32 - 1, or `None` (default) to draw one when the layer is made; it is saved with
            the layer.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`, floats or `uint8`.
        training: Whether to crop and flip at random.

    Raises:
        ArgumentError: If an option is invalid, or `seed` is `None` and several processes train together; when it is
            called, if the inputs are not such images, or with their padding are smaller than the outputs.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        inputs = keras.Input((32, 32, 3), dtype="uint8")
        x = kte.layers.RandomFlipCrop(padding=4, seed=0)(inputs)
        x = keras.layers.Rescaling(1 / 255)(x)
        model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(x)))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), "uint8")
        model.fit(images, np.arange(64) % 10)
        ```
    """

    _options = ("height", "width", "padding", "horizontal", "vertical")

    def __init__(
        self,
        *,
        height: int | None = None,
        width: int | None = None,
        padding: int = 0,
        horizontal: bool = True,
        vertical: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed=seed, **kwargs)
        caller = type(self).__name__
        self.height = check.optional(check.integer, caller, "height", height, example=224)
        self.width = check.optional(check.integer, caller, "width", width, example=224)
        self.padding = check.integer(caller, "padding", padding, minimum=0, example=4)
        self.horizontal, self.vertical = bool(horizontal), bool(vertical)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the crops."""
        inputs = self._with_static_shape(inputs)
        _, height, width, _ = self.compute_output_shape(tuple(inputs.shape))
        spare = [inputs.shape[1] + 2 * self.padding - height, inputs.shape[2] + 2 * self.padding - width]
        if not training:
            top, left, padding = spare[0] // 2, spare[1] // 2, [self.padding, self.padding]
            padded = ops.pad(inputs, [[0, 0], padding, padding, [0, 0]])
            return padded[:, top : top + height, left : left + width]
        bits = self._random_bits(ops.shape(inputs)[0], 4)
        top, left = (randint(one, number + 1) for one, number in zip(bits[:2], spare, strict=True))
        rows = self._selection(top, height, inputs.shape[1], randint(bits[2], 2) if self.vertical else None)
        columns = self._selection(left, width, inputs.shape[2], randint(bits[3], 2) if self.horizontal else None)
        # Rows first: this order is cheaper with the memory layout that the compiler gives images.
        return ops.one_hot_einsum(inputs, ("bih,bhwc->biwc", rows), ("bjw,biwc->bijc", columns))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return `(batch, height, width, channels)` of the outputs."""
        shape = tuple(input_shape)
        self._check_images(shape)
        batch, *sizes, channels = shape
        wanted = [size if own is None else own for own, size in zip((self.height, self.width), sizes, strict=True)]
        for name, size, own in zip(("height", "width"), sizes, wanted, strict=True):
            if own > size + 2 * self.padding:
                needed = f"at most that of the images with their padding, {size} + 2 * {self.padding}"
                write = f"{name}={size}, or padding={(own - size + 1) // 2}"
                raise check.argument_error(type(self).__name__, name, needed, str(own), write)
        return (batch, *wanted, channels)

    def _selection(self, offsets: Any, size: int, input_size: int, flips: Any) -> Any:
        """Return one-hot rows of shape `(batch, size, input_size)` that select pixels; 0 for padding."""
        positions = ops.expand_dims(ops.arange(size, dtype="int32"), 0)
        if flips is not None:
            flips = ops.expand_dims(flips, 1)
            positions = positions + flips * (size - 1 - 2 * positions)
        positions = positions + ops.expand_dims(offsets, 1) - self.padding
        return ops.equal(ops.expand_dims(positions, 2), ops.arange(input_size, dtype="int32"))
