"""Executions of a running `fit` on JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.jax.data_adapter import Group
from keras_tpu_ext._runtime.jax.devices import num_workers
from keras_tpu_ext._runtime.jax.loop import steps_of
from keras_tpu_ext._runtime.jax.step import TrainStep


class JaxExecution(Execution):
    """An `Execution` on JAX."""

    def wait_for(self, result: Any) -> None:
        """Wait for the arrays."""
        jax.block_until_ready(result)

    def run_and_describe(self) -> tuple[Any, Any]:
        """Make the call; return what it returns, and the shapes of its first batch."""
        noting = _Noting(self._args[-1])
        result = self._function(*self._args[:-1], noting)
        return result, noting.described

    def _can_take_from(self, iterator: Any) -> bool:
        return hasattr(iterator, "__next__") and num_workers() == 1

    def _items_of_execution(self) -> int:
        # To a step of ours comes all of an execution at once.
        return 1 if isinstance(self._model, TrainStep) else self.steps

    def _steps_of(self, item: Any) -> int:
        return steps_of(item) if isinstance(self._model, TrainStep) else 1

    def _bytes_of(self, item: Any) -> int:
        return sum(np.asarray(leaf).nbytes if not hasattr(leaf, "nbytes") else leaf.nbytes for leaf in _leaves(item))

    def _source_of(self, items: list[Any]) -> Any:
        jax.block_until_ready([leaf for leaf in _leaves(items) if isinstance(leaf, jax.Array)])
        return iter(items)


class _Noting:
    """An iterator that notes the shapes of the first batch that comes by.

    Attributes:
        described: These shapes; `None` before.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.described: Any = None

    def __iter__(self) -> _Noting:
        return self

    def __next__(self) -> Any:
        item = next(self._iterator)
        if self.described is None:
            self.described = _described(item)
        return item


def _described(item: Any) -> Any:
    """Return the shapes of one batch of what an iterator has given."""
    stacked = False
    if isinstance(item, list) and item and isinstance(item[0], Group):
        item, stacked = item[0].data, item[0].steps is not None

    def shape(leaf: Any) -> Any:
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape[1:] if stacked else leaf.shape, dtype)

    return jax.tree.map(shape, item)


def _leaves(item: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(item) if leaf is not None]


def intercept_executions(model: Any, around: Callable[[Execution], Any]) -> Interception:
    """Let `around` make the calls of the train function of `model`, which is in `fit`."""
    return Interception(model, JaxExecution, around)
