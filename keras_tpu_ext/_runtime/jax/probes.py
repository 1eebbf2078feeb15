"""Probes of a train step, on JAX, and the executions of a running `fit`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.jax.abstract import call_abstractly as call_abstractly
from keras_tpu_ext._runtime.jax.data_adapter import Group
from keras_tpu_ext._runtime.jax.devices import num_workers
from keras_tpu_ext._runtime.jax.flops import count_flops as count_flops
from keras_tpu_ext._runtime.jax.loop import steps_of
from keras_tpu_ext._runtime.jax.lowering import lower_step as lower_step
from keras_tpu_ext._runtime.jax.program import TrainStep
from keras_tpu_ext._runtime.training.gradients import record_gradients as record_gradients
from keras_tpu_ext._runtime.training.not_finite import not_finite_weights as not_finite_weights
from keras_tpu_ext._runtime.training.not_finite import unwatch_not_finite as unwatch_not_finite
from keras_tpu_ext._runtime.training.not_finite import watch_not_finite as watch_not_finite
from keras_tpu_ext._runtime.training.overflow import unwatch_overflow as unwatch_overflow
from keras_tpu_ext._runtime.training.overflow import watch_overflow as watch_overflow


class JaxExecution(Execution):
    """An `Execution` on JAX."""

    def wait_for(self, result: Nest) -> None:
        """Wait for the arrays."""
        jax.block_until_ready(result)

    def run_and_describe(self) -> tuple[Nest, Nest | None]:
        """Make the call; return its result and the shapes of its first batch."""
        iterator = self._args[-1]
        first = next(iterator)
        result = self._function(*self._args[:-1], itertools.chain([first], iterator))
        return result, _shapes_of_batch(first)

    def _can_take_from(self, iterator: Iterator[Nest]) -> bool:
        return hasattr(iterator, "__next__") and num_workers() == 1

    def _items_of_execution(self) -> int:
        # `TrainStep` takes all batches of an execution as one item.
        return 1 if isinstance(self._model, TrainStep) else self.steps

    def _steps_of(self, item: Any) -> int:
        return steps_of(item) if isinstance(self._model, TrainStep) else 1

    def _bytes_of(self, item: Nest) -> int:
        return sum(
            leaf.nbytes if hasattr(leaf, "nbytes") else np.asarray(leaf).nbytes for leaf in jax.tree.leaves(item)
        )

    def _source_of(self, items: Sequence[Nest]) -> Iterator[Nest]:
        jax.block_until_ready([leaf for leaf in jax.tree.leaves(items) if isinstance(leaf, jax.Array)])
        return iter(items)


def _shapes_of_batch(item: Nest) -> Nest:
    stacked = False
    if isinstance(item, list) and item and isinstance(item[0], Group):
        stacked, item = item[0].steps is not None, item[0].data

    def shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape[1:] if stacked else leaf.shape, dtype)

    return jax.tree.map(shape, item)


def intercept_executions(model: keras.Model, around: Callable[[Execution], Nest]) -> Interception:
    """Pass each call of the train function of `model`, which is in `fit`, to `around`."""
    return Interception(model, JaxExecution, around)
