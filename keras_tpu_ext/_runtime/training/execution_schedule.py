"""`steps_per_execution="auto"`: how many steps each execution has, while `fit` runs."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_ext._runtime.common.types import Model, Tensor
from keras_tpu_ext._runtime.common.user_frame import warn
from keras_tpu_ext._runtime.compat import keras, saves_each_epoch
from keras_tpu_ext._runtime.training.fit_call import FitCall

# Seconds; the TensorFlow team's target for an automatic value (tensorflow#41742).
SHORTEST, LONGEST = 0.2, 1.0
_TARGET = 0.5
_MAX_GROWTH = 8


class StepsTuner:
    """Finds the number of steps, a power of two, in an execution that takes 0.2 to 1 second.

    It grows at most 8 times at once, and has settled once two executions in a row took that long, or longer with a
    single step, or were a whole epoch.
    """

    most_steps = 2**20  # upper limit of `steps`; it settles there too

    def __init__(self) -> None:
        self.steps = 1  # number of steps in the next execution
        self.settled = False  # true once `steps` is final
        self._fitted = False
        self._cut = False  # whether the last execution ended with its epoch

    def note(self, steps: int, seconds: float) -> None:
        """Record the seconds until the results of an execution were available.

        One with fewer steps than asked for ends its epoch, and is ignored; two such in a row are whole epochs.
        """
        if self.settled:
            return
        was_cut, self._cut = self._cut, steps != self.steps
        if self._cut:
            self.settled = was_cut
            return
        fits = SHORTEST <= seconds <= LONGEST
        fits |= (steps == 1 and seconds > LONGEST) or (steps >= self.most_steps and seconds < SHORTEST)
        self.settled = fits and self._fitted
        self._fitted = fits
        if not fits:
            self.steps = min(steps_that_fit(seconds / steps, self.most_steps), self.steps * _MAX_GROWTH)


def steps_that_fit(step_seconds: float | None, most_steps: int) -> int:
    """Return how many steps, a power of two, take up to half a second; 8 if it is unknown how long one takes."""
    fit = _MAX_GROWTH if step_seconds is None else max(1.0, _TARGET / max(step_seconds, 1e-9))
    return min(2 ** math.floor(math.log2(fit)), most_steps)


# By method of the model: the callback hooks that are called for its batches.
_BATCH_HOOKS = {
    "fit": ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    "evaluate": ("on_test_batch_begin", "on_test_batch_end"),
}


class ExecutionSchedule:
    """The number of steps in the executions of one model."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.tuner = StepsTuner()  # finds the number
        # Whether every execution has one step, for example because a callback needs to see every batch.
        self.held = False
        self.requested_steps = 1  # number of steps in the execution that was announced last
        # Number of steps that it had, fewer if the data has ended; may be a tensor.
        self.completed_steps: int | Tensor = 1
        self._clock = clock

    @contextlib.contextmanager
    def use(self, model: Model, call: FitCall, *, one_process: bool) -> Iterator[None]:
        """Within the block `model.steps_per_execution` follows this schedule.

        A nested call, such as an `evaluate` in a callback, leaves the state of the outer call as it was.
        """
        steps_before = int(model.steps_per_execution)
        state_before = self.held, self.requested_steps, self.completed_steps
        # In predict Keras would unroll the steps.
        self.held = call.method == "predict" or model.run_eagerly or not one_process or _must_see_batches(call)
        model.steps_per_execution = 1 if self.held else self.tuner.steps
        try:
            yield
        finally:
            self.held, self.requested_steps, self.completed_steps = state_before
            model.steps_per_execution = self.tuner.steps if call.method == "fit" else steps_before

    def time(self, model: Model, run: Callable[[], bool]) -> None:
        """Learn from an execution."""
        begin = self._clock()
        is_compiled = run()
        if not is_compiled:
            self.tuner.note(int(self.completed_steps), self._clock() - begin)
            model.steps_per_execution = self.tuner.steps


def needing_every_batch(call: FitCall) -> list[str]:
    """Return the class names of the callbacks that ask for every batch of a call.

    These are the callbacks that override a batch hook, except Keras's own if they are configured to work per epoch,
    and callbacks with an attribute `wants_every_batch = False`.
    """
    hooks = _BATCH_HOOKS[call.method]
    return [type(callback).__name__ for callback in call.callbacks if _needs_every_batch(callback, hooks)]


def _must_see_batches(call: FitCall) -> bool:
    """Return whether a callback needs every batch; in `fit`, warn about it."""
    names = needing_every_batch(call)
    if names and call.method == "fit":
        warn(
            f'steps_per_execution="auto" stays at 1 in this fit, because {" and ".join(names)} asked for every '
            "batch by overriding a batch hook. If it can do with one call for several batches, write in its "
            "class: wants_every_batch = False"
        )
    return bool(names)


def _needs_every_batch(callback: Any, hooks: tuple[str, ...]) -> bool:
    if not getattr(callback, "wants_every_batch", True):
        return False
    owners = {owner for hook in hooks if (owner := _owner(callback, hook)) is not keras.callbacks.Callback}
    return bool(owners) and not all(_works_by_epoch(owner, callback) for owner in owners)


def _owner(callback: Any, hook: str) -> object:
    """Return the class that defines a hook, or the callback itself if it was set on the object."""
    if hook in vars(callback):
        return callback
    return next((owner for owner in type(callback).__mro__ if hook in vars(owner)), keras.callbacks.Callback)


def _works_by_epoch(owner: Any, callback: Any) -> bool:
    if owner is keras.callbacks.ProgbarLogger:
        return True  # it shows progress: any execution will do
    if owner is keras.callbacks.TensorBoard:
        by_epoch = callback.update_freq == "epoch" and not callback.write_steps_per_second
        return by_epoch and not callback._should_trace
    return owner in saves_each_epoch and callback.save_freq == "epoch"
