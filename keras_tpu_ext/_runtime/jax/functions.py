"""The functions that Keras's `fit`, `evaluate` and `predict` on JAX call for one execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from keras_tpu_ext._runtime.jax.batches import Group, host_batch
from keras_tpu_ext._runtime.jax.execution_schedule import steps_of
from keras_tpu_ext._runtime.jax.loop import Execution, Step


def make_function(model: Any, step: Step, *, trains: bool) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the function that Keras calls with a state and an iterator; it returns logs and the next state.

    Args:
        model: The model.
        step: `train_step` or `test_step`.
        trains: Whether it is `train_step`; a model that finds its `steps_per_execution` learns from that.
    """
    execution = Execution(model, step)

    def run(state: Any, groups: list[Group]) -> tuple[Any, Any]:
        for group in groups:
            outputs, state = execution.run(state, group)
        return outputs, state

    def function(state: Any, iterator: Any) -> tuple[Any, Any]:
        pace = model._schedule
        if pace is not None and trains:
            return pace.run_train(
                model, lambda: _groups(model, next(iterator)), lambda groups: run(state, groups), execution.is_new
            )
        groups = _groups(model, next(iterator))
        if pace is not None:
            pace.done = steps_of(groups)
        return run(state, groups)

    return function


def make_predict_function(model: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the function that Keras calls with a state and an iterator; it returns outputs and the next state."""

    def step(state: Any, data: Any) -> tuple[Any, Any]:
        outputs, non_trainable = model.predict_step(state, data)
        return outputs, (state[0], non_trainable)

    execution = Execution(model, step, collects=True)

    def function(state: Any, iterator: Any) -> tuple[Any, Any]:
        outputs: list[Any] = []
        for group in _groups(model, next(iterator)):
            some, state = execution.run(state, group)
            outputs += _of_examples(some, group)
        return jax.tree.map(lambda *parts: np.concatenate(parts) if len(parts) > 1 else parts[0], *outputs), state

    return function


def _groups(model: Any, item: Any) -> list[Group]:
    """Return the groups of an execution; `*_on_batch` and Keras's own adapters give a single batch."""
    if isinstance(item, list) and item and isinstance(item[0], Group):
        return item
    return model._batches(fills_up=False).groups([host_batch(item)])


def _of_examples(outputs: Any, group: Group) -> list[Any]:
    """Return the outputs of each batch of a group, without rows that are no examples."""
    if group.steps is None:
        return [_first(outputs, group, group.examples)]
    steps = range(int(group.steps))
    if group.examples is None:
        return [jax.tree.map(lambda leaf, i=i: leaf[i], outputs) for i in steps]
    counts = np.asarray(group.examples)
    return [
        _first(jax.tree.map(lambda leaf, i=i: leaf[i], outputs), group, counts[i], rows_of=lambda leaf: leaf.shape[1])
        for i in steps
    ]


def _first(outputs: Any, group: Group, examples: Any, rows_of: Any = len) -> Any:
    """Return the rows of outputs that belong to examples; there may be several for each, or something else."""
    if examples is None:
        return outputs
    rows = rows_of(jax.tree.leaves(group.data)[0])

    def first(leaf: Any) -> Any:
        return leaf[: int(examples) * (len(leaf) // rows)] if len(leaf) % rows == 0 else leaf

    return jax.tree.map(first, outputs)
