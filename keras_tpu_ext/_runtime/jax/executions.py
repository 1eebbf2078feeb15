"""Executions of a running `fit` on JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax
import keras
import numpy as np

from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.jax.data_adapter import Group
from keras_tpu_ext._runtime.jax.devices import num_workers
from keras_tpu_ext._runtime.jax.loop import steps_of
from keras_tpu_ext._runtime.jax.step import TrainStep


class JaxExecution(Execution):
    """An `Execution` on JAX."""

    def wait_for(self, result: Nest) -> None:
        """Wait for the arrays."""
        jax.block_until_ready(result)

    def run_and_describe(self) -> tuple[Nest, Nest | None]:
        """Make the call; return its result and the shapes of its first batch."""
        iterator = _FirstItem(self._args[-1])
        result = self._function(*self._args[:-1], iterator)
        return result, iterator.shapes

    def _can_take_from(self, iterator: Iterator[Nest]) -> bool:
        return hasattr(iterator, "__next__") and num_workers() == 1

    def _items_of_execution(self) -> int:
        # `TrainStep` takes all batches of an execution as one item.
        return 1 if isinstance(self._model, TrainStep) else self.steps

    def _steps_of(self, item: Nest) -> int:
        return steps_of(item) if isinstance(self._model, TrainStep) else 1

    def _bytes_of(self, item: Nest) -> int:
        return sum(np.asarray(leaf).nbytes if not hasattr(leaf, "nbytes") else leaf.nbytes for leaf in _leaves(item))

    def _source_of(self, items: Sequence[Nest]) -> Iterator[Nest]:
        jax.block_until_ready([leaf for leaf in _leaves(items) if isinstance(leaf, jax.Array)])
        return iter(items)


class _FirstItem:
    """An iterator that describes the first item that it passes on."""

    def __init__(self, iterator: Iterator[Nest]) -> None:
        self._iterator = iterator
        # Structure of `jax.ShapeDtypeStruct` of one batch; `None` before the first item.
        self.shapes: Nest | None = None

    def __iter__(self) -> _FirstItem:
        return self

    def __next__(self) -> Nest:
        item = next(self._iterator)
        if self.shapes is None:
            self.shapes = _shapes_of_batch(item)
        return item


def _shapes_of_batch(item: Nest) -> Nest:
    stacked = False
    if isinstance(item, list) and item and isinstance(item[0], Group):
        stacked, item = item[0].steps is not None, item[0].data

    def shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape[1:] if stacked else leaf.shape, dtype)

    return jax.tree.map(shape, item)


def _leaves(item: Nest) -> list[jax.Array | np.ndarray]:
    return [leaf for leaf in jax.tree.leaves(item) if leaf is not None]


def intercept_executions(model: keras.Model, around: Callable[[Execution], Nest]) -> Interception:
    """Pass each call of the train function of `model`, which is in `fit`, to `around`."""
    return Interception(model, JaxExecution, around)
