"""Applying gradients that are already summed over replicas with any optimizer of Keras 2, or of TensorFlow Addons.

Both kinds can be told that gradients are summed: those of `optimizers.legacy`, on which TensorFlow Addons builds, by
`experimental_aggregate_gradients`, which new ones heed too.

Private names of Keras that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
`_create_all_weights` of optimizers in `optimizers.legacy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime._keras2_names import LossScaleOptimizer, keras


def apply_summed(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Let `optimizer` clip and apply gradients that are already summed over replicas; call it in a replica."""
    pairs = [(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)]
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make an optimizer's variables, once; those of `optimizers.legacy` make theirs themselves, before any graph."""
    if is_legacy(optimizer):
        return
    with tf.init_scope():
        optimizer.build(variables)


def is_legacy(optimizer: Any) -> bool:
    """Return whether an optimizer is one of `optimizers.legacy`, as those of TensorFlow Addons are."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(inner, keras.optimizers.legacy.Optimizer)


def scales(optimizer: Any) -> bool:
    """Return whether an optimizer scales the loss."""
    return isinstance(optimizer, LossScaleOptimizer)
