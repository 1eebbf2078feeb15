"""From gradients to updated weights on JAX: accumulate, unscale, check, clip, apply; all without side effects.

JAX sums the gradients of a global batch's loss over all devices before any code here sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_ext._runtime.common.types import Model, Optimizer
from keras_tpu_ext._runtime.compat.keras3_jax import layout_of, trace_state
from keras_tpu_ext._runtime.keras3.models import optimizers_of
from keras_tpu_ext._runtime.training.step_state import BaseGradientAccumulator, LossScaler, StepState, step_state_of
from keras_tpu_ext._runtime.training.watches import NotFiniteWatch, OverflowWatch

_T = TypeVar("_T")
Values: TypeAlias = "Sequence[jax.Array]"
State: TypeAlias = "tuple[Any, ...]"  # of `state_variables`


class Weights(NamedTuple):
    """Values of the variables of a model and of its optimizer."""

    trainable: Values
    non_trainable: Values
    optimizer: Values


def step_variables(state: StepState) -> list[keras.Variable]:
    """Return every variable of a step's state, in a fixed order, with those of its watches."""
    watches = [watch for watch in (state.overflow_watch, state.not_finite_watch) if watch is not None]
    return [*state.own_variables(), *(variable for watch in watches for variable in watch.own_variables())]


def state_variables(model: Model) -> tuple[list[keras.Variable], ...]:
    """Return the variables whose values Keras passes to a train step."""
    optimizer = getattr(model, "optimizer", None)
    variables = [] if optimizer is None else optimizer.variables
    return model.trainable_variables, model.non_trainable_variables, variables, model.metrics_variables


def own_variables(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of a step that Keras's state lacks: of the `StepState`, and of other optimizers."""
    state, compiled = step_state_of(model), getattr(model, "optimizer", None)
    optimizers = [optimizer for optimizer in optimizers_of(model) if optimizer is not compiled]
    others = [variable for optimizer in optimizers for variable in optimizer.variables]
    return [*([] if state is None else step_variables(state)), *others]


class StatelessLossScaler(LossScaler):
    """A `LossScaler` for pure functions."""

    def apply_or_skip(self, gradients: Values, apply: Callable[[], Weights], skipped: Weights) -> Weights:
        """Return `apply()` if all unscaled `gradients` are finite, else `skipped`."""
        if not self or not gradients:
            return apply()
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(gradient)) for gradient in gradients]))
        self._update(finite)
        return jax.lax.cond(finite, apply, lambda: skipped)


class GradientAccumulator(BaseGradientAccumulator):
    """Sums of gradients over several batches, already summed over all devices."""

    def _make_sums(self, variables: Sequence[keras.Variable]) -> None:
        self.position = self._variable("position", (), "int32")
        self.weight = self._variable("weight", (), "float32")
        self.sums = sums = [self._variable(f"sum_{i}", v.shape, v.dtype) for i, v in enumerate(variables)]
        for total, variable in zip(sums, variables, strict=True):
            if layout_of(variable) is not None:
                total._layout = layout_of(variable)
                total.assign(total.value)

    def add(self, gradients: Values, weight: jax.Array | int) -> None:
        """Add one batch, given its gradients and its weight."""
        weight = jnp.asarray(weight, "float32")
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign(total.value + gradient * weight.astype(gradient.dtype))
        self.weight.assign(self.weight.value + weight)
        self.position.assign(self.position.value + 1)

    def means(self) -> list[jax.Array]:
        """Return the mean gradients of the batches so far; zeros if there are none."""
        weight = jnp.where(self.weight.value == 0, 1.0, self.weight.value)
        return [total.value / weight.astype(total.value.dtype) for total in self.sums]

    def clear_if(self, condition: jax.Array | bool) -> None:
        """Start a new window if `condition` holds."""
        for variable in self.own_variables():
            variable.assign(jnp.where(condition, jnp.zeros_like(variable.value), variable.value))

    def _of_replicas(self, total: keras.Variable) -> np.ndarray:
        return total.numpy()[None]

    def _assign_to_replicas(self, total: keras.Variable, sums: np.ndarray) -> None:
        total.assign(sums.sum(axis=0))

    def _variable(self, name: str, shape: tuple[int, ...], dtype: str) -> keras.Variable:
        return keras.Variable("zeros", shape=shape, trainable=False, name=name, dtype=dtype)


class StatelessOverflowWatch(OverflowWatch):
    """An `OverflowWatch` within a `keras.StatelessScope`; gradients are reduced, so a record has no replica."""

    def __init__(self, variables: Sequence[keras.Variable], steps: int) -> None:
        super().__init__(variables, steps)
        self.last = keras.Variable(
            jnp.zeros([len(variables)], "int32"), trainable=False, dtype="int32", name="last_overflow"
        )
        self._paths = [variable.path for variable in variables]

    def own_variables(self) -> list[keras.Variable]:
        """Return every variable."""
        return [self.num_updates, self.last]

    def note(self, gradients: Sequence[jax.Array]) -> None:
        """Record which gradients are not finite; call it in the step."""
        number = self.num_updates.value + 1
        bad = jnp.stack([jnp.logical_not(jnp.all(jnp.isfinite(gradient))) for gradient in gradients])
        self.last.assign(jnp.where(bad, number, self.last.value))
        self.num_updates.assign(number)

    def _notes(self) -> list[tuple[list[str], int | None, list[int]]]:
        return [(self._paths, None, list(keras.ops.convert_to_numpy(self.last)))]


class StatelessNotFiniteWatch(NotFiniteWatch):
    """A `NotFiniteWatch` within a `keras.StatelessScope`."""

    def own_variables(self) -> list[keras.Variable]:
        """Return every variable."""
        return [self.num_steps, self.sums, self.weights_then, self.sums_then, self.first_call] if self.paths else []

    def assign_if(
        self, condition: jax.Array, variables: Sequence[keras.Variable], values: Callable[[], Values]
    ) -> None:
        """Assign the values if the condition holds."""
        for variable, value in zip(
            variables, jax.lax.cond(condition, values, lambda: [one.value for one in variables]), strict=True
        ):
            variable.assign(value)

    def values(self, variable: keras.Variable) -> Sequence[np.ndarray]:
        """Return the value, in a list."""
        return [keras.ops.convert_to_numpy(variable)]

    def trace(self) -> object:
        """Return the state of JAX's trace."""
        return trace_state()


def accumulate_or_apply(
    model: Model, gradients: Values, before: Weights, non_trainable: Values, weight: jax.Array | int
) -> Weights:
    """Take a step, or add the gradients of the scaled loss to a window of batches; return the values after it.

    `before` is from before the step, and `non_trainable` from after the forward pass; `weight` is that of the batch.
    """
    state = model._kte.state
    if state.overflow_watch is not None:
        state.overflow_watch.note(gradients)
    gradients = state.loss_scaler.unscale(gradients)
    after = before._replace(non_trainable=non_trainable)
    accumulator = state.accumulator(model.optimizer)
    if accumulator is None:
        return _step(model, gradients, after, skipped=before)
    accumulator.add(gradients, weight)
    return flush_window(model, after, accumulator.position.value >= accumulator.steps)


def flush_window(model: Model, weights: Weights, condition: jax.Array | bool = True) -> Weights:
    """Take the step of a window if `condition` holds, and start a new one."""
    accumulator, variables = model._kte.state.accumulator(model.optimizer), model._kte.state.loss_scaler.variables
    gradients, values = accumulator.means(), [variable.value for variable in variables]

    def take() -> tuple[Weights, list[jax.Array]]:
        return run_stateless(lambda: _step(model, gradients, weights, skipped=weights), variables, values)

    weights, values = jax.lax.cond(condition, take, lambda: (weights, values))
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    accumulator.clear_if(condition)
    return weights


def compiled_flush(model: Model, optimizer: Optimizer) -> tuple[Any, tuple[list[keras.Variable], ...]]:
    """Return the function that takes the step of a window, and the variables whose values it takes and returns."""
    own = own_variables(model)

    @jax.jit
    def flush(trainable: Values, non_trainable: Values, optimizer: Values, own_values: Values) -> tuple[Values, ...]:
        before = Weights(trainable, non_trainable, optimizer)
        weights, values = run_stateless(lambda: flush_window(model, before), own, own_values)
        return (*weights, values)

    return flush, (model.trainable_variables, model.non_trainable_variables, optimizer.variables, own)


def _step(model: Model, gradients: Values, weights: Weights, *, skipped: Weights) -> Weights:
    """Return the values after a step that starts from `weights`, or `skipped`."""

    def apply() -> Weights:
        trainable, values = model.optimizer.stateless_apply(weights.optimizer, gradients, weights.trainable)
        return Weights(trainable, weights.non_trainable, values)

    return model._kte.state.loss_scaler.apply_or_skip(gradients, apply, skipped)


def run_stateless(
    function: Callable[[], _T], variables: Sequence[keras.Variable], values: Values
) -> tuple[_T, list[jax.Array]]:
    """Run `function` with `values` in `variables`; return its result, and their values afterwards."""
    with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))) as scope:
        result = function()
    return result, [scope.get_current_value(variable) for variable in variables]
