"""The base class of layers that mix pairs of examples, and the pairs."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.layers._augmentation import Augmentation, dtype_name, interpolate

ops = _runtime.ops


class Mixing(Augmentation):
    """A layer that mixes each example with its neighbour: number 0 of the batch with 1, 2 with 3, and so on."""

    _options = ("alpha",)

    def __init__(self, *, alpha: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed=seed, **kwargs)
        self.alpha = check.number(type(self).__name__, "alpha", alpha, above=0, example=0.2)

    def call(self, inputs: Any, training: Any = None) -> Any:
        images, labels = self._unpack(inputs)
        images = self._with_static_shape(images)
        self._check_labels(labels.shape, labels.dtype)
        return self._mix(images, labels, Pairs(images)) if training else (images, labels)

    def _mix(self, images: Any, labels: Any, pairs: Pairs) -> tuple[Any, Any]:
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, Any]:
        images, labels = self._unpack(input_shape)
        self._check_images(images)
        self._check_labels(labels)
        return tuple(images), tuple(labels)

    def _unpack(self, inputs: Any) -> Any:
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 2:
            caller = type(self).__name__
            needed, got = "a pair of images and labels", "one tensor, or more than two"
            write = f"images, labels = {caller}()((images, labels), training=True)"
            raise check.argument_error(caller, "inputs", needed, got, write)
        return inputs

    def _check_labels(self, shape: Any, dtype: Any = "float32") -> None:
        name = dtype_name(dtype)
        if len(shape) != 2 or "float" not in name:
            needed, got = "floats of shape (batch, classes), which it mixes", f"{name} of shape {tuple(shape)}"
            write = "for class indices keras.ops.one_hot(labels, classes), or on Keras 2 tf.one_hot(labels, classes)"
            raise check.argument_error(type(self).__name__, "labels", needed, got, write)


class Pairs:
    """The pairs of examples among the rows of this replica: even and odd neighbours in the whole batch."""

    def __init__(self, images: Any) -> None:
        self._rows = ops.shape(images)[0]
        self._first, total = _runtime.batch.place_in_batch(self._rows)
        # In this case every replica has the same number of rows, so each begins with an even index.
        self._is_aligned = isinstance(total, int) and isinstance(self._rows, int) and self._rows % 2 == 0
        # Whether each row's partner is an example on this replica; `None` if all are.
        self._exist: Any = _runtime.batch.respects_padding(self._existing)(_runtime.batch.row_weights(images))

    def swap(self, values: Any) -> Any:
        """Return the value of each row's partner; that of another row if there is none."""
        return _runtime.batch.respects_padding(self._swapped)(values)

    def mix(self, weights: Any, values: Any) -> Any:
        """Return the sum of each row, times its weight, and its partner's, times the rest."""
        return interpolate(_broadcast_rows(weights, values), values, self.swap(values))

    def where_exist(self, values: Any, otherwise: Any) -> Any:
        """Return `values` for rows with a partner, and `otherwise` for others."""
        return values if self._exist is None else ops.where(self._exist, values, otherwise)

    def _existing(self, weights: Any) -> Any:
        exist = None
        if not self._is_aligned:
            rows = ops.arange(self._rows, dtype="int32")
            exist = ops.where(self._is_even(), rows + 1 < self._rows, rows > 0)
        if weights is not None:
            real = ops.reshape(weights, (-1,)) * ops.ones((self._rows,), "float32")
            real = self._swapped(real) > 0
            exist = real if exist is None else real & exist
        return exist

    def _swapped(self, values: Any) -> Any:
        if self._is_aligned:
            pairs = ops.reshape(values, (-1, 2, *values.shape[1:]))
            return ops.reshape(ops.flip(pairs, axis=1), (-1, *values.shape[1:]))
        after = ops.concatenate([values[1:], values[:1]], axis=0)
        before = ops.concatenate([values[-1:], values[:-1]], axis=0)
        return ops.where(_broadcast_rows(self._is_even(), values), after, before)

    def _is_even(self) -> Any:
        return ops.equal((self._first + ops.arange(self._rows, dtype="int32")) % 2, 0)


def _broadcast_rows(numbers: Any, values: Any) -> Any:
    """Return one number for each row in a shape that broadcasts to `values`."""
    return ops.reshape(numbers, (-1, *[1] * (len(values.shape) - 1)))
