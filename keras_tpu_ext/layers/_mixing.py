"""What layers that mix two examples with each other have in common: who is mixed with whom."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._arguments import positive_number
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers._augmentation import Augmentation

ops = _runtime.ops


class Mixing(Augmentation):
    """A layer that mixes each example with its neighbour: number 0 of the batch with 1, 2 with 3, and so on.

    Args:
        alpha: Of the Beta distribution of the parts.
        seed: As for `Augmentation`.
        **kwargs: As for every layer.
    """

    def __init__(self, *, alpha: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed=seed, **kwargs)
        self.alpha = positive_number(type(self).__name__, "alpha", alpha, of="a number above 0", write="0.2")

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return images and labels, mixed."""
        images, labels = self._pair(inputs)
        images = self.known(images)
        self._check_labels(labels.shape, labels.dtype)
        if not training:
            return images, labels
        return self.mix(images, labels, Neighbours(images))

    def mix(self, images: Any, labels: Any, neighbours: Neighbours) -> tuple[Any, Any]:
        """Return images and labels, mixed."""
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, Any]:
        """Return the two shapes of the inputs."""
        images, labels = self._pair(input_shape)
        self.check_images(images)
        self._check_labels(labels)
        return tuple(images), tuple(labels)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), "alpha": self.alpha}

    def _pair(self, inputs: Any) -> Any:
        if isinstance(inputs, (list, tuple)) and len(inputs) == 2:
            return inputs
        owner = type(self).__name__
        raise ArgumentError(
            f"{owner} needs a pair of images and labels; it was called with one tensor, or more than two. "
            f"Write: images, labels = {owner}()((images, labels), training=True)"
        )

    def _check_labels(self, labels: Any, dtype: Any = "float32") -> None:
        owner = type(self).__name__
        name = getattr(dtype, "name", str(dtype))
        if len(labels) != 2 or "float" not in name:
            raise ArgumentError(
                f"{owner} needs labels of floats and of shape (batch, classes), of which it mixes the parts; they "
                f"came as {name} with shape {tuple(labels)}. Write for numbers of classes: keras.ops.one_hot(labels, "
                "classes), or on Keras 2 tf.one_hot(labels, classes)"
            )


class Neighbours:
    """Who is mixed with whom in the rows of this replica.

    Args:
        images: The images of the batch at hand.

    Attributes:
        exist: For each row whether its neighbour is an example, and here; `None` where all are.
    """

    def __init__(self, images: Any) -> None:
        self._rows = ops.shape(images)[0]
        first, total = _runtime.batch.place_in_batch(self._rows)
        # Then every replica has as many rows, and so each begins with an even number.
        self._are_pairs = isinstance(total, int) and isinstance(self._rows, int) and self._rows % 2 == 0
        self.exist: Any = None
        if not self._are_pairs:
            rows = ops.arange(self._rows, dtype="int32")
            self._is_even = ops.equal((first + rows) % 2, 0)
            self.exist = ops.where(self._is_even, rows + 1 < self._rows, rows > 0)
        weights = _runtime.batch.row_weights(images)
        if weights is not None:
            real = ops.reshape(weights, (-1,)) * ops.ones((self._rows,), "float32")
            real = self.of(real) > 0
            self.exist = real if self.exist is None else real & self.exist

    def of(self, values: Any) -> Any:
        """Return for each row the value of its neighbour; some other row's where there is none."""
        if self._are_pairs:
            pairs = ops.reshape(values, (-1, 2, *values.shape[1:]))
            return ops.reshape(ops.flip(pairs, axis=1), (-1, *values.shape[1:]))
        after = ops.concatenate([values[1:], values[:1]], axis=0)
        before = ops.concatenate([values[-1:], values[:-1]], axis=0)
        return ops.where(ops.reshape(self._is_even, (-1, *[1] * (len(values.shape) - 1))), after, before)

    def only(self, values: Any, otherwise: Any) -> Any:
        """Return `values` where there is a neighbour, and another number where there is none."""
        return values if self.exist is None else ops.where(self.exist, values, ops.zeros_like(values) + otherwise)


def between(part: Any, values: Any, others: Any) -> Any:
    """Return `part * values + (1 - part) * others` in the dtype of `values`; whole numbers are rounded.

    Args:
        part: A float32 number for each row.
        values: Tensor of any rank and dtype.
        others: One of the same shape and dtype.
    """
    part = ops.reshape(part, (-1, *[1] * (len(values.shape) - 1)))
    wide = values.dtype if "float64" in str(values.dtype) else "float32"
    part = ops.cast(part, wide)
    mixed = part * ops.cast(values, wide) + (1 - part) * ops.cast(others, wide)
    return ops.cast(ops.round(mixed) if "int" in str(values.dtype) else mixed, values.dtype)
