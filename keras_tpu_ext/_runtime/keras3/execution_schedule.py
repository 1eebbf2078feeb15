"""Executions of varying length in Keras 3's loop over an epoch."""

from __future__ import annotations

import contextlib
import functools
import queue
from collections.abc import Iterator
from typing import TypeAlias

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.types import DataAdapter, EpochIterator, Model
from keras_tpu_ext._runtime.compat.keras3 import execution
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses

# What `execution` of `compat/keras3.py` returns.
Executions: TypeAlias = Iterator[tuple[object, ...]]


def enumerate_executions(model: Model, epoch_iterator: EpochIterator) -> None:
    """Let the iterator over an epoch's batches determine before every execution how many steps it has.

    Also let it start in the middle of an epoch, if training resumes there, and without left-over batches.
    """
    _discard_what_is_left_over(epoch_iterator.data_adapter)
    data = None if model._kte.running is None else model._kte.running.data
    if model._kte.schedule is not None or data is not None:
        executions = functools.partial(_enumerate, model, data, epoch_iterator)
        override(epoch_iterator, "_enumerate_iterator", executions)


def _enumerate(model: Model, data: ResumablePasses | None, epoch: EpochIterator) -> Executions:
    """Yield every execution of one epoch.

    Like Keras's own `EpochIterator._enumerate_iterator`, except for the steps, which are read again each time and,
    if there is a schedule, never reach over the epoch's end.
    """
    epoch.data_adapter.on_epoch_begin()
    # Not the size that Keras learns from the first epoch: it is one too many, and ends each epoch by an exception.
    size = epoch.steps_per_epoch or epoch.data_adapter.num_batches
    batch, of_pass = (0, 0) if data is None else data.take_first_batch()
    if epoch._current_iterator is None or epoch.steps_per_epoch is None:
        _start(epoch, of_pass)
    yield from (_enumerate_known(model, epoch, size, batch) if size else _enumerate_unknown(model, epoch, batch))
    if size and epoch._num_batches and epoch._steps_seen >= epoch._num_batches:
        with contextlib.nullcontext() if data is None else data.between_epochs(epoch.steps_per_epoch is None):
            _start(epoch)
    epoch.data_adapter.on_epoch_end()


def _enumerate_known(model: Model, epoch: EpochIterator, size: int, batch: int) -> Executions:
    while batch < size:
        left = size - batch
        if epoch._num_batches:
            left = min(left, epoch._num_batches - epoch._steps_seen)
        if left <= 0:
            if epoch.steps_per_epoch:
                epoch._interrupted_warning()
            break
        steps, schedule = model.steps_per_execution, model._kte.schedule
        if schedule is not None:
            schedule.requested_steps = steps = min(model.steps_per_execution, left)
        epoch._steps_seen += steps
        yield execution(batch, batch + steps - 1, epoch._current_iterator)
        batch += steps


def _enumerate_unknown(model: Model, epoch: EpochIterator, batch: int) -> Executions:
    schedule = model._kte.schedule
    epoch._steps_seen = batch
    done = steps = 0
    while done == steps:
        epoch._steps_seen += done  # what Keras takes as the size, if the next execution finds no data
        done = steps = model.steps_per_execution
        # While `held`, completed steps are not counted: a single step completes, or ends the epoch by an exception.
        if schedule is not None:
            schedule.requested_steps = schedule.completed_steps = steps
        yield execution(epoch._steps_seen, epoch._steps_seen + steps - 1, epoch._current_iterator)
        done = steps if schedule is None else int(schedule.completed_steps)
    epoch._current_iterator = None


def _start(epoch: EpochIterator, seen: int = 0) -> None:
    epoch._current_iterator = iter(epoch._get_iterator())
    epoch._steps_seen = seen


def _discard_what_is_left_over(adapter: DataAdapter) -> None:
    """Make each epoch of a `PyDataset` with workers begin without batches that were read before it.

    The workers read ahead when Keras takes the first batch to build the model. The first epoch would begin with what
    they have read then, and so have those batches twice and lack others.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None or adapter.num_batches is None:
        return
    begin = adapter.on_epoch_begin

    def on_epoch_begin() -> None:
        if not enqueuer.is_running():
            override(enqueuer, "ready_queue", queue.Queue())
        begin()

    override(adapter, "on_epoch_begin", on_epoch_begin)
