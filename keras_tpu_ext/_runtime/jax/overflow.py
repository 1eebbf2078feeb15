"""Whose gradients were not finite, on JAX: a note of each variable, kept while a callback asks for it.

On JAX a gradient is that of all replicas together when it is first seen, so a note has no replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras

from keras_tpu_ext._runtime.common.protocols import Overflow
from keras_tpu_ext._runtime.jax.scope import distribution_of, within
from keras_tpu_ext._runtime.training.progress import train_steps


class OverflowWatch(keras.layers.Layer):
    """For every variable the last update whose gradient was not finite.

    Args:
        variables: The trainable variables.
        steps: Number of steps that the optimizer had taken when the watch began.
    """

    def __init__(self, variables: Any, steps: int) -> None:
        super().__init__(name="overflow_watch", dtype="float32")
        self.built = True
        self.updates = keras.Variable(jnp.int32(0), trainable=False, dtype="int32", name="updates")
        self.last = keras.Variable(
            jnp.zeros([len(variables)], "int32"), trainable=False, dtype="int32", name="last_overflow"
        )
        self._paths = [variable.path for variable in variables]
        self._seen = 0
        self._steps_before = steps

    def own_variables(self) -> list[Any]:
        """Return every variable."""
        return [self.updates, self.last]

    def skipped(self, steps: int) -> int:
        """Return how many updates were no step, given how many steps the optimizer has taken by now."""
        return int(keras.ops.convert_to_numpy(self.updates)) - (steps - self._steps_before)

    def note(self, gradients: Any) -> None:
        """Note which gradients are not finite; call it in the step."""
        number = self.updates.value + 1
        bad = jnp.stack([jnp.logical_not(jnp.all(jnp.isfinite(gradient))) for gradient in gradients])
        self.last.assign(jnp.where(bad, number, self.last.value))
        self.updates.assign(number)

    def read(self) -> list[Overflow]:
        """Return what was noted since the last reading: the last overflow of each variable."""
        updates = keras.ops.convert_to_numpy(self.last)
        found = []
        for update in sorted({int(number) for number in updates if number > self._seen}):
            those = tuple(path for path, number in zip(self._paths, updates, strict=True) if number == update)
            found.append(Overflow(update, None, those, len(self._paths)))
        self._seen = int(keras.ops.convert_to_numpy(self.updates))
        return found


def watch_overflow(model: Any) -> Callable[[], list[Overflow]] | None:
    """Let the train step note overflows from now on; call it before the step is traced, or it is traced anew.

    Returns:
        A function that returns what was noted since it was called last, or `None` where the model keeps no notes.
    """
    state = vars(model).get("_step_state")
    if state is None:
        return None
    with within(distribution_of(model)):
        watch = OverflowWatch(model.trainable_variables, train_steps(model) or 0)
    _set_watch(model, watch)
    return watch.read


def unwatch_overflow(model: Any) -> None:
    """Let the train step note nothing any more."""
    if getattr(vars(model).get("_step_state"), "watch", None) is not None:
        _set_watch(model, None)


def skipped_steps(model: Any) -> int | None:
    """Return how many steps were skipped since `compile`, or `None` where nothing counts them.

    Where a `LossScaleOptimizer` does the skipping, they are counted while there is a watch.
    """
    state = vars(model).get("_step_state")
    if state is None:
        return None
    if state.loss_scale is not None:
        return int(keras.ops.convert_to_numpy(state.skipped_steps))
    is_counted = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) and state.accumulation_steps == 1
    return state.watch.skipped(train_steps(model) or 0) if is_counted and state.watch is not None else None


def _set_watch(model: Any, watch: Any) -> None:
    model._step_state.__dict__["watch"] = watch  # past Keras's tracking: it is no state to save
    model.make_train_function(force=True)
