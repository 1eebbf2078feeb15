"""Executions of changing length on JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from keras_tpu_ext._runtime.common.steps_tuner import StepsTuner
from keras_tpu_ext._runtime.training.auto_steps import ExecutionSchedule

# Bytes; an execution's batches wait together in the memory of the devices.
MOST_BYTES = 2**28


class GroupExecutionSchedule(ExecutionSchedule):
    """A `ExecutionSchedule` for functions that take groups of batches."""

    def run_train(self, model: Any, next_groups: Callable[[], Any], run: Callable[[Any], Any], is_new: Any) -> Any:
        """Run an execution of training and learn from it, unless it was compiled on the way.

        Args:
            model: The model that trains.
            next_groups: Returns the groups of the next execution.
            run: Runs groups and returns what the step returned.
            is_new: `is_new(group)`: whether running a group means compiling.
        """
        results: list[Any] = []

        def timed() -> bool:
            groups = next_groups()
            self.done = steps_of(groups)
            compiles = any([is_new(group) for group in groups])
            results.append(jax.block_until_ready(run(groups)))
            self.tuner.most_steps = _that_fit(groups)
            return compiles

        if self.held or self.tuner.settled:
            groups = next_groups()
            self.done = steps_of(groups)
            return run(groups)
        self.time(model, timed)
        return results[0]


def steps_of(groups: Any) -> int:
    """Return how many batches there are in groups."""
    return sum(1 if group.steps is None else int(group.steps) for group in groups)


def _that_fit(groups: Any) -> int:
    size = sum(leaf.nbytes for group in groups for leaf in jax.tree.leaves(group.data))
    return max(1, min(StepsTuner.most_steps, MOST_BYTES * steps_of(groups) // max(1, size)))
