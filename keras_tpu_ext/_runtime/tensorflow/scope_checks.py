"""Whether layers and optimizers were made where the model is: inside its strategy's scope.

Private names of Keras that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
of optimizers: `_distribution_strategy`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.compat import path_of
from keras_tpu_ext._runtime.tensorflow.compile_only import CompileOnlyStrategy
from keras_tpu_ext._runtime.tensorflow.replicas import native
from keras_tpu_ext.errors import ScopeError


def check_optimizer_belongs(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse an optimizer made outside the scope: its step counter would run once for every replica."""
    if optimizer is None or _has_one_of_each(strategy):
        return
    inner = getattr(optimizer, "inner_optimizer", None)
    knows = hasattr(optimizer, "_distribution_strategy")  # Keras 2's LossScaleOptimizer does not
    if (optimizer._distribution_strategy is strategy) if knows else inner is not None:
        check_optimizer_belongs(inner, strategy)
        return
    name = type(optimizer).__name__
    raise ScopeError(
        f"The optimizer must be made inside the model's strategy_scope() so that its state is mirrored on all "
        f"{strategy.num_replicas_in_sync} replicas; this {name} was made outside. "
        f"Write: with scope: optimizer = {_where(optimizer)}{name}(...), or pass its name, "
        f"model.compile({name.lower()!r}, ...)."
    )


def check_variables_belong(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse layers made outside the scope: their variables live on one device only."""
    if _has_one_of_each(strategy):
        return
    for variable in model.variables:
        name = path_of(variable)
        if not strategy.extended.variable_created_in_scope(native(variable)):
            raise ScopeError(
                f"All layers of {model.name!r} must be made inside its strategy_scope(), so that each of the "
                f"{strategy.num_replicas_in_sync} replicas has its copy; the variable {name!r} was made "
                "outside. Write: with scope: ... around the lines that make the layers."
            )


def _has_one_of_each(strategy: tf.distribute.Strategy) -> bool:
    """Return whether its variables are plain ones."""
    return bool(strategy.num_replicas_in_sync == 1) or isinstance(strategy, CompileOnlyStrategy)


def _where(optimizer: Any) -> str:
    """Return what a user writes before the name of an optimizer's class."""
    if type(optimizer).__module__.startswith("tensorflow_addons."):
        return "tfa.optimizers."
    return "keras.optimizers.legacy." if ".legacy." in type(optimizer).__module__ else "keras.optimizers."
