"""Let a step record losses and gradients that are not finite, while a callback asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext._runtime.common.values import NotFinite, Overflow
from keras_tpu_ext._runtime.compat import dtype_of, ops, path_of
from keras_tpu_ext._runtime.training.not_finite import NotFiniteWatch
from keras_tpu_ext._runtime.training.overflow import OverflowWatch
from keras_tpu_ext._runtime.training.progress import train_steps
from keras_tpu_ext._runtime.training.step_state import step_state_of


def watch_overflow(model: Model) -> Callable[[], list[Overflow]] | None:
    """Let the step record non-finite gradients; return a function that reads them, or `None` if it cannot."""
    if step_state_of(model) is None:
        return None
    with model._kte.own_scope():
        watch: OverflowWatch = model._kte.make_overflow_watch(train_steps(model) or 0)
    _set(model, overflow_watch=watch)
    return watch.read


def watch_not_finite(model: Model) -> Callable[[], NotFinite] | None:
    """Let the step record the first loss that is not finite; return what reads it, or `None` if it cannot."""
    if step_state_of(model) is None:
        return None
    with model._kte.own_scope():
        watch: NotFiniteWatch = model._kte.not_finite_watch()
        if model.trainable_variables:
            watch.make_for(model.trainable_variables)
    _set(model, not_finite_watch=watch)
    return lambda: watch.read()._replace(rate_finite=_has_finite_rate(model))


def unwatch(model: Model) -> None:
    """Stop recording gradients and losses."""
    state = step_state_of(model)
    if state is not None and (state.overflow_watch is not None or state.not_finite_watch is not None):
        _set(model, overflow_watch=None, not_finite_watch=None)


def not_finite_weights(model: Model) -> list[str]:
    """Return the paths of the weights of `model` that have an inf or a NaN; waits for the device."""
    weights = [weight for weight in model.weights if "float" in dtype_of(weight)]
    finite: list[Any] = [ops.all(ops.isfinite(ops.convert_to_tensor(weight))) for weight in weights]
    return [
        path_of(weight)
        for weight, one in zip(weights, finite, strict=True)
        if not np.asarray(ops.convert_to_numpy(one))
    ]


def _has_finite_rate(model: Model) -> bool:
    rate = getattr(model.optimizer, "learning_rate", 0.0)
    return callable(rate) or bool(np.isfinite(ops.convert_to_numpy(rate)))


def _set(model: Model, **watches: object) -> None:
    model._kte.state.__dict__.update(watches)  # not tracked by Keras: they are not state to save
    model.make_train_function(force=True)  # the step is traced again
