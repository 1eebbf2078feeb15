"""What layers that augment images have in common: the numbers that they draw, and what images they take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._arguments import whole_number
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers._random import draw

ops = _runtime.ops

_LARGEST_SEED = 2**32 - 1


class Augmentation(_runtime.keras.layers.Layer):
    """A layer that draws numbers for each example of the batch in each call with `training=True`.

    Args:
        seed: Whole number from 0 to 2**32 - 1, or `None` for one that is drawn now.
        **kwargs: As for every layer.
    """

    # Number of the first draw of the class: layers of several classes with one seed draw different numbers.
    first_draw = 0

    def __init__(self, *, seed: int | None = None, **kwargs: Any) -> None:
        # Inputs keep their dtype: with a dtype policy Keras would round labels, and images before their numbers are
        # scaled.
        super().__init__(autocast=False, **kwargs)
        self.seed = self._checked(seed)
        # A model that calls the layer in `augment` has its weight from the beginning.
        self.calls = _runtime.ops.add_counter(self, "calls")

    def build(self, input_shape: Any) -> None:
        """Remember the shape, after a check."""
        # Here, and not only in the call: around that Keras 2 makes another error of one.
        shape = self.compute_output_shape(input_shape)
        self._built_for = tuple(input_shape[0] if isinstance(shape[0], tuple) else input_shape)[1:]
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, with the seed that was drawn."""
        return {**super().get_config(), "seed": self.seed}

    def compute_output_spec(self, inputs: Any, training: Any = None) -> Any:
        """Return symbols for the outputs, of the dtypes of the inputs; Keras 3 asks for it."""
        tensors = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        self.check_images(tensors[0].shape, tensors[0].dtype)
        shapes = self.compute_output_shape(_shape_of(inputs))
        symbol = _runtime.keras.KerasTensor
        if tensors is not inputs:
            return symbol(shapes, dtype=inputs.dtype)
        return tuple(symbol(shape, dtype=one.dtype) for shape, one in zip(shapes, tensors, strict=True))

    def draw(self, rows: Any, count: int) -> list[Any]:
        """Return `count` words for each example, and count the call.

        Args:
            rows: How many rows this replica has.
            count: How many draws.
        """
        first, _ = _runtime.batch.place_in_batch(rows)
        key = (self.seed, ops.convert_to_tensor(self.calls))
        words = draw(key, first + ops.arange(rows, dtype="int32"), self.first_draw, count)
        # Afterwards: what Keras 3 makes of a variable on TensorFlow is read when it is used.
        self.calls.assign(key[1] + 1)
        return words

    def known(self, images: Any) -> Any:
        """Return `images` with a static height, width and number of channels."""
        if getattr(images.shape, "rank", 4) is None or None in tuple(images.shape)[1:]:
            images = _runtime.ops.ensure_shape(images, (None, *self._built_for))
        self.check_images(images.shape, images.dtype)
        return images

    def check_images(self, shape: Sequence[Any], dtype: Any = "float32") -> None:
        """Refuse what are no images.

        Raises:
            ArgumentError: If they are not of rank 4, or their height, width or channels are not static, or they
                are neither floats nor `uint8`.
        """
        owner = type(self).__name__
        if len(shape) != 4 or any(size is None for size in list(shape)[1:]):
            raise ArgumentError(
                f"{owner} needs images of shape (batch, height, width, channels), of which all but the batch are "
                f"known; they came with shape {tuple(shape)}. Write: keras.Input((224, 224, 3)), batch the images of "
                "a dataset first, or call layer.build((None, 224, 224, 3)) where the data do not tell"
            )
        name = getattr(dtype, "name", str(dtype))
        if "float" not in name and name != "uint8":
            raise ArgumentError(
                f"{owner} needs images of floats or of dtype uint8; they came as {name}. "
                "Write: images.astype('uint8'), or tf.cast(images, 'float32') for numbers above 255"
            )

    def _checked(self, seed: Any) -> int:
        owner = type(self).__name__
        if seed is None:
            workers = _runtime.devices.num_workers()
            if workers > 1:
                raise ArgumentError(
                    f"seed must be given where {workers} processes train together, so that all of them draw the same "
                    f"numbers; it came as None. Write: {owner}(seed=0)"
                )
            return random.randint(0, _LARGEST_SEED)  # as Keras does, so that set_random_seed decides
        seed = whole_number(owner, "seed", seed, least=0, write=0)
        if seed > _LARGEST_SEED:
            raise ArgumentError(
                f"seed must be a whole number from 0 to {_LARGEST_SEED}; it came as {seed}. Write: {owner}(seed=0)"
            )
        return seed


def _shape_of(inputs: Any) -> Any:
    """Return the shape, or those of several tensors."""
    if isinstance(inputs, (list, tuple)):
        return [tuple(one.shape) for one in inputs]
    return tuple(inputs.shape)
