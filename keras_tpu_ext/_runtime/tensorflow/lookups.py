"""Gradients of lookups that are the same for every batch, such as those of positions.

The gradient of a lookup has one slice for each row that was looked up. Keras 3's optimizers square slices one by
one, so their number matters. Lookups made for each example yield as many slices on replicas as on one device.
Lookups made once per batch yield them on each replica, and the sums of these are the slices of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Variable
from keras_tpu_ext._runtime.tensorflow.batch import BATCH, has_open_size
from keras_tpu_ext._runtime.tensorflow.replicas import ONCE_A_BATCH, num_replicas
from keras_tpu_ext._runtime.tensorflow.separability import handle_of


def mark_lookups_once_a_batch(model: Model, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
    """Mark, for `sum_over_replicas`, the gradients of lookups that every replica has made for the same rows.

    Args:
        model: The model, whose `separability` says what its layers look up once a batch. In a user's own step only a
            number of rows that the graph does not know tells its lookups from these.
        gradients: One per variable, some of which may be `tf.IndexedSlices`.
        variables: The variables of the gradients.
    """
    if num_replicas() == 1:
        return
    found = model._kte.separability.get("train_step") if BATCH.role == "exact" else None
    for gradient, variable in zip(gradients, variables, strict=True):
        if isinstance(gradient, tf.IndexedSlices) and gradient.indices.shape[0] is not None:
            is_once = has_open_size() or (found is not None and handle_of(variable) in found.once)
            setattr(gradient, ONCE_A_BATCH, is_once)
