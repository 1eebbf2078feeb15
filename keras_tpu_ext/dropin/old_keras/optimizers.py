"""Optimizers as old Keras had them: `lr=`, `decay=`, `optimizer.lr`, `optimizers.legacy`, TensorFlow 1's.

The rule of `decay` is that of `keras.optimizers.legacy`: step i runs at lr / (1 + decay * i), and `optimizer.lr` says
lr. Where Keras 2.11 changed an optimizer, the later one is meant: RMSprop and Adagrad add epsilon inside the root.
Nadam is that of Keras 3: the momentum of the legacy one grew more slowly, and that of Keras 2.15 with each variable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tpu_ext.dropin import patching
from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.old_keras import spellings
from keras_tpu_ext.dropin.report import mapped, told

Method = Callable[..., Any]

_NAMES = ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD", "Optimizer", "AdamW")
_WITHOUT_MEANING = {  # arguments of Keras 2.11 to 2.15 and of legacy optimizers, which files of models hold
    "is_legacy_optimizer": "nothing: there is one kind of optimizer",
    "jit_compile": "nothing: XLA compiles all of the step",
    "gradient_aggregator": "nothing: gradients are aggregated",
}
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
    optimizer = keras.optimizers.Optimizer
    for attribute, make in {
        "__init__": _with_old_arguments,
        "build": _with_epsilon,
        "_backend_update_step": _with_decay,
        "get_config": _config_with_decay,
    }.items():
        spellings.replace(optimizer, f"keras.optimizers.Optimizer.{attribute}", make)
    spellings.replace(
        keras.optimizers.LossScaleOptimizer, "keras.optimizers.LossScaleOptimizer.__init__", _with_loss_scale
    )
    patching.add(optimizer, "lr", property(_rate, _set_rate, doc="The learning rate: its old name."))
    patching.add(optimizer, "_decayed_lr", _decayed_rate)
    patching.add(optimizer, "weights", property(lambda self: self.variables, doc="The variables: their old name."))
    patching.add(optimizer, "get_weights", _get_weights)
    classes = {name: getattr(keras.optimizers, name) for name in _NAMES}
    for module in ("optimizers.legacy", "optimizers.experimental"):
        spellings.add_module(module, classes)


def _with_old_arguments(init: Method) -> Method:
    """Take `lr`, `decay` and what Keras 2 took as a number."""

    def initialize(self: Any, learning_rate: Any = 0.001, *args: Any, **kwargs: Any) -> None:
        _refuse_old_subclass(type(self))
        if type(self) is keras.optimizers.Nadam:
            told("Nadam", "Nadam of Keras 3, whose momentum grows otherwise than in Keras 2: other numbers")
        if "lr" in kwargs:
            mapped("lr=", "learning_rate=")
            learning_rate = kwargs.pop("lr")
        decay = float(kwargs.pop("decay", None) or 0.0)
        for name in _WITHOUT_MEANING.keys() & kwargs.keys():
            mapped(f"{name}=", _WITHOUT_MEANING[name])
            del kwargs[name]
        if decay:
            _check_decay(decay, learning_rate)
            told(f"decay={decay}", "the rate of step i is learning_rate / (1 + decay * i)")
        init(self, _number(learning_rate), *args, **kwargs)
        self._decay = decay

    return initialize


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


def _with_epsilon(build: Method) -> Method:
    """Take `epsilon=None` as Keras's own epsilon."""

    def build_with_epsilon(self: Any, variables: Any) -> Any:
        if getattr(self, "epsilon", 0.0) is None:
            mapped("epsilon=None", f"epsilon={keras.config.epsilon()}")
            self.epsilon = keras.config.epsilon()
        return build(self, variables)

    return build_with_epsilon


def _with_decay(update: Method) -> Method:
    """Apply `decay` where the step uses the rate, so that `optimizer.lr` says the rate as it was given."""

    def update_with_decay(self: Any, grads: Any, variables: Any, learning_rate: Any) -> Any:
        return update(self, grads, variables, _decayed(self, learning_rate))

    return update_with_decay


def _decayed(self: Any, rate: Any) -> Any:
    decay = getattr(self, "_decay", 0.0)
    return ops.cast(rate, "float32") / (1.0 + decay * ops.cast(self.iterations, "float32")) if decay else rate


def _decayed_rate(self: Any, dtype: Any) -> Any:
    return ops.cast(_decayed(self, self.learning_rate), keras.backend.standardize_dtype(dtype))


def _config_with_decay(get_config: Method) -> Method:
    def config(self: Any) -> dict[str, Any]:
        decay = getattr(self, "_decay", 0.0)
        return {**get_config(self), **({"decay": decay} if decay else {})}

    return config


def _with_loss_scale(init: Method) -> Method:
    """Take what `mixed_precision.experimental.LossScaleOptimizer` took."""

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        scale = kwargs.pop("loss_scale", "dynamic")
        if len(args) > 1 and isinstance(args[1], str):
            args, scale = (args[0], *args[2:]), args[1]
        if scale != "dynamic" or not kwargs.pop("dynamic", True):
            raise out_of_reach(
                what=f"LossScaleOptimizer(loss_scale={scale!r})",
                why="Keras 3 scales a loss dynamically only",
                write="nothing: a TPU computes in bfloat16, which needs no scale",
            )
        init(self, *args, **kwargs)

    return initialize


def _rate(self: Any) -> Any:
    mapped("optimizer.lr", "optimizer.learning_rate")
    return self.learning_rate


def _set_rate(self: Any, value: Any) -> None:
    mapped("optimizer.lr", "optimizer.learning_rate")
    self.learning_rate = value if callable(value) else _number(value)


def _get_weights(self: Any) -> list[Any]:
    return [variable.numpy() for variable in self.variables]


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
