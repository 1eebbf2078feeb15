"""Mean and variance of data that come in batches, on the host, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.padding import PaddedBatch
from keras_tpu_ext.errors import ArgumentError

_AT_ONCE = 2**22  # values that are float64 at the same time: 32 MiB


class Streamed:
    """Mean and variance of all values so far, as if they had come at once.

    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.

    Args:
        kept: Axes that have a mean each, not negative and sorted.
    """

    def __init__(self, kept: tuple[int, ...]) -> None:
        self._kept = kept
        self.count = 0
        self.mean: Any = 0.0
        self._squares: Any = 0.0

    @property
    def variance(self) -> Any:
        """The variance, without Bessel's correction."""
        return self._squares / self.count

    def add(self, batch: np.ndarray) -> None:
        """Take the values of one batch."""
        batch = np.atleast_1d(batch)
        rows = len(batch) if 0 in self._kept else max(1, _AT_ONCE // max(1, batch[:1].size))
        for start in range(0, len(batch), max(1, rows)):
            self._add(batch[start : start + rows].astype("float64"))

    def _add(self, values: np.ndarray) -> None:
        others = tuple(axis for axis in range(values.ndim) if axis not in self._kept)
        new = int(np.prod([values.shape[axis] for axis in others]))
        if not new:
            return
        mean = values.mean(others, keepdims=True)
        squares = np.square(values - mean).sum(others)
        apart = mean.reshape(squares.shape) - self.mean
        self.count += new
        self.mean = self.mean + apart * (new / self.count)
        self._squares = self._squares + squares + np.square(apart) * (new * (self.count - new) / self.count)


def batches_of(data: Any, steps: int | None) -> Iterator[np.ndarray]:
    """Return the inputs in `data`, batch by batch, as NumPy arrays and without rows that fill a batch up.

    Args:
        data: An array, a `tf.data.Dataset`, a `PyDataset`, or anything that gives batches.
        steps: Number of batches to take, or `None` for all.

    Raises:
        ArgumentError: If `data` has no end and `steps` is `None`, or gives something else than arrays.
    """
    if hasattr(data, "shape"):
        return iter([np.asarray(data)])
    if steps is None and _is_endless(data):
        raise ArgumentError("data must end; they came without an end. Write: layer.adapt(data, steps=100)")
    return (_inputs_in(batch) for batch in itertools.islice(_each(data), steps))


def _each(data: Any) -> Iterable[Any]:
    """Return the batches of one epoch."""
    if hasattr(data, "as_numpy_iterator"):
        return data.as_numpy_iterator()
    if isinstance(data, _runtime.PyDataset):
        number = getattr(data, "num_batches", len(data))  # Keras 2 has it not
        return (data[i] for i in (itertools.count() if number is None else range(number)))
    if isinstance(data, (str, bytes, dict)) or not hasattr(data, "__iter__"):
        raise ArgumentError(
            "data must be an array, a tf.data.Dataset, a PyDataset or an iterable of batches; they came as a "
            f"{type(data).__name__}. Write: layer.adapt(images)"
        )
    return data


def _is_endless(data: Any) -> bool:
    if hasattr(data, "as_numpy_iterator"):
        return int(data.cardinality()) == -1
    return isinstance(data, _runtime.PyDataset) and getattr(data, "num_batches", 0) is None


def _inputs_in(batch: Any) -> np.ndarray:
    """Return the inputs of a batch, which may be `(x, y)` or `(x, y, sample_weight)`."""
    inputs = np.asarray(batch[0] if isinstance(batch, tuple) else batch)
    if inputs.dtype == object or (inputs.dtype.kind in "USV" and "float" not in inputs.dtype.name):
        raise ArgumentError(
            f"a batch must be an array of numbers, or a tuple with one first; it came as {type(batch).__name__} with "
            f"dtype {inputs.dtype}. Write: layer.adapt(dataset.map(lambda batch: batch['image']))"
        )
    return inputs[_is_example(batch)] if isinstance(batch, PaddedBatch) else inputs


def _is_example(batch: PaddedBatch) -> np.ndarray:
    """Return for each row of a padded batch whether it is an example."""
    weight = np.asarray(_runtime.tree.flatten(batch.sample_weight)[0])
    padded = (weight == 0) & np.signbit(weight)
    return ~padded.reshape(len(weight), -1).all(1)
