"""`steps_per_execution="auto"`: executions whose length changes while `fit` runs."""

from __future__ import annotations

import contextlib
import inspect
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_tpu_ext._runtime.common.steps_tuner import StepsTuner
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.training.batch_hooks import needing_every_batch

_NOT_THE_USERS = (str(Path(__file__).parents[1]), contextlib.__file__)


class AutoSteps:
    """Runs `fit` and `evaluate` in executions of the length that suits, after `compile` asked for it.

    `steps_per_execution` is then the length in use: it grows during the first `fit`.
    """

    _schedule: ExecutionSchedule | None = None

    def _choose_schedule(self: Any, auto: bool) -> None:
        self.__dict__["_schedule"] = self._make_schedule() if auto else None

    def _make_schedule(self: Any) -> ExecutionSchedule:
        """Return the runtime's own kind of pace."""
        raise NotImplementedError

    def _is_one_of_several_processes(self: Any) -> bool:
        """Return whether other processes train this model too."""
        raise NotImplementedError

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train as `keras.Model.fit` does."""
        model: Any = super()
        with self._scheduled("fit", args, kwargs):
            return model.fit(*args, **kwargs)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as `keras.Model.evaluate` does."""
        model: Any = super()
        with self._scheduled("evaluate", args, kwargs):
            return model.evaluate(*args, **kwargs)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict` does."""
        model: Any = super()
        with self._scheduled("predict", args, kwargs):
            return model.predict(*args, **kwargs)

    @contextlib.contextmanager
    def _scheduled(self: Any, method: str, args: Any, kwargs: Any) -> Iterator[None]:
        pace = self._schedule
        if pace is None:
            yield
            return
        before = int(self.steps_per_execution)
        held = method == "predict"  # Keras would unroll its steps
        if not held:
            signature = inspect.signature(getattr(keras.Model, method))
            callbacks = signature.bind_partial(self, *args, **kwargs).arguments.get("callbacks")
            held = _must_hold(self, method, callbacks)
        self.steps_per_execution = 1 if held else pace.tuner.steps
        try:
            with pace.inner(held):
                yield
        finally:
            self.steps_per_execution = pace.tuner.steps if method == "fit" else before


class ExecutionSchedule:
    """How many steps each execution of one model has.

    Attributes:
        tuner: Finds the number.
        held: Whether every execution has one step, because somebody needs to see every batch.
        asked: Number of steps in the execution that was announced last.
        done: How many steps it had, fewer where the data has ended; may be a tensor.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.tuner = StepsTuner()
        self.held = False
        self._clock = clock
        self.asked = 1
        self.done: Any = 1

    @contextlib.contextmanager
    def inner(self, held: bool) -> Iterator[None]:
        """Within the block hold or not; a fit whose callback evaluates goes on afterwards as if it had not."""
        before = self.held, self.asked, self.done
        self.held = held
        try:
            yield
        finally:
            self.held, self.asked, self.done = before

    def time(self, model: Any, run: Callable[[], bool]) -> None:
        """Learn from an execution.

        Args:
            model: The model that trains.
            run: Runs the execution, waits for its results and returns whether it says nothing about time, as one
                does that was compiled on the way.
        """
        begin = self._clock()
        is_worthless = run()
        if not is_worthless:
            self.tuner.note(int(self.done), self._clock() - begin)
            model.steps_per_execution = self.tuner.steps


def _must_hold(model: Any, method: str, callbacks: Any) -> bool:
    """Return whether every execution must have one step; where a callback is the reason, say so."""
    if model.run_eagerly or model._is_one_of_several_processes():
        return True
    names = needing_every_batch(callbacks, method)
    if names and method == "fit":
        warnings.warn(
            f'steps_per_execution="auto" stays at 1 in this fit, because {" and ".join(names)} asked for every '
            "batch by overriding a batch hook. If it can do with one call for several batches, write in its "
            "class: wants_every_batch = False",
            stacklevel=_level_of_the_user(),
        )
    return bool(names)


def _level_of_the_user() -> int:
    """Return the `stacklevel` with which a warning of the caller points at who called into this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame, level = frame.f_back, level + 1
    return level
