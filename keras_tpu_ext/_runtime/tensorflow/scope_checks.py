"""Check that layers and optimizers were created inside the scope of the model's strategy."""

from __future__ import annotations

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Optimizer
from keras_tpu_ext._runtime.compat import path_of
from keras_tpu_ext._runtime.tensorflow.compile_only import CompileOnlyStrategy
from keras_tpu_ext._runtime.tensorflow.replicas import native
from keras_tpu_ext.errors import ScopeError


def check_optimizer_belongs(optimizer: Optimizer | None, strategy: tf.distribute.Strategy) -> None:
    """Reject an optimizer created outside the scope: its step counter would advance once for every replica."""
    if optimizer is None or _has_plain_variables(strategy):
        return
    inner = getattr(optimizer, "inner_optimizer", None)
    has_strategy = hasattr(optimizer, "_distribution_strategy")  # Keras 2's LossScaleOptimizer lacks it
    if (optimizer._distribution_strategy is strategy) if has_strategy else inner is not None:
        check_optimizer_belongs(inner, strategy)
        return
    name = type(optimizer).__name__
    raise ScopeError(
        f"The optimizer must be made inside the model's strategy_scope() so that its state is mirrored on all "
        f"{strategy.num_replicas_in_sync} replicas; this {name} was made outside. "
        f"Write: with scope: optimizer = {_module_of(optimizer)}{name}(...), or pass its name, "
        f"model.compile({name.lower()!r}, ...)."
    )


def check_variables_belong(model: Model, strategy: tf.distribute.Strategy) -> None:
    """Reject layers created outside the scope: their variables live on one device only."""
    if _has_plain_variables(strategy):
        return
    for variable in model.variables:
        name = path_of(variable)
        if not strategy.extended.variable_created_in_scope(native(variable)):
            raise ScopeError(
                f"All layers of {model.name!r} must be made inside its strategy_scope(), so that each of the "
                f"{strategy.num_replicas_in_sync} replicas has its copy; the variable {name!r} was made "
                "outside. Write: with scope: ... around the lines that make the layers."
            )


def _has_plain_variables(strategy: tf.distribute.Strategy) -> bool:
    """Return True if the variables of `strategy` are not mirrored."""
    return bool(strategy.num_replicas_in_sync == 1) or isinstance(strategy, CompileOnlyStrategy)


def _module_of(optimizer: Optimizer) -> str:
    """Return the public module of an optimizer's class, with a dot."""
    if type(optimizer).__module__.startswith("tensorflow_addons."):
        return "tfa.optimizers."
    return "keras.optimizers.legacy." if ".legacy." in type(optimizer).__module__ else "keras.optimizers."
