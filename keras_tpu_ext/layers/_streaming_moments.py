"""Mean and variance of a stream of batches, on the host, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.padding import PaddedBatch
from keras_tpu_ext.checks import arguments as check

_CHUNK = 2**22  # values held as float64 at the same time: 32 MiB


class StreamingMoments:
    """Mean and variance of all values so far.

    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
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
        """Add the values of one batch."""
        batch = np.atleast_1d(batch)
        rows = len(batch) if 0 in self._kept else max(1, _CHUNK // max(1, batch[:1].size))
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


def iterate_inputs(data: Any, steps: int | None) -> Iterator[np.ndarray]:
    """Iterate over the inputs in `data`, as NumPy arrays without padding rows."""
    if hasattr(data, "shape"):
        return iter([np.asarray(data)])
    if steps is None and _is_infinite(data):
        raise check.argument_error("adapt", "data", "finite", "infinite data", "layer.adapt(data, steps=100)")
    return (_inputs(batch) for batch in itertools.islice(_epoch(data), steps))


def _epoch(data: Any) -> Iterable[Any]:
    """Return the batches of one epoch."""
    if hasattr(data, "as_numpy_iterator"):
        return data.as_numpy_iterator()
    if isinstance(data, _runtime.PyDataset):
        number = getattr(data, "num_batches", len(data))  # Keras 2 does not have it
        return (data[i] for i in (itertools.count() if number is None else range(number)))
    if isinstance(data, (str, bytes, dict)) or not hasattr(data, "__iter__"):
        needed = "an array, a tf.data.Dataset, a PyDataset or an iterable of batches"
        raise check.argument_error("adapt", "data", needed, f"a {type(data).__name__}", "layer.adapt(images)")
    return data


def _is_infinite(data: Any) -> bool:
    if hasattr(data, "as_numpy_iterator"):
        return int(data.cardinality()) == -1
    return isinstance(data, _runtime.PyDataset) and getattr(data, "num_batches", 0) is None


def _inputs(batch: Any) -> np.ndarray:
    """Return the inputs of a batch, which may be `(x, y)` or `(x, y, sample_weight)`."""
    inputs = np.asarray(batch[0] if isinstance(batch, tuple) else batch)
    if inputs.dtype == object or (inputs.dtype.kind in "USV" and "float" not in inputs.dtype.name):
        needed = "batches of numbers: arrays, or tuples with one first"
        got = f"a {type(batch).__name__} with dtype {inputs.dtype}"
        write = "layer.adapt(dataset.map(lambda batch: batch['image']))"
        raise check.argument_error("adapt", "data", needed, got, write)
    return inputs[_is_example(batch)] if isinstance(batch, PaddedBatch) else inputs


def _is_example(batch: PaddedBatch) -> np.ndarray:
    """Return a mask of the rows of a padded batch that are examples."""
    weight = np.asarray(_runtime.tree.flatten(batch.sample_weight)[0])
    padded = (weight == 0) & np.signbit(weight)
    return ~padded.reshape(len(weight), -1).all(1)
