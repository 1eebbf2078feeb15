"""Records of non-finite gradients, which a step keeps while a callback asks for them."""

from __future__ import annotations

from collections.abc import Callable

from keras_tpu_ext._runtime.common.protocols import Overflow
from keras_tpu_ext._runtime.common.types import Model, Tensor, Variable
from keras_tpu_ext._runtime.compat import COUNTS_SKIPPED_STEPS, LossScaleOptimizer, keras, new_variable, ops, scale_of
from keras_tpu_ext._runtime.training.progress import train_steps
from keras_tpu_ext._runtime.training.step_state import step_state_of


class OverflowWatch(keras.layers.Layer):
    """For every variable, and every replica if known, the last update whose gradient was not finite."""

    def __init__(self, steps: int) -> None:
        super().__init__(name="overflow_watch", dtype="float32")
        self.built = True
        # Number of updates since then, including those of skipped steps.
        self.num_updates: Variable = new_variable(0, "int32", "num_updates")
        self._seen = 0
        self._steps_before = steps

    def skipped(self, steps: int) -> int:
        """Return the number of skipped updates, given the number of steps that the optimizer has taken."""
        return int(ops.convert_to_numpy(self.num_updates)) - (steps - self._steps_before)

    def read(self) -> list[Overflow]:
        """Return the last overflow of each variable and replica since the last call; all processes must call it."""
        found = []
        for paths, replica, updates in self._notes():
            for update in sorted({int(number) for number in updates if number > self._seen}):
                those = tuple(path for path, number in zip(paths, updates, strict=True) if number == update)
                found.append(Overflow(update, replica, those, len(paths)))
        self._seen = int(ops.convert_to_numpy(self.num_updates))
        return sorted(found)

    def save_own_variables(self, store: dict[str, object]) -> None:
        """Save nothing: records are not state of the model, though Keras finds them when a callback saves it."""

    def load_own_variables(self, store: dict[str, object]) -> None:
        """Load nothing."""

    def _notes(self) -> list[tuple[list[str], int | None, list[int]]]:
        """Return variables' paths, a replica or `None`, and for each path the number of its last overflow."""
        raise NotImplementedError


def watch_overflow(model: Model) -> Callable[[], list[Overflow]] | None:
    """Let the step, which is traced again, record overflows; return what reads them, or `None` if it cannot."""
    if step_state_of(model) is None:
        return None
    with model._kte.own_scope():
        watch: OverflowWatch = model._kte.make_overflow_watch(train_steps(model) or 0)
    _set_watch(model, watch)
    return watch.read


def unwatch_overflow(model: Model) -> None:
    """Stop recording overflows in the train step."""
    state = step_state_of(model)
    if state is not None and state.overflow_watch is not None:
        _set_watch(model, None)


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
    watch: OverflowWatch = state.overflow_watch
    return watch.skipped(train_steps(model) or 0)


def _set_watch(model: Model, watch: OverflowWatch | None) -> None:
    model._kte.state.__dict__["overflow_watch"] = watch  # not tracked by Keras: it is not state to save
    model.make_train_function(force=True)
