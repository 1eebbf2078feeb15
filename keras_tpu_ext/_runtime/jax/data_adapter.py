"""Keras's data adapters on JAX, with batches that come ready for a model's own step.

Private names of Keras that this module leans on (tests/_runtime/test_jax_private_names.py watches them):
`trainers.data_adapters.data_adapter.DataAdapter`, and of its subclasses `get_numpy_iterator`, `num_batches`,
`batch_size`, `has_partial_batch` and the name `TFDatasetAdapter`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from keras_tpu_ext._runtime.common.padding import without_own_weights
from keras_tpu_ext._runtime.jax.batch_statistics import predicts_per_example, trains_per_example
from keras_tpu_ext._runtime.jax.scope import num_replicas


class PeekIterator:
    """An iterator of executions for Keras to build a model from: it looks at one batch."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __iter__(self) -> Iterator[Any]:
        yield 0, 0, (without_own_weights(batch) for batch in self._adapter.get_numpy_iterator())


class GroupedDataAdapter(DataAdapter):
    """Keras's data adapter for some data, whose batches come ready for a model's own step.

    Args:
        model: The model.
        adapter: Keras's adapter.
        trains_or_tests: Whether there is a loss to compute.
    """

    def __init__(self, model: Any, adapter: Any, *, trains_or_tests: bool = False) -> None:
        self._model = model
        self._adapter = adapter
        self._trains_or_tests = trains_or_tests

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def get_jax_iterator(self) -> Any:
        """Return an iterator over groups of batches, see `Batches.executions`."""
        model, adapter = self._model, self._adapter
        knows_rows = trains_per_example(model) if self._trains_or_tests else predicts_per_example(model)
        batches = model._batches(
            fills_up=knows_rows and _may_be_short(adapter, num_replicas(model)), most_steps=adapter.num_batches
        )
        return batches.executions(adapter.get_numpy_iterator(), model._steps_wanted)

    @property
    def num_batches(self) -> Any:
        """Return the number of batches, if it is known."""
        return self._adapter.num_batches

    @property
    def batch_size(self) -> Any:
        """Return the number of rows in a batch, if it is known."""
        return self._adapter.batch_size

    @property
    def has_partial_batch(self) -> Any:
        """Return whether the last batch is short, if it is known."""
        return self._adapter.has_partial_batch

    @property
    def partial_batch_size(self) -> Any:
        """Return the number of rows in the last batch, if it is known."""
        return self._adapter.partial_batch_size

    def on_epoch_begin(self) -> None:
        """Tell Keras's adapter."""
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tell Keras's adapter."""
        self._adapter.on_epoch_end()


def _may_be_short(adapter: Any, replicas: int) -> bool:
    """Return whether a batch may be shorter than the others, or cannot be split evenly."""
    if not adapter.batch_size or adapter.batch_size % replicas:
        return True
    if adapter.has_partial_batch is None:
        return not _is_static(adapter)
    return bool(adapter.has_partial_batch)


def _is_static(adapter: Any) -> bool:
    return type(adapter).__name__ == "TFDatasetAdapter"  # its batch size is that of a shape that cannot vary
