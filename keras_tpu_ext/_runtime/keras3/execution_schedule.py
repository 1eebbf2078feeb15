"""Executions of changing length in Keras 3's loop over an epoch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, TypeAlias

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext._runtime.compat.keras3 import execution
from keras_tpu_ext._runtime.training.execution_schedule import ExecutionSchedule

# What `execution` of `compat/keras3.py` returns.
Executions: TypeAlias = Iterator[tuple[Any, ...]]


def enumerate_by_schedule(model: Model, epoch_iterator: Any) -> None:
    """Let the iterator over an epoch's batches ask before every execution how many steps it has."""
    if model._kte_schedule is not None:
        executions = functools.partial(_enumerate, model._kte_schedule, model, epoch_iterator)
        override(epoch_iterator, "_enumerate_iterator", executions)


def _enumerate(schedule: ExecutionSchedule, model: Model, epoch: Any) -> Executions:
    """Yield every execution of one epoch.

    As Keras's own `EpochIterator._enumerate_iterator`, but for the steps, which are read anew each time and
    never reach over the epoch's end.

    Args:
        schedule: The model's.
        model: The model; its `steps_per_execution` is the length of the next execution.
        epoch: Keras's `EpochIterator`.
    """
    epoch.data_adapter.on_epoch_begin()
    size = epoch.steps_per_epoch or epoch._num_batches
    yield from _enumerate_known(schedule, model, epoch, size) if size else _enumerate_unknown(schedule, model, epoch)
    epoch.data_adapter.on_epoch_end()


def _enumerate_known(schedule: ExecutionSchedule, model: Model, epoch: Any, size: int) -> Executions:
    if epoch._current_iterator is None or epoch.steps_per_epoch is None:
        _start(epoch)
    batch = 0
    while batch < size:
        left = size - batch
        if epoch._num_batches:
            left = min(left, epoch._num_batches - epoch._steps_seen)
        if left <= 0:
            if epoch.steps_per_epoch:
                epoch._interrupted_warning()
            break
        schedule.requested_steps = steps = min(model.steps_per_execution, left)
        epoch._steps_seen += steps
        yield execution(batch, batch + steps - 1, epoch._current_iterator)
        batch += steps
    if epoch._num_batches and epoch._steps_seen >= epoch._num_batches:
        _start(epoch)


def _enumerate_unknown(schedule: ExecutionSchedule, model: Model, epoch: Any) -> Executions:
    _start(epoch)
    done = steps = 0
    while done == steps:
        epoch._steps_seen += done  # what Keras takes for the size, should the next execution find no data
        # While `held` nobody counts what was done: a single step is done, or ends the epoch by an exception.
        schedule.requested_steps = schedule.completed_steps = steps = model.steps_per_execution
        yield execution(epoch._steps_seen, epoch._steps_seen + steps - 1, epoch._current_iterator)
        done = int(schedule.completed_steps)
    epoch._num_batches = epoch._steps_seen + done
    epoch._current_iterator = None


def _start(epoch: Any) -> None:
    epoch._current_iterator = iter(epoch._get_iterator())
    epoch._steps_seen = 0
