"""The base class of layers that augment images: their random numbers, and the check of their inputs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.layers._random import random_bits

ops = _runtime.ops

_MAX_SEED = 2**32 - 1


class Augmentation(_runtime.keras.layers.Layer):
    """A layer that draws numbers for each example of the batch in each call with `training=True`.

    Args:
        seed: Integer from 0 to 2**32 - 1, or `None` to draw one now.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    # Number of the first draw of the class: layers of several classes with one seed draw different numbers.
    _first_draw = 0

    def __init__(self, *, seed: int | None = None, **kwargs: Any) -> None:
        # Inputs keep their dtype: with a dtype policy Keras would round labels, and images before they are scaled.
        super().__init__(autocast=False, **kwargs)
        self.seed = self._check_seed(seed)
        # Made here, so that a model that calls the layer in `augment` has its weight from the beginning.
        self.calls = _runtime.ops.add_counter(self, "calls")

    def build(self, input_shape: Any) -> None:
        """Check the shape, and remember it."""
        # Here, and not only in the call, because Keras 2 wraps an error of the call in another one.
        shape = self.compute_output_shape(input_shape)
        self._static_shape = tuple(input_shape[0] if isinstance(shape[0], tuple) else input_shape)[1:]
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, with the seed that was drawn."""
        return {**super().get_config(), "seed": self.seed}

    def compute_output_spec(self, inputs: Any, training: Any = None) -> Any:
        """Return symbolic outputs, of the dtypes of the inputs; Keras 3 asks for it."""
        tensors = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        self._check_images(tensors[0].shape, tensors[0].dtype)
        shapes = self.compute_output_shape(_shape_of(inputs))
        symbol = _runtime.keras.KerasTensor
        if tensors is not inputs:
            return symbol(shapes, dtype=inputs.dtype)
        return tuple(symbol(shape, dtype=one.dtype) for shape, one in zip(shapes, tensors, strict=True))

    def _random_bits(self, rows: Any, count: int) -> list[Any]:
        """Return `count` tensors of random bits for each of this replica's `rows`, and count the call."""
        first, _ = _runtime.batch.place_in_batch(rows)
        key = (self.seed, ops.convert_to_tensor(self.calls))
        numbers = _runtime.batch.respects_padding(lambda: first + ops.arange(rows, dtype="int32"))()
        bits = random_bits(key, numbers, self._first_draw, count)
        # Afterwards, because what Keras 3 makes of a variable on TensorFlow is read when it is used.
        self.calls.assign(key[1] + 1)
        return bits

    def _with_static_shape(self, images: Any) -> Any:
        """Return `images` with static height, width and channels."""
        if getattr(images.shape, "rank", 4) is None or None in tuple(images.shape)[1:]:
            images = _runtime.ops.ensure_shape(images, (None, *self._static_shape))
        self._check_images(images.shape, images.dtype)
        return images

    def _check_images(self, shape: Sequence[Any], dtype: Any = "float32") -> None:
        """Check that inputs are images."""
        caller = type(self).__name__
        if len(shape) != 4 or any(size is None for size in list(shape)[1:]):
            needed = "images of shape (batch, height, width, channels), of which all but the batch are known"
            write = (
                "keras.Input((224, 224, 3)), batch the images of a dataset first, or call "
                "layer.build((None, 224, 224, 3)) where the data do not tell"
            )
            raise check.argument_error(caller, "inputs", needed, f"shape {tuple(shape)}", write)
        name = getattr(dtype, "name", str(dtype))
        if "float" not in name and name != "uint8":
            write = "images.astype('uint8'), or tf.cast(images, 'float32') for numbers above 255"
            raise check.argument_error(caller, "inputs", "images of floats or of dtype uint8", name, write)

    def _check_seed(self, seed: Any) -> int:
        caller = type(self).__name__
        if seed is None:
            workers = _runtime.devices.num_workers()
            if workers > 1:
                needed = f"given where {workers} processes train together, so that all of them draw the same numbers"
                raise check.argument_error(caller, "seed", needed, "None", "seed=0")
            return random.randint(0, _MAX_SEED)  # as Keras does, so that set_random_seed applies
        return check.integer(caller, "seed", seed, minimum=0, maximum=_MAX_SEED, example=0)


def _shape_of(inputs: Any) -> Any:
    """Return the shape of a tensor, or a list of shapes for several tensors."""
    if isinstance(inputs, (list, tuple)):
        return [tuple(one.shape) for one in inputs]
    return tuple(inputs.shape)
