"""Random crops and flips of images, in the compiled step."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._arguments import whole_number
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers._augmentation import Augmentation
from keras_tpu_ext.layers._random import below

ops = _runtime.ops


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class RandomFlipCrop(Augmentation):
    """Pads images with zeros, cuts a part of each out at a place of its own, and flips it or not.

    It runs in the compiled step, on the device: every shape is static, and there is no loop. A crop is a product with
    ones and zeros, which the matrix units of a TPU do many times faster than it gathers; finite numbers come out of
    it as they are. (One that is infinite or NaN spoils its row and column.)

    What an example gets depends on the seed, on how many calls with `training=True` there were before, and on its
    number in the whole batch: not on the number of replicas, the size of the batch, the framework, or the device. The
    number of calls is a weight, so that a model that was saved goes on with other numbers.

    Without `training=True` it cuts the middle out, and flips nothing.

    Images keep their dtype, also under a mixed precision policy: `uint8` ones cost least, and a
    `keras.layers.Rescaling` behind this layer makes floats of them.

    Args:
        height: Height of the outputs in pixels, or `None` (default) for that of the inputs.
        width: Width of the outputs in pixels, or `None` (default) for that of the inputs.
        padding: Pixels of zeros on each of the four sides, before the crop. Defaults to 0.
        horizontal: Whether to flip left and right, with probability 1/2. Defaults to `True`.
        vertical: Whether to flip top and bottom, with probability 1/2. Defaults to `False`.
        seed: Whole number from 0 to 2**32 - 1, or `None` (default) for one that is drawn when the layer is made and
            saved with it.
        **kwargs: As for every layer.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`, floats or `uint8`.
        training: Whether to draw.

    Raises:
        ArgumentError: If an option has no value that can work, or `seed` is `None` where several processes train
            together; when it is called, if the inputs are no such images, or smaller with their padding than the
            outputs.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte

        inputs = keras.Input((32, 32, 3), dtype="uint8")
        x = kte.layers.RandomFlipCrop(padding=4, seed=0)(inputs)
        x = keras.layers.Rescaling(1 / 255)(x)
        model = keras.Model(inputs, keras.layers.Conv2D(16, 3)(x))
        ```
    """

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
        owner = type(self).__name__
        self.height = None if height is None else whole_number(owner, "height", height, least=1, write=224)
        self.width = None if width is None else whole_number(owner, "width", width, least=1, write=224)
        self.padding = whole_number(owner, "padding", padding, least=0, write=4)
        self.horizontal, self.vertical = bool(horizontal), bool(vertical)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the crops."""
        inputs = self.known(inputs)
        _, height, width, _ = self.compute_output_shape(tuple(inputs.shape))
        spare = [inputs.shape[1] + 2 * self.padding - height, inputs.shape[2] + 2 * self.padding - width]
        if not training:
            return self._middle(inputs, spare)
        words = self.draw(ops.shape(inputs)[0], 4)
        top, left = (below(word, number + 1) for word, number in zip(words[:2], spare, strict=True))
        rows = self._choice(top, height, inputs.shape[1], below(words[2], 2) if self.vertical else None)
        columns = self._choice(left, width, inputs.shape[2], below(words[3], 2) if self.horizontal else None)
        # Rows first: of the two orders this is the cheaper one where images lie in memory as the compiler puts them.
        return _runtime.ops.one_hot_einsum(inputs, ("bih,bhwc->biwc", rows), ("bjw,biwc->bijc", columns))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return `(batch, height, width, channels)` of the outputs."""
        shape = tuple(input_shape)
        self.check_images(shape)
        batch, *sizes, channels = shape
        wanted = [size if own is None else own for own, size in zip((self.height, self.width), sizes, strict=True)]
        for name, size, own in zip(("height", "width"), sizes, wanted, strict=True):
            if own > size + 2 * self.padding:
                padding = (own - size + 1) // 2
                raise ArgumentError(
                    f"{name} must be at most that of the images with their padding, {size} + 2 * {self.padding}; it "
                    f"came as {own}. Write: {type(self).__name__}({name}={size}), or padding={padding}"
                )
        return (batch, *wanted, channels)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = ("height", "width", "padding", "horizontal", "vertical")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}

    def _choice(self, offsets: Any, size: int, of: int, flips: Any) -> Any:
        """Return for each example which of the `of` places of the inputs each of `size` places of the outputs shows.

        Places in the padding show none, and so become zeros.
        """
        places = ops.expand_dims(ops.arange(size, dtype="int32"), 0)
        if flips is not None:
            flips = ops.expand_dims(flips, 1)
            places = places + flips * (size - 1 - 2 * places)
        places = places + ops.expand_dims(offsets, 1) - self.padding
        return ops.equal(ops.expand_dims(places, 2), ops.arange(of, dtype="int32"))

    def _middle(self, inputs: Any, spare: list[int]) -> Any:
        padding = [self.padding, self.padding]
        top, left = (number // 2 for number in spare)
        padded = ops.pad(inputs, [[0, 0], padding, padding, [0, 0]])
        bottom, right = (-(number - number // 2) or None for number in spare)
        return padded[:, top:bottom, left:right]
