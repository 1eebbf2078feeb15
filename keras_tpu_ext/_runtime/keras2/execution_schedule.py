"""Executions of varying length in Keras 2's loop over an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import DataHandler
from keras_tpu_ext._runtime.compat.keras2 import private
from keras_tpu_ext._runtime.keras2.resumable_data import ResumesData

_data_adapter = private("engine.data_adapter")
_DataHandler: Any = private("engine.data_adapter:DataHandler")


class ScheduledDataHandler(_DataHandler):
    """A `DataHandler` that asks the model before every execution how many steps it has.

    An execution never reaches over the end of an epoch, and the size of the data need not be known.
    """

    def __init__(self, *args: object, steps_per_execution: object = None, **kwargs: object) -> None:
        # Keras gets 1, because for more it would ask for the size of the data.
        super().__init__(*args, steps_per_execution=tf.Variable(1, dtype=tf.int64), **kwargs)

    def steps(self: DataHandler) -> Iterator[int]:
        """Yield the first step of each execution of one epoch."""
        self._current_step, self._initial_step = self._initial_step, 0
        while not self._insufficient_data:
            steps = int(self._model.steps_per_execution)
            if self._inferred_steps is not None:
                steps = min(steps, self._inferred_steps - self._current_step)
            if steps <= 0:
                return
            schedule = self._model._kte.schedule
            schedule.requested_steps = schedule.completed_steps = steps
            self._step_increment = steps - 1
            yield self._current_step
            if self._inferred_steps is None and int(schedule.completed_steps) < steps:
                self._inferred_steps = self._current_step + int(schedule.completed_steps)
            self._current_step += steps


class ResumableDataHandler(ResumesData, _DataHandler):
    """A `DataHandler` whose first epoch may start in its middle."""


class ScheduledResumableDataHandler(ResumesData, ScheduledDataHandler):
    """A `ScheduledDataHandler` whose first epoch may start in its middle."""


def use_data_handlers() -> contextlib.AbstractContextManager[None]:
    """Return a context in which data handlers follow the model's schedule and may start in the middle of the data."""

    def make(stock: Callable[..., DataHandler]) -> Callable[..., DataHandler]:
        def get_data_handler(*args: object, **kwargs: object) -> DataHandler:
            model = kwargs.get("model")
            program = getattr(model, "_kte", None)
            has_schedule = getattr(program, "schedule", None) is not None
            data = getattr(getattr(program, "running", None), "data", None)
            if data is None or data.handler is not None:
                return (ScheduledDataHandler if has_schedule else stock)(*args, **kwargs)
            return (ScheduledResumableDataHandler if has_schedule else ResumableDataHandler)(*args, **kwargs)

        return get_data_handler

    return patched([(_data_adapter, "keras.src.engine.data_adapter.get_data_handler", make)])
