"""A `train_step` or `test_step` of the user's own, on replicas that may have no example.

The step's code is not made for an empty batch: TensorFlow's oneDNN convolutions end the process on one, and a mean
over no row is NaN. So it never gets one. A replica without examples gets one row of ones in each tensor, and what
comes of it counts nowhere: not in `global_mean`, not in the gradients that `minimize` takes, not in the statistics
of a batch normalisation, not in a metric that is updated with rows, and not in a `super().train_step` or in
`compute_loss`. What the user makes of it in another way counts, as does all that is not made of `global_mean`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.tensorflow.batch import batch_context
from keras_tpu_ext._runtime.tensorflow.batch_statistics import mask_metrics
from keras_tpu_ext._runtime.tensorflow.empty_replicas import one_row_if_empty
from keras_tpu_ext._runtime.tensorflow.step import ExactStep

Step = Callable[[Any], Any]


def wrap_custom_step(model: Model, step: Step) -> Step:
    """Return `step` of `model`; where it is the user's own, one that never sees an empty batch.

    Args:
        model: The model.
        step: Its `train_step` or `test_step`, which takes one replica's part of the batch.
    """
    if getattr(step, "__func__", None) in (ExactStep.train_step, ExactStep.test_step):
        return step  # ours knows what to do

    def wrapped_step(data: Nest) -> Any:
        if not _is_of_rows(data):
            return step(data)
        with (
            batch_context(data, stands_in=True) as batch,
            model._kte_adapter.exclude_padding(model),
            mask_metrics(model._kte_adapter.custom_metrics(model)),
        ):
            return step(one_row_if_empty(data, batch.has_any))

    return wrapped_step


def _is_of_rows(data: Nest) -> bool:
    """Return whether `data` is made of tensors that a row of ones can stand in for; ragged ones are not."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    return bool(leaves) and all(isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0 for leaf in leaves)
