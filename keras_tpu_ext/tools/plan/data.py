"""What `fit` takes as data: the number of its batches, the first ones, and how fast they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.preflight._batch import Rate, measured_rate, rows_of

_DEFAULT_BATCH = 32  # of Keras's `fit`, for arrays
_NEEDED = "a tf.data.Dataset, a PyDataset, or a tuple (x, y) of arrays"


class PlannedData:
    """The data of one `fit` or `evaluate`."""

    def __init__(self, name: str, data: Any, batch_size: int | None, steps: int | None) -> None:
        self._name = name
        self.data = data
        self.is_dataset = hasattr(data, "element_spec") and hasattr(data, "cardinality")
        self.is_sequence = isinstance(data, _runtime.PyDataset)
        if not self.is_dataset and not self.is_sequence and not self._is_arrays():
            raise check.argument_error("plan", name, _NEEDED, type(data).__name__, f"{name}=(x, y)")
        self._arrays_batch = batch_size or _DEFAULT_BATCH
        self._given_steps = steps
        self.whole_steps = self._length()
        if steps is None and self.whole_steps is None:
            write = "steps_per_epoch=1000" if name == "data" else f"{name}=dataset.take(100)"
            raise check.argument_error("plan", name, "of a known length", "data whose length is unknown", write)
        self.steps: int = steps or self.whole_steps or 0
        self.first = next(self.batches())
        self.batch_size = rows_of(self.first)

    def _is_arrays(self) -> bool:
        data = self.data
        return isinstance(data, tuple) and 2 <= len(data) <= 3 and all(hasattr(_leaf(part), "shape") for part in data)

    def _length(self) -> int | None:
        if self.is_dataset:
            length = int(self.data.cardinality())  # negative if it is infinite or unknown
            return length if length >= 0 else None
        if self.is_sequence:
            found = getattr(self.data, "num_batches", None)  # Keras 2 has none
            return len(self.data) if found is None else int(found)
        return -(-rows_of(self.data) // self._arrays_batch)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `fit` for it as data."""
        if not self._is_arrays():
            return {"x": self.data, "steps_per_epoch": self._given_steps}
        names = dict(zip(("x", "y", "sample_weight"), self.data, strict=False))
        return {**names, "batch_size": self._arrays_batch, "steps_per_epoch": self._given_steps}

    def as_validation(self) -> dict[str, Any]:
        """Return the arguments of `fit` for it as data of a validation."""
        batch_size = self._arrays_batch if self._is_arrays() else None
        return {"validation_data": self.data, "validation_batch_size": batch_size}

    def batches(self) -> Iterator[Any]:
        """Yield one batch after the other, without a model."""
        if self.is_dataset:
            yield from self.data
        elif self.is_sequence:
            yield from (self.data[i] for i in range(self.whole_steps or self._given_steps or 1))
        else:
            size = self._arrays_batch
            for start in range(0, rows_of(self.data), size):
                yield _runtime.tree.map_structure(lambda leaf, at=start: np.asarray(leaf[at : at + size]), self.data)

    def shapes(self) -> set[tuple[Any, ...]]:
        """Return the shapes of the first and the last batch, as far as that can be looked up; each is compiled."""
        last = self.first
        if self.is_sequence and self.whole_steps == self.steps:
            last = self.data[self.steps - 1]
        rows = rows_of(last)
        if self._is_arrays():
            rows = rows_of(self.data) - (self.steps - 1) * self._arrays_batch
        return {(self.batch_size,), (min(rows, self.batch_size) if rows > 0 else self.batch_size,)}

    def rate(self) -> Rate:
        """Return how fast batches come, the first one aside."""
        return measured_rate(self.batches()) or Rate(0.0, 0.0)


def _leaf(structure: Any) -> Any:
    return _runtime.tree.flatten(structure)[0]
