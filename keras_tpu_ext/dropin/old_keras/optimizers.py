"""Optimizers as old Keras had them: `lr=`, `decay=`, `optimizer.lr`, `optimizers.legacy`, TensorFlow 1's.

The rule of `decay` is that of `keras.optimizers.legacy`: step i runs at lr / (1 + decay * i), and `optimizer.lr` says
lr. Where Keras 2.11 changed an optimizer, the later one is meant: RMSprop and Adagrad add epsilon inside the root. An
RMSprop with `decay=`, which only the earlier one had, or from `optimizers.legacy`, adds it outside.
Nadam is that of Keras 3: the momentum of the legacy one grew more slowly, and that of Keras 2.15 with each variable.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend import get_stateless_scope, in_stateless_scope

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.old_keras.arguments import rename
from keras_tpu_ext.dropin.patching import Function, add, owners, replace, wrap
from keras_tpu_ext.dropin.report import mapped, means_old, told
from keras_tpu_ext.tools.migrate.tables.old_arguments import ARGUMENTS

_NAMES = ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD", "Optimizer", "AdamW")
# TensorFlow 1's optimizers: Keras's class, and for each of its arguments the attribute that holds the value
_TF1 = {
    "GradientDescentOptimizer": ("SGD", {"learning_rate": "_learning_rate"}),
    "MomentumOptimizer": (
        "SGD",
        {"learning_rate": "_learning_rate", "momentum": "_momentum", "nesterov": "_use_nesterov"},
    ),
    "AdamOptimizer": (
        "Adam",
        {"learning_rate": "_lr", "beta_1": "_beta1", "beta_2": "_beta2", "epsilon": "_epsilon"},
    ),
}


def install() -> None:
    """Make old optimizers work."""
    optimizer = "keras.optimizers.Optimizer"
    wrap(
        {
            f"{optimizer}.__init__": _with_old_arguments,
            f"{optimizer}.build": _with_epsilon,
            f"{optimizer}._backend_update_step": _with_decay,
            f"{optimizer}.get_config": _config_with_decay,
            "keras.optimizers.LossScaleOptimizer.__init__": _with_loss_scale,
            "keras.optimizers.RMSprop.update_step": _with_epsilon_outside,
        }
    )
    replace({f"{optimizer}.learning_rate": _learning_rate})
    cls = keras.optimizers.Optimizer
    add(cls, "lr", property(_rate, _set_rate, doc="The learning rate: its old name."))
    add(cls, "_decayed_lr", _decayed_rate)
    add(cls, "weights", property(lambda self: self.variables, doc="The variables: their old name."))
    add(cls, "get_weights", lambda self: [variable.numpy() for variable in self.variables])
    for legacy in owners("keras.optimizers.legacy.Adam"):  # a module of errors
        vars(legacy).update({name: getattr(keras.optimizers, name) for name in _NAMES}, RMSprop=_LegacyRMSprop)


class _LegacyRMSprop(keras.optimizers.RMSprop):
    """The RMSprop before Keras 2.11."""


_LegacyRMSprop.__name__, _LegacyRMSprop.__module__ = "RMSprop", keras.optimizers.RMSprop.__module__  # in files


def _with_old_arguments(init: Function, self: Any, learning_rate: Any = 0.001, *args: Any, **kwargs: Any) -> None:
    """Take `lr`, `decay` and what Keras 2 took as a number."""
    _refuse_old_subclass(type(self))
    if type(self) is keras.optimizers.Nadam:
        means_old("Nadam", "Nadam of Keras 3, whose momentum grows otherwise than in Keras 2: other numbers")
    legacy = isinstance(self, _LegacyRMSprop) or "decay" in kwargs
    if isinstance(self, keras.optimizers.RMSprop) and not legacy:
        means_old("RMSprop", "that of Keras 2.11 and later; the one before, of decay= and legacy, has other numbers")
    rename(ARGUMENTS["keras.optimizers.*"], kwargs)
    learning_rate = kwargs.pop("learning_rate", learning_rate)
    decay = float(kwargs.pop("decay", None) or 0.0)
    if decay:
        _check_decay(decay, learning_rate)
        told(f"decay={decay}", "the rate of step i is learning_rate / (1 + decay * i)")
    init(self, _number(learning_rate), *args, **kwargs)
    self._decay, self._is_legacy = decay, legacy


def _check_decay(decay: float, learning_rate: Any) -> None:
    if callable(learning_rate):
        raise ValueError(
            f"decay={decay} needs a learning rate that is a number, and this one is {learning_rate!r}. "
            "Write the decay into the schedule, and decay=0."
        )


def _number(rate: Any) -> Any:
    """Return a schedule as it is, and anything else as a float, which Keras 3 insists on."""
    if callable(rate) and not hasattr(rate, "dtype"):
        return rate
    return float(np.asarray(rate.numpy() if hasattr(rate, "numpy") else rate))


def _refuse_old_subclass(cls: type) -> None:
    """Raise an error for a class that has Keras 2's methods and not Keras 3's."""
    old = [name for name in ("_resource_apply_dense", "get_updates") if hasattr(cls, name)]
    if old and cls.update_step is keras.optimizers.Optimizer.update_step:  # type: ignore[attr-defined]
        raise out_of_reach(
            what=f"{cls.__name__}.{old[0]}",
            why="it writes TensorFlow's variables itself",
            write="`update_step(self, gradient, variable, learning_rate)`, with self.assign_sub(variable, ...)",
        )


def _with_epsilon(build: Function, self: Any, variables: Any) -> Any:
    """Take `epsilon=None` as Keras's own epsilon."""
    if getattr(self, "epsilon", 0.0) is None:
        mapped("epsilon=None", f"epsilon={keras.config.epsilon()}")
        self.epsilon = keras.config.epsilon()
    return build(self, variables)


def _with_epsilon_outside(stock: Function, self: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Add epsilon to the root, as RMSprop did; with momentum it added it inside the root."""
    if not self._is_legacy or self.momentum > 0 or self.centered:
        stock(self, gradient, variable, learning_rate)
        return
    gradient = ops.cast(gradient, variable.dtype)
    velocity = self._velocities[self._get_variable_index(variable)]
    self.assign(velocity, self.rho * velocity + (1 - self.rho) * ops.square(gradient))
    rate = ops.cast(learning_rate, variable.dtype)
    self.assign_sub(variable, rate * gradient / (ops.sqrt(velocity) + self.epsilon))


def _with_decay(update: Function, self: Any, grads: Any, variables: Any, learning_rate: Any) -> Any:
    """Apply `decay` where the step uses the rate, so that `optimizer.lr` says the rate as it was given."""
    return update(self, grads, variables, _decayed(self, learning_rate))


def _decayed(self: Any, rate: Any) -> Any:
    decay = getattr(self, "_decay", 0.0)
    return ops.cast(rate, "float32") / (1.0 + decay * ops.cast(self.iterations, "float32")) if decay else rate


def _decayed_rate(self: Any, dtype: Any) -> Any:
    return ops.cast(_decayed(self, self.learning_rate), keras.backend.standardize_dtype(dtype))


def _config_with_decay(get_config: Function, self: Any) -> dict[str, Any]:
    decay = getattr(self, "_decay", 0.0)
    legacy = isinstance(self, keras.optimizers.RMSprop) and self._is_legacy  # which its argument says in a file
    return {**get_config(self), **({"decay": decay} if decay or legacy else {})}


def _with_loss_scale(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Take what `mixed_precision.experimental.LossScaleOptimizer` took, and `dynamic` of Keras 2."""
    scale, dynamic = kwargs.pop("loss_scale", "dynamic"), kwargs.pop("dynamic", True)
    if len(args) > 1 and isinstance(args[1], (str, bool)):  # where Keras 3 has `initial_scale`
        scale, dynamic = (args[1], dynamic) if isinstance(args[1], str) else (scale, args[1])
        args = (args[0], *args[2:])
    if scale != "dynamic" or not dynamic:
        raise out_of_reach(
            what=f"LossScaleOptimizer(loss_scale={scale!r}, dynamic={dynamic})",
            why="Keras 3 scales a loss dynamically only",
            write="nothing: a TPU computes in bfloat16, which needs no scale; or loss_scale_factor= in the optimizer",
        )
    init(self, *args, **kwargs)


def _learning_rate(stock: property) -> property:
    def learning_rate(self: Any) -> Any:
        scope = get_stateless_scope() if in_stateless_scope() else None
        if scope is not None and scope.get_current_value(self.iterations) is None:
            raise out_of_reach(
                what="optimizer.lr in a metric or a loss",
                why="on JAX they are not given the optimizer's variables",
                write='metrics=[...] without it; a callback has it: logs["lr"] = float(self.model.optimizer.lr)',
            )
        if scope is None and isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            means_old("optimizer.lr of a schedule", "the rate of the next step; Keras 2.15 gave that of the last")
        return stock.__get__(self)

    return stock.getter(learning_rate)


def _rate(self: Any) -> Any:
    mapped("optimizer.lr", "optimizer.learning_rate")
    return self.learning_rate


def _set_rate(self: Any, value: Any) -> None:
    mapped("optimizer.lr", "optimizer.learning_rate")
    self.learning_rate = value if callable(value) else _number(value)


def of_tensorflow_1(optimizer: Any) -> Any:
    """Return Keras's optimizer for one of `tf.compat.v1.train`, and any other as it is."""
    name = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("tensorflow.") or not hasattr(optimizer, "compute_gradients"):
        return optimizer
    if name not in _TF1:
        raise out_of_reach(
            what=f"tf.compat.v1.train.{name}",
            why="Keras 3 takes its own optimizers only",
            write="one of `tf.keras.optimizers`",
        )
    new, arguments = _TF1[name]
    told(f"tf.compat.v1.train.{name}", f"keras.optimizers.{new}")
    return getattr(keras.optimizers, new)(**{key: getattr(optimizer, of) for key, of in arguments.items()})
