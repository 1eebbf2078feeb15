"""`steps_per_execution="auto"` on Keras 3: executions whose length changes while `fit` runs.

Private names of Keras that this module leans on (tests/_runtime/test_private_names.py watches them): of
`EpochIterator`: `_enumerate_iterator`, `_get_iterator`, `_current_iterator`, `_steps_seen`, `_num_batches`,
`_interrupted_warning`.
"""

from __future__ import annotations

import contextlib
import inspect
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_tpu_ext._runtime._keras3_batch_hooks import wanting_every_batch
from keras_tpu_ext._runtime.steps_tuner import StepsTuner


class AutoSteps:
    """Runs `fit` and `evaluate` in executions of the length that suits, after `compile` asked for it.

    `steps_per_execution` is then the length in use: it grows during the first `fit`.
    """

    _pace: Pace | None = None

    def _choose_pace(self: Any, auto: bool) -> None:
        self.__dict__["_pace"] = self._make_pace() if auto else None

    def _make_pace(self: Any) -> Pace:
        """Return the runtime's own kind of pace."""
        raise NotImplementedError

    def _is_one_of_several_processes(self: Any) -> bool:
        """Return whether other processes train this model too."""
        raise NotImplementedError

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train as `keras.Model.fit` does."""
        model: Any = super()
        with self._paced("fit", args, kwargs):
            return model.fit(*args, **kwargs)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as `keras.Model.evaluate` does."""
        model: Any = super()
        with self._paced("evaluate", args, kwargs):
            return model.evaluate(*args, **kwargs)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict` does."""
        model: Any = super()
        with self._paced("predict", args, kwargs):
            return model.predict(*args, **kwargs)

    @contextlib.contextmanager
    def _paced(self: Any, method: str, args: Any, kwargs: Any) -> Iterator[None]:
        pace = self._pace
        if pace is None:
            yield
            return
        before = self.steps_per_execution
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

    def _enumerate_at_pace(self: Any, epoch_iterator: Any) -> None:
        """Let the iterator over an epoch's batches ask before every execution how many steps it has."""
        if self._pace is not None:
            epoch_iterator._enumerate_iterator = lambda: self._pace.enumerate(self, epoch_iterator)


class Pace:
    """How many steps each execution of one model has.

    Attributes:
        tuner: Finds the number.
        held: Whether every execution has one step, because somebody needs to see every batch.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.tuner = StepsTuner()
        self.held = False
        self._clock = clock
        self._asked = 1
        self._done: Any = 1

    @contextlib.contextmanager
    def inner(self, held: bool) -> Iterator[None]:
        """Within the block hold or not; a fit whose callback evaluates goes on afterwards as if it had not."""
        before = self.held, self._asked, self._done
        self.held = held
        try:
            yield
        finally:
            self.held, self._asked, self._done = before

    @property
    def asked(self) -> int:
        """Number of steps in the execution that was announced last."""
        return self._asked

    def note_done(self, steps: Any) -> None:
        """Note how many steps an execution had: fewer than asked for where the data has ended."""
        self._done = steps

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
            self.tuner.note(int(self._done), self._clock() - begin)
            model.steps_per_execution = self.tuner.steps

    def enumerate(self, model: Any, epoch: Any) -> Iterator[tuple[int, int, Any]]:
        """Yield the first batch, the last batch and the iterator of every execution of one epoch.

        As Keras's own `EpochIterator._enumerate_iterator`, but for the steps, which are read anew each time and
        never reach over the epoch's end.

        Args:
            model: The model; its `steps_per_execution` is the length of the next execution.
            epoch: Keras's `EpochIterator`.
        """
        epoch.data_adapter.on_epoch_begin()
        size = epoch.steps_per_epoch or epoch._num_batches
        yield from self._enumerate_known(model, epoch, size) if size else self._enumerate_unknown(model, epoch)
        epoch.data_adapter.on_epoch_end()

    def _enumerate_known(self, model: Any, epoch: Any, size: int) -> Iterator[tuple[int, int, Any]]:
        if epoch._current_iterator is None or epoch.steps_per_epoch is None:
            self._start(epoch)
        batch = 0
        while batch < size:
            left = size - batch
            if epoch._num_batches:
                left = min(left, epoch._num_batches - epoch._steps_seen)
            if left <= 0:
                if epoch.steps_per_epoch:
                    epoch._interrupted_warning()
                break
            self._asked = steps = min(model.steps_per_execution, left)
            epoch._steps_seen += steps
            yield batch, batch + steps - 1, epoch._current_iterator
            batch += steps
        if epoch._num_batches and epoch._steps_seen >= epoch._num_batches:
            self._start(epoch)

    def _enumerate_unknown(self, model: Any, epoch: Any) -> Iterator[tuple[int, int, Any]]:
        self._start(epoch)
        done = steps = 0
        while done == steps:
            epoch._steps_seen += done  # what Keras takes for the size, should the next execution find no data
            # While `held` nobody counts what was done: a single step is done, or ends the epoch by an exception.
            self._asked = self._done = steps = model.steps_per_execution
            yield epoch._steps_seen, epoch._steps_seen + steps - 1, epoch._current_iterator
            done = int(self._done)
        epoch._num_batches = epoch._steps_seen + done
        epoch._current_iterator = None

    @staticmethod
    def _start(epoch: Any) -> None:
        epoch._current_iterator = iter(epoch._get_iterator())
        epoch._steps_seen = 0


def _must_hold(model: Any, method: str, callbacks: Any) -> bool:
    """Return whether every execution must have one step; where a callback is the reason, say so."""
    if model.run_eagerly or model._is_one_of_several_processes():
        return True
    names = wanting_every_batch(callbacks, method)
    if names and method == "fit":
        warnings.warn(
            f'steps_per_execution="auto" stays at 1 in this fit, because {" and ".join(names)} asked for every '
            "batch by overriding a batch hook. If it can do with one call for several batches, write in its "
            "class: wants_every_batch = False",
            stacklevel=7,
        )
    return bool(names)
