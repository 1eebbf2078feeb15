"""Gradients of lookups that are the same for every batch, of positions say.

The gradient of a lookup has one slice for each row that was looked up. Optimizers of Keras 3 square slices one by
one, so it matters how many there are. What is looked up for each example makes as many on replicas as on one device.
What is looked up once a batch makes them on each replica, and their sums are those of one device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Nest, Variable
from keras_tpu_ext._runtime.tensorflow.batch import has_open_size
from keras_tpu_ext._runtime.tensorflow.replicas import ONCE_A_BATCH, num_replicas

_ATTRIBUTE = "_kte_lookups_once_a_batch"


def mark_lookups_once_a_batch(model: Model, x: Nest, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
    """Mark the gradients of lookups that every replica has done for the same rows, for `sum_over_replicas`.

    Args:
        model: The model.
        x: Its inputs, this replica's part of the batch; `None` in a step of the user's own, where a batch of a size
            that the graph knows does not tell.
        gradients: One a variable, of which some may be `tf.IndexedSlices`.
        variables: What they are the gradients of.
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
    """Return those of `variables`, by `id`, whose lookups are as many for a batch of any size."""
    known: dict[frozenset[int], set[int]] = model.__dict__.setdefault(_ATTRIBUTE, {})
    key = frozenset(map(id, variables))
    if key not in known:
        known[key] = set()
        # A model that cannot be traced so has the size of its batch in it.
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
            outputs = tf.nest.flatten(model._kte_adapter.forward(model, x, training=False))
            total = sum(tf.reduce_sum(tf.cast(output, tf.float32)) for output in outputs)
        for gradient, variable in zip(tape.gradient(total, variables), variables, strict=True):
            if isinstance(gradient, tf.IndexedSlices) and gradient.indices.shape[0] is not None:
                found.add(id(variable))

    return trial
