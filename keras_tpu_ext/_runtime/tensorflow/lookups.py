"""Gradients of lookups that are the same for every batch, such as those of positions.

The gradient of a lookup has one slice for each row that was looked up. Keras 3's optimizers square slices one by
one, so their number matters. Lookups made for each example yield as many slices on replicas as on one device.
Lookups made once per batch yield them on each replica, and the sums of these are the slices of one device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Nest, Variable
from keras_tpu_ext._runtime.tensorflow.batch import has_open_size
from keras_tpu_ext._runtime.tensorflow.replicas import ONCE_A_BATCH, num_replicas


def mark_lookups_once_a_batch(model: Model, x: Nest, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
    """Mark, for `sum_over_replicas`, the gradients of lookups that every replica has made for the same rows.

    Args:
        model: The model.
        x: Its inputs, this replica's part of the batch; `None` in a user's own step, where nothing is marked if
            the graph knows the size of the batch.
        gradients: One per variable, some of which may be `tf.IndexedSlices`.
        variables: The variables of the gradients.
    """
    slices = [
        (gradient, variable)
        for gradient, variable in zip(gradients, variables, strict=True)
        if isinstance(gradient, tf.IndexedSlices) and gradient.indices.shape[0] is not None
    ]
    if not slices or num_replicas() == 1 or (x is None and not has_open_size()):
        return
    looked_up = [variable for _, variable in slices]
    once = set(map(id, looked_up)) if has_open_size() else _lookups_once_a_batch(model, x, looked_up)
    for gradient, variable in slices:
        setattr(gradient, ONCE_A_BATCH, id(variable) in once)


def _lookups_once_a_batch(model: Model, x: Nest, variables: Sequence[Variable]) -> set[int]:
    """Return those of `variables`, by `id`, whose number of lookups does not depend on the size of the batch."""
    known: dict[frozenset[int], set[int]] = model._kte.lookups_once_a_batch
    key = frozenset(map(id, variables))
    if key not in known:
        known[key] = set()
        # A model that cannot be traced like this has a fixed batch size.
        with contextlib.suppress(Exception):
            trial = tf.function(_trial(model, variables, known[key]), autograph=False)
            trial.get_concrete_function(tf.nest.map_structure(_of_any_size, x))
    return known[key]


def _of_any_size(leaf: tf.Tensor | tf.SparseTensor) -> tf.TypeSpec:
    kind = tf.SparseTensorSpec if isinstance(leaf, tf.SparseTensor) else tf.TensorSpec
    return kind([None, *leaf.shape[1:]] if leaf.shape.rank else leaf.shape, leaf.dtype)


def _trial(model: Model, variables: Sequence[Variable], found: set[int]) -> Any:
    def trial(x: Nest) -> None:
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model._kte.adapter.forward(model, x, training=False))
            total = sum(tf.reduce_sum(tf.cast(output, tf.float32)) for output in outputs)
        for gradient, variable in zip(tape.gradient(total, variables), variables, strict=True):
            if isinstance(gradient, tf.IndexedSlices) and gradient.indices.shape[0] is not None:
                found.add(id(variable))

    return trial
