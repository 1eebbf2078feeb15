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
    # The other arguments of the constructor, each an attribute.
    _options: tuple[str, ...] = ()

    def __init__(self, *, seed: int | None = None, **kwargs: Any) -> None:
        # Inputs keep their dtype: with a dtype policy Keras would round labels, and images before they are scaled.
        super().__init__(autocast=False, **kwargs)
        self.seed = self._check_seed(seed)
        # Made here, so that a model that calls the layer in `augment` has its weight from the beginning.
        self.calls = ops.add_counter(self, "calls")

    def build(self, input_shape: Any) -> None:
        # Here, and not only in the call, because Keras 2 wraps an error of the call in another one.
        shape = self.compute_output_shape(input_shape)
        self._static_shape = tuple(input_shape[0] if isinstance(shape[0], tuple) else input_shape)[1:]
        self.built = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        images = self._with_static_shape(inputs)
        return self._augment(images) if training else images

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        self._check_images(input_shape)
        return tuple(input_shape)

    def compute_output_spec(self, inputs: Any, training: Any = None) -> Any:
        # Keras 3 would give the outputs the compute dtype.
        outputs = self.call(inputs, training=False)
        return _runtime.tree.map_structure(lambda one: _runtime.keras.KerasTensor(one.shape, one.dtype), outputs)

    def get_config(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in ("seed", *self._options)}
        return {**super().get_config(), **options}

    def _augment(self, images: Any) -> Any:
        raise NotImplementedError

    def _random_bits(self, rows: Any, count: int) -> list[Any]:
        """Return `count` tensors of random bits for each of this replica's `rows`, and count the call."""
        first, _ = _runtime.batch.position_in_batch(rows)
        key = (self.seed, ops.convert_to_tensor(self.calls))
        numbers = _runtime.batch.respects_padding(lambda: first + ops.arange(rows, dtype="int32"))()
        bits = random_bits(key, numbers, self._first_draw, count)
        # Afterwards, because what Keras 3 makes of a variable on TensorFlow is read when it is used.
        self.calls.assign(key[1] + 1)
        return bits

    def _with_static_shape(self, images: Any) -> Any:
        """Return checked `images` with static height, width and channels."""
        if getattr(images.shape, "rank", 4) is None or None in tuple(images.shape)[1:]:
            images = ops.ensure_shape(images, (None, *self._static_shape))
        self._check_images(images.shape, images.dtype)
        return images

    def _check_images(self, shape: Sequence[Any], dtype: Any = "float32") -> None:
        """Check that inputs are images that the layer can augment."""
        caller = type(self).__name__
        if len(shape) != 4 or any(size is None for size in list(shape)[1:]):
            needed = "images of shape (batch, height, width, channels), of which all but the batch are known"
            write = (
                "keras.Input((224, 224, 3)), batch the images of a dataset first, or call "
                "layer.build((None, 224, 224, 3)) where the data do not tell"
            )
            raise check.argument_error(caller, "inputs", needed, f"shape {tuple(shape)}", write)
        name = dtype_name(dtype)
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


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of Keras, NumPy or TensorFlow."""
    return str(getattr(dtype, "name", dtype))


def range_mask(first: Any, last: Any, size: int, axis: int) -> Any:
    """Return which positions along an axis of images are from `first` to below `last`, for each example."""
    positions = ops.reshape(ops.arange(size, dtype="int32"), [size if i == axis else 1 for i in range(4)])
    first, last = (ops.reshape(edge, (-1, 1, 1, 1)) for edge in (first, last))
    return (positions >= first) & (positions < last)


def interpolate(weight: Any, values: Any, others: Any) -> Any:
    """Return `weight * values + (1 - weight) * others` in the dtype of `values`; integers are rounded."""
    wide = "float64" if "float64" in str(values.dtype) else "float32"
    weight = ops.cast(weight, wide)
    mixed = weight * ops.cast(values, wide) + (1 - weight) * ops.cast(others, wide)
    return ops.cast(ops.round(mixed) if "int" in str(values.dtype) else mixed, values.dtype)
