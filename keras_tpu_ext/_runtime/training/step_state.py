"""State of a step besides weights and optimizer: the loss scale, and gradients of a window that is not full.

Each framework has its own subclasses of these in its `update.py`, where steps are applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_ext._runtime.common.types import Array, Model, Optimizer, Tensor, Variable
from keras_tpu_ext._runtime.compat import keras, new_variable, ops
from keras_tpu_ext.checks import arguments as check


@keras.saving.register_keras_serializable(package="keras_tpu_ext")
@dataclasses.dataclass(frozen=True)
class LossScale:
    """Multiplies the loss by a scale before gradients are computed, and divides the gradients by it.

    float16 has no numbers below 6e-8, so small gradients would vanish without it. A step whose gradients are not all
    finite, on any replica, is skipped: only the scale changes. The rule is that of Micikevicius et al., Mixed
    Precision Training (2018), section 3.2, with the defaults of Keras.

    Args:
        initial: Scale of the first step. Defaults to 2**15.
        growth_steps: Number of finite steps in a row after which the scale grows. Defaults to 2000.
        growth_factor: Factor by which it grows; 1 keeps it. Defaults to 2.
        backoff_factor: Factor applied after a skipped step; 1 keeps it. Defaults to 0.5.
        minimum: Smallest scale. Defaults to 1.
        maximum: Largest scale. Defaults to 2**24.

    Raises:
        ArgumentError: If an argument is invalid.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        with kte.strategy_scope(precision="mixed_float16"):
            inputs = keras.Input((4,))
            x = keras.layers.Dense(16, activation="relu")(inputs)
            model = kte.TPUModel(inputs, keras.layers.Dense(1, dtype="float32")(x))
            model.compile("adam", "mse", loss_scale=kte.LossScale(initial=2**12, growth_steps=500))
        x = np.random.default_rng(0).normal(size=(256, 4))
        model.fit(x, x.sum(axis=1))
        ```
    """

    initial: float = 2.0**15
    growth_steps: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    minimum: float = 1.0
    maximum: float = 2.0**24

    def __post_init__(self) -> None:
        caller = type(self).__name__
        checked = {
            "initial": check.number(caller, "initial", self.initial, above=0, example="2**15"),
            "growth_steps": check.integer(caller, "growth_steps", self.growth_steps, example=2000),
            "growth_factor": check.number(caller, "growth_factor", self.growth_factor, minimum=1, example=2),
            "backoff_factor": check.number(
                caller, "backoff_factor", self.backoff_factor, above=0, maximum=1, example=0.5
            ),
            "minimum": check.number(caller, "minimum", self.minimum, above=0, example=1),
            "maximum": check.number(caller, "maximum", self.maximum, above=0, example="2**24"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not self.minimum <= self.initial <= self.maximum:
            needed = "at least `initial`, which is at least `minimum`"
            raise check.argument_error(caller, "maximum", needed, repr(self.maximum), "maximum=2**24")

    @classmethod
    def of(cls, value: object) -> LossScale | None:
        """Return the `LossScale` for `compile(loss_scale=value)`; `None` for `None`.

        Raises:
            ArgumentError: If `value` is not `None`, a positive number, `"dynamic"` or a `LossScale`.
        """
        if value is None or isinstance(value, LossScale):
            return value
        if value == "dynamic":
            return cls()
        what, example = 'None, "dynamic", a kte.LossScale or a number', '"dynamic", or loss_scale=1024'
        fixed = check.number("compile", "loss_scale", value, above=0, what=what, example=example)
        return cls(fixed, growth_factor=1.0, backoff_factor=1.0, minimum=fixed, maximum=fixed)

    def after(
        self, scale: Any, good_steps: Any, finite: Any, where: Callable[[Any, Any, Any], Any]
    ) -> tuple[Any, Any]:
        """Return the scale and the number of finite steps in a row after one more step.

        Args:
            scale: The scale of the step.
            good_steps: Number of finite steps in a row before it.
            finite: Whether all its gradients, unscaled and summed over replicas, were finite.
            where: A function `where(condition, a, b)`, in Python or of a framework.
        """
        counted = good_steps + 1
        full = counted >= self.growth_steps
        grown = scale * self.growth_factor
        grown = where(grown > self.maximum, scale * 0 + self.maximum, grown)
        shrunk = scale * self.backoff_factor
        shrunk = where(shrunk < self.minimum, scale * 0 + self.minimum, shrunk)
        zero = good_steps * 0
        return (
            where(finite, where(full, grown, scale), shrunk),
            where(finite, where(full, zero, counted), zero),
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal `LossScale`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LossScale:
        """Return the `LossScale` that `get_config` described."""
        return cls(**config)


class LossScaler:
    """Scales the loss, unscales gradients, and skips a step whose gradients are not all finite, as a config says.

    Steps are skipped only here. Without a config it leaves every value unchanged and skips nothing.
    """

    def __init__(self, config: LossScale | None) -> None:
        self.config = config
        self.variables: list[Variable] = []  # scale, number of finite steps in a row, number of skipped steps
        if config is not None:
            self.scale = new_variable(config.initial, "float32", "scale")
            self.good_steps = new_variable(0, "int32", "good_steps")
            self.skipped_steps = new_variable(0, "int32", "skipped_steps")
            self.variables = [self.scale, self.good_steps, self.skipped_steps]

    def __bool__(self) -> bool:
        """Return whether the loss is scaled."""
        return self.config is not None

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return loss * self._scale_as(loss) if self else loss

    def unscale(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the unscaled loss."""
        return [gradient / self._scale_as(gradient) for gradient in gradients] if self else gradients

    def _update(self, finite: Tensor) -> None:
        """Adjust the scale after a step, given whether all its gradients were finite."""
        if self.config is None:
            return
        scale, good_steps, skipped = (ops.convert_to_tensor(variable) for variable in self.variables)
        scale, good_steps = self.config.after(scale, good_steps, finite, ops.where)
        self._assign(self.scale, scale)
        self._assign(self.good_steps, good_steps)
        self._assign(self.skipped_steps, skipped + ops.cast(ops.logical_not(finite), "int32"))

    def _scale_as(self, value: Tensor) -> Tensor:
        return ops.cast(ops.convert_to_tensor(self.scale), value.dtype)

    def _assign(self, variable: Variable, value: Tensor) -> None:
        """Assign a value that is the same on every replica."""
        variable.assign(value)


class Unsaved(keras.layers.Layer):
    """A layer whose variables are no state of the model, although Keras finds it when it saves and loads."""

    def save_own_variables(self, store: object) -> None:
        """Save nothing."""

    def load_own_variables(self, store: object) -> None:
        """Load nothing."""


class BaseGradientAccumulator(keras.layers.Layer):
    """Sums of gradients over the batches of a window. A layer, because Keras saves the variables of layers."""

    position: Variable  # number of batches in the window
    weight: Variable  # of all of them
    sums: list[Variable]  # of the gradients of each target

    def __init__(self, steps: int, optimizer: Callable[[], Optimizer]) -> None:
        super().__init__(name="window", dtype="float32")
        self.steps = steps  # number of batches in a full window
        self.optimizer = optimizer  # returns it: Keras would save an optimizer stored here directly
        self.targets: list[Variable] = []  # the variables that the gradients are of; empty before `build_for`
        self.built = True

    def build_for(self, variables: Sequence[Variable]) -> None:
        """Make the sums for the gradients of `variables`, once."""
        if not self.targets:
            self._make_sums(variables)
            self.__dict__["targets"] = list(variables)  # not to be tracked: they are the model's

    def is_open(self) -> bool:
        """Return whether its window has some batches; waits for the device."""
        return bool(self.targets) and bool(int(ops.convert_to_numpy(self.position)))

    def own_variables(self) -> list[Variable]:
        """Return its variables, in a fixed order; none before `build_for`."""
        return [self.position, self.weight, *self.sums] if self.targets else []

    def save_own_variables(self, store: Any) -> None:
        """Save the sums of every replica; if the window has begun, all processes that train together must do so."""
        if self.targets:
            store["position"], store["weight"] = self.position.numpy(), self.weight.numpy()
            for i, total in enumerate(self.sums):
                store[f"sum_{i}"] = self._of_replicas(total)

    def load_own_variables(self, store: Any) -> None:
        """Load what was saved, on any runtime and any number of replicas."""
        if self.targets and "position" in store:
            self.position.assign(store["position"][()])
            self.weight.assign(store["weight"][()])
            for i, total in enumerate(self.sums):
                self._assign_to_replicas(total, np.asarray(store[f"sum_{i}"]))

    def _make_sums(self, variables: Sequence[Variable]) -> None:
        raise NotImplementedError

    def _of_replicas(self, total: Variable) -> Array:
        """Return the sums that the replicas have of a variable, stacked along a first dimension."""
        raise NotImplementedError

    def _assign_to_replicas(self, total: Variable, sums: Array) -> None:
        raise NotImplementedError


class StepState(keras.layers.Layer):
    """The loss scaler and the gradient accumulators of one compiled model, which Keras saves with it.

    It is not a layer of the model, so that the model has only the weights that the user gave it.
    """

    def __init__(
        self, loss_scaler: LossScaler, accumulator_class: type[BaseGradientAccumulator], accumulation_steps: int
    ) -> None:
        super().__init__(name="step_state", dtype="float32")
        self.loss_scaler = loss_scaler
        self.accumulation_steps = accumulation_steps
        self._accumulator_class = accumulator_class
        self._windows: dict[int, BaseGradientAccumulator] = {}
        # Records gradients that are not finite, while a callback asks for it. Keras would save it if it tracked it.
        self.__dict__["overflow_watch"] = None
        self.__dict__["not_finite_watch"] = None  # the same, of losses
        self.built = True
        if loss_scaler:
            self.scale, self.good_steps, self.skipped_steps = loss_scaler.variables  # Keras finds them here

    def load_own_variables(self, store: Mapping[str, object]) -> None:
        """Load the loss scale; that of a file without one begins anew."""
        if list(store.keys()):
            super().load_own_variables(store)

    def accumulator(self, optimizer: Optimizer | None) -> BaseGradientAccumulator | None:
        """Return the gradient accumulator of `optimizer`; `None` if every batch is a step."""
        if self.accumulation_steps == 1 or optimizer is None:
            return None
        if id(optimizer) not in self._windows:
            self._windows[id(optimizer)] = self._accumulator_class(self.accumulation_steps, lambda: optimizer)
        return self._windows[id(optimizer)]

    def accumulators(self) -> list[BaseGradientAccumulator]:
        """Return the gradient accumulators of all optimizers so far."""
        return list(self._windows.values())

    def own_variables(self) -> list[Variable]:
        """Return the variables of the loss scale and of the accumulators, in a fixed order."""
        of_windows = [variable for window in self.accumulators() for variable in window.own_variables()]
        return [*self.loss_scaler.variables, *of_windows]


def step_state_of(model: Model) -> StepState | None:
    """Return the `StepState` of a compiled model with an exact step; `None` for any other."""
    program = getattr(model, "_kte", None)
    return None if program is None else program.state
