"""A running `fit`: watched from its first line to its last, its progress, and the log keys in progress bars.

The progress is that of counters that Keras keeps anyway. On JAX the counters are not in the model's variables while
`fit` runs; a callback that accesses `self.model` brings them there, and must do so in a hook that Keras calls in the
main thread: a begin hook, or the one at an epoch's end.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from keras_tpu_ext._runtime.common.patches import install
from keras_tpu_ext._runtime.common.types import Callback, Model, Tensor, Variable
from keras_tpu_ext._runtime.compat import (
    COUNTS_SKIPPED_STEPS,
    LossScaleOptimizer,
    keras,
    loss_tracker_of,
    ops,
    scale_of,
)
from keras_tpu_ext._runtime.compat import end_names_last_batch as end_names_last_batch
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext.output.display import rounded

FitWatch = Callable[[Model, list[Callback], float, contextlib.ExitStack], list[Any]]


class _Fit:
    """A call of `fit`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.began = time.perf_counter()
        self.has_begun = False  # and what calls `fit` again is a callback
        self.at_end = contextlib.ExitStack()
        self.container: Any = None  # the `CallbackList` whose hooks it calls


_FIT: ContextVar[_Fit | None] = ContextVar("_FIT", default=None)
_WATCHES: list[FitWatch] = []


@contextlib.contextmanager
def running_fit(model: Model) -> Iterator[None]:
    """Return a context for a call of the `fit` of `model`; it may be entered again inside."""
    outer = _FIT.get()
    if outer is not None and outer.model is model and not outer.has_begun:
        yield
        return
    fit = _Fit(model)
    token = _FIT.set(fit)
    try:
        with fit.at_end:
            yield
    finally:
        _FIT.reset(token)


def watch_fits(watch: FitWatch) -> None:
    """From now on, call `watch` when the callbacks of a `fit` are about to be called for the first time.

    It gets the model, its callbacks, the `time.perf_counter` of the first line of `fit`, and a stack that is closed
    at its end, also after an error; it returns what Keras is to call in place of the callbacks.
    """
    if watch not in _WATCHES:
        _WATCHES.append(watch)
    begin = "keras.callbacks.CallbackList.on_train_begin"  # each time: somebody may have put the stock ones back
    install([(keras.Model, "keras.Model.fit", _fit), (keras.callbacks.CallbackList, begin, _on_train_begin)])


def finish_hooks() -> None:
    """Wait until hooks of the running `fit` have returned, which Keras on JAX calls in other threads.

    Raises the error of one that has failed. It needs a `watch_fits` before the `fit`.
    """
    fit = _FIT.get()
    for future in list(getattr(fit and fit.container, "_futures", ())):
        future.result()


def _fit(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def fit(self: Any, *args: Any, **kwargs: Any) -> object:
        with running_fit(self):
            return stock(self, *args, **kwargs)

    return fit


def _on_train_begin(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        fit = _FIT.get()
        if fit is not None and fit.model is self.model and not fit.has_begun:
            fit.has_begun, fit.container = True, self
            before = self.callbacks
            for watch in _WATCHES:
                self.callbacks = watch(fit.model, list(self.callbacks), fit.began, fit.at_end)
            fit.at_end.callback(_put_back, self, before, self.callbacks, len(self.callbacks))
        stock(self, logs)

    return on_train_begin


def _put_back(container: Any, callbacks: list[Callback], called: list[Any], count: int) -> None:
    """Give a `CallbackList` its callbacks back, and those that it got during the `fit`."""
    if container.callbacks is called:
        callbacks += called[count:]
        container.callbacks = callbacks


# A sum of ones stops being exact at two to the power of the significand's bits.
_EXACT_BELOW = {"bfloat16": 2.0**8, "float16": 2.0**11, "float32": 2.0**24, "float64": 2.0**53}
_MOST_SHORT = 3  # renamed keys that a progress bar shows
# By log key: its name in progress bars, or `None` to hide it.
_names: dict[str, str | None] = {}


def examples_seen(model: Model) -> float | None:
    """Return the number of examples that `model` has trained on in this epoch, or `None` if that is unknown.

    Keras weights its loss tracker by the batch size, so the tracker's `count` is exact with short batches and, summed
    over replicas, under `tf.distribute`; `evaluate` resets it. A user-defined `train_step` may leave it at zero
    (`None` here) or add one per step and replica (see `counts_examples`). Waits for the device.
    """
    count = getattr(loss_tracker_of(model), "count", None)
    if count is None:
        return None
    seen = float(ops.convert_to_numpy(count))
    exact_below = _EXACT_BELOW.get(getattr(count.dtype, "name", str(count.dtype)), 0.0)
    return seen if 0.0 < seen < exact_below else None


def counts_examples(model: Model) -> bool:
    """Return whether the train step is Keras's or this package's, which weight the loss tracker by the batch size."""
    return type(model).train_step.__module__.partition(".")[0] in ("keras", "tf_keras", "keras_tpu_ext")


def train_steps(model: Model) -> int | None:
    """Return the number of train steps that the optimizer of `model` has taken, or `None`; waits for the device.

    `optimizer.iterations` divides by the accumulation steps, so the counter behind it is read. It does not count a
    step skipped by loss scaling. When a dataset of unknown length ends under `steps_per_execution=1`, TensorFlow's
    graph has already added one for the batch that never came: do not take differences across the end of an epoch.
    """
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    steps = getattr(inner, "_iterations", None)
    if steps is None:  # of Keras 2's optimizers.legacy, before their first step
        steps = getattr(inner, "iterations", None)
    return None if steps is None else int(ops.convert_to_numpy(steps))


def loss_scale(model: Model) -> float | None:
    """Return the loss scale of the next step; `None` without loss scaling."""
    state = step_state_of(model)
    scale: Tensor | Variable | None = None
    if state is not None and state.loss_scaler:
        scale = state.scale
    elif isinstance(model.optimizer, LossScaleOptimizer):
        scale = scale_of(model.optimizer)
    return None if scale is None else float(ops.convert_to_numpy(scale))


def skipped_steps(model: Model) -> int | None:
    """Return the number of steps skipped since `compile`, or `None` if nothing counts them.

    If a `LossScaleOptimizer` of Keras 3 does the skipping, they are counted only while there is a watch.
    """
    state = step_state_of(model)
    if state is None:
        return None
    if state.loss_scaler:
        return int(ops.convert_to_numpy(state.skipped_steps))
    is_counted = isinstance(model.optimizer, LossScaleOptimizer) and state.accumulation_steps == 1
    if COUNTS_SKIPPED_STEPS or not is_counted or state.overflow_watch is None:
        return None
    return int(state.overflow_watch.skipped(train_steps(model) or 0))


def show_in_progress_bar(names: Mapping[str, str | None]) -> None:
    """Let progress bars show log keys under these names, not averaged; `None` hides a key."""
    if not _names:
        install([(keras.callbacks.ProgbarLogger, "keras.callbacks.ProgbarLogger.on_epoch_begin", _with_names)])
    _names.update(names)


def _with_names(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def on_epoch_begin(self: Any, *args: object, **kwargs: object) -> None:
        stock(self, *args, **kwargs)
        bar = self.progbar
        shown = {name for name in _names.values() if name is not None}
        # Keras 2 keeps its own set, and passes it on at each batch. From Keras 3.15 on nothing is averaged.
        for owner in (self, bar):
            if getattr(owner, "stateful_metrics", None) is not None:
                owner.stateful_metrics = {*owner.stateful_metrics, *shown}
        install([(bar, "a progress bar's update", _renaming)])

    return on_epoch_begin


class _Rounded(float):
    """A number that a progress bar shows rounded: it takes the mean of what it has, and four decimals.

    Keras 3 before 3.12 takes the mean as a tensor, and keeps its four decimals.
    """

    def __truediv__(self, count: float) -> _Rounded:
        return self

    def mean(self, **options: object) -> _Rounded:
        """Return itself, to `numpy.mean`, which Keras 2 calls."""
        return self

    def __format__(self, spec: str) -> str:
        return rounded(float(self))


def _renaming(update: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(update)
    def wrapped(current: Any, values: Any = None, *args: object, **kwargs: object) -> None:
        update(current, _renamed(values), *args, **kwargs)

    return wrapped


def _renamed(values: Any) -> list[tuple[str, object]]:
    """Return the pairs of key and value that a progress bar shows."""
    short = 0
    renamed = []
    for key, value in values or ():
        name = _names.get(key, key)
        short += name not in (key, None)
        if key in _names and math.isnan(value):  # not known yet
            continue
        if name == key or (name is not None and short <= _MOST_SHORT):
            renamed.append((name, _Rounded(value) if key in _names else value))
    return renamed
