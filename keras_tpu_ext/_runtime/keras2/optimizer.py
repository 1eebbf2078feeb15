"""Apply gradients that are already summed over replicas with any optimizer of Keras 2, or of TensorFlow Addons.

Both kinds have an argument that says that gradients are summed: `experimental_aggregate_gradients` of
`optimizers.legacy`, on which TensorFlow Addons builds, which new optimizers accept too.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Optimizer, Variable
from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.tensorflow.replicas import num_replicas
from keras_tpu_ext._runtime.tensorflow.update import divide
from keras_tpu_ext.errors import ArgumentError

# Packages whose optimizers override how gradients are computed, but work without that.
_KNOWN = ("keras", "tf_keras", "tensorflow_addons")


def apply_summed(optimizer: Optimizer, gradients: Sequence[tf.Tensor], variables: Sequence[Variable]) -> None:
    """Let `optimizer` clip and apply gradients that are already summed over replicas; call it in a replica."""
    pairs = list(zip(gradients, variables, strict=True))
    if _takes_summed(optimizer):
        optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
        return
    # A user's own optimizer without such an argument sums over replicas again.
    optimizer.apply_gradients([(None if g is None else divide(g, num_replicas()), v) for g, v in pairs])


def check_computes_no_gradients(optimizer: Optimizer) -> None:
    """Refuse an optimizer that overrides how gradients are computed."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for name in ("compute_gradients", "_compute_gradients", "minimize"):
        owner = next((base for base in type(inner).__mro__ if name in vars(base)), None)
        if owner is not None and owner.__module__.split(".")[0] not in _KNOWN:
            raise ArgumentError(
                f"TPUModel takes the gradients itself, so that they are those of all replicas; {owner.__name__} "
                f"overrides {name}(), which would not be called. Write in its place: def apply_gradients(self, "
                "grads_and_vars, **kwargs), which gets the gradients of the whole batch."
            )


def _takes_summed(optimizer: Optimizer) -> bool:
    parameters = inspect.signature(optimizer.apply_gradients).parameters.values()
    return any(p.name == "experimental_aggregate_gradients" or p.kind is p.VAR_KEYWORD for p in parameters)


def build(optimizer: Optimizer, variables: Sequence[Variable]) -> None:
    """Create an optimizer's variables, once; those of `optimizers.legacy` create their own, before any graph."""
    if is_legacy(optimizer):
        return
    with tf.init_scope():
        optimizer.build(variables)


def is_legacy(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is one of `optimizers.legacy`, like those of TensorFlow Addons."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(inner, keras.optimizers.legacy.Optimizer)
