"""What a step on JAX remembers besides weights and optimizer: values go in and out of the step with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_ext._runtime.training.gradient_accumulator import GradientAccumulator
from keras_tpu_ext._runtime.training.state import StepState


class StatelessStepState(StepState):
    """A `StepState` whose variables are read and assigned within a `keras.StatelessScope`."""

    def all_variables(self) -> list[Any]:
        """Return every variable, those of the windows and of the watch too, in a fixed order."""
        parts = [self, *self._windows.values(), *([self.watch] if self.watch is not None else [])]
        return [variable for part in parts for variable in part.own_variables()]

    def own_variables(self) -> list[Any]:
        """Return the variables of the loss scale."""
        return [] if self.loss_scale is None else [self.scale, self.good_steps, self.skipped_steps]

    def _assign(self, variable: Any, value: Any) -> None:
        variable.assign(value)

    def _make_window(self, optimizer: Any) -> Window:
        return Window(self.accumulation_steps, lambda: optimizer)


class Window(GradientAccumulator):
    """Sums of gradients over several batches, those of all devices."""

    def own_variables(self) -> list[Any]:
        """Return every variable."""
        return [self.position, self.weight, *self.sums] if self.targets else []

    def build_for(self, variables: Any) -> None:
        """Make the sums for the gradients of `variables`, once."""
        if self.targets:
            return
        self.position = self._variable("position", (), "int32")
        self.weight = self._variable("weight", (), "float32")
        self.sums = [self._variable(f"sum_{i}", v.shape, v.dtype) for i, v in enumerate(variables)]
        self.__dict__["targets"] = list(variables)  # not to be tracked: they are the model's

    def add(self, gradients: Any, weight: Any) -> None:
        """Add one batch, given its gradients and what it counts for."""
        weight = jnp.asarray(weight, "float32")
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign(total.value + gradient * weight.astype(gradient.dtype))
        self.weight.assign(self.weight.value + weight)
        self.position.assign(self.position.value + 1)

    def means(self) -> list[Any]:
        """Return the mean gradients of the batches so far; zeros where there are none."""
        weight = jnp.where(self.weight.value == 0, 1.0, self.weight.value)
        return [total.value / weight.astype(total.value.dtype) for total in self.sums]

    def empty_if(self, condition: Any) -> None:
        """Start anew where `condition` holds."""
        for variable in self.own_variables():
            variable.assign(jnp.where(condition, jnp.zeros_like(variable.value), variable.value))

    def save_own_variables(self, store: Any) -> None:
        """Save the sums, in the form in which replicas on TensorFlow save theirs: along a first dimension."""
        if not self.targets:
            return
        store["position"], store["weight"] = np.asarray(self.position.value), np.asarray(self.weight.value)
        for i, total in enumerate(self.sums):
            store[f"sum_{i}"] = np.asarray(total.value)[None]

    def load_own_variables(self, store: Any) -> None:
        """Load what was saved, on whatever runtime and number of replicas."""
        if not self.targets or "position" not in store:
            return
        self.position.assign(store["position"][()])
        self.weight.assign(store["weight"][()])
        for i, total in enumerate(self.sums):
            total.assign(np.asarray(store[f"sum_{i}"]).sum(axis=0))

    def _variable(self, name: str, shape: Any, dtype: str) -> Any:
        return keras.Variable(jnp.zeros(shape, dtype), trainable=False, name=name, dtype=dtype)


def stateless(function: Callable[[], Any], variables: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return the values of `variables` after `function` has run, if they had `values` before."""
    with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))) as scope:
        function()
    return [scope.get_current_value(variable) for variable in variables]


def choose(condition: Any, if_true: Any, if_false: Any) -> Any:
    """Return one of two structures of arrays."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
