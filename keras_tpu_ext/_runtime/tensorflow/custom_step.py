"""A user's own `train_step` or `test_step`, on replicas.

In a plain model it is written for one device, and each replica runs it on the whole batch; see `whole_batch.py`. That
is exact, and only as fast as one device. A step that calls `global_mean` is written for replicas, like those of a
`TPUModel`: each replica runs it on its part of the batch.

Such a step's code is not made for an empty batch: TensorFlow's oneDNN convolutions crash the process on one, and a
mean over no rows is NaN. So it never gets one. A replica without examples gets one row of ones in each tensor, whose
results count nowhere: not in `global_mean`, not in the gradients that `minimize` computes, not in the statistics of a
batch normalisation, not in a metric that is updated with rows, and not in a `super().train_step` or in
`compute_loss`. Anything else that the user computes from it counts, as does anything not computed with `global_mean`.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.tensorflow.batch import batch_context, has_any
from keras_tpu_ext._runtime.tensorflow.batch_statistics import mask_metrics
from keras_tpu_ext._runtime.tensorflow.empty_replicas import no_row_if_empty, one_row_if_empty
from keras_tpu_ext._runtime.tensorflow.model_separability import HOW_TO_SHARE, takes_whole_batch
from keras_tpu_ext._runtime.tensorflow.replicas import num_replicas
from keras_tpu_ext._runtime.tensorflow.whole_batch import on_whole_batch, predict_on_whole_batch
from keras_tpu_ext._runtime.training.model import is_own_step
from keras_tpu_ext.errors import CustomStepWarning

Step = Callable[[Any], Any]


def wrap_custom_step(model: Model, step: Step) -> Step:
    """Return `step` of `model`; for a user's own step, one that gets the batch that its code is written for.

    Args:
        model: The model.
        step: Its `train_step` or `test_step`, which takes one replica's part of the batch.
    """
    model._kte.separability.pop(step.__name__, None)
    part_step = step if is_own_step(step) else _on_own_part(model, step)
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return part_step
    whole_step = on_whole_batch(model, step)

    @functools.wraps(step)
    def wrapped_step(data: Nest) -> Any:
        return whole_step(data) if takes_whole_batch(model, step) else part_step(data)

    return wrapped_step


def own_predict_step(model: Model) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a user's own `predict_step` gets a batch that its code is written for."""
    step = model.predict_step
    if is_own_step(step) or model.distribute_strategy.num_replicas_in_sync == 1:
        return contextlib.nullcontext()

    def wrapped_step(data: Nest) -> Any:
        if takes_whole_batch(model, step):
            return predict_on_whole_batch(step, data)
        there = has_any(data)
        return no_row_if_empty(step(one_row_if_empty(data, there)), there)

    return patched([(model, "a model's predict_step", lambda stock: wrapped_step)])


def _on_own_part(model: Model, step: Step) -> Step:
    told: list[bool] = []

    @functools.wraps(step)
    def wrapped_step(data: Nest) -> Any:
        if not _is_of_rows(data):
            return step(data)
        with (
            batch_context(data, "own", stands_in=True) as batch,
            model._kte.adapter.exclude_padding(model),
            mask_metrics(model._kte.adapter.custom_metrics(model)),
        ):
            logs = step(one_row_if_empty(data, batch.has_any))
            if step.__name__ == "train_step" and num_replicas() > 1 and not batch.is_shared and not told:
                told.append(True)  # replicas trace one after another
                _warn(
                    model,
                    "and runs on each replica's part of the batch: a mean that it takes is that of a part, and the "
                    "gradients of all parts are added. Write",
                )
            return logs

    return wrapped_step


def _warn(model: Model, what: str) -> None:
    warnings.warn(f"{model.name!r} has a step of its own, {what} {HOW_TO_SHARE}", CustomStepWarning, stacklevel=3)


def _is_of_rows(data: Nest) -> bool:
    """Return whether `data` consists of tensors that a row of ones can stand in for, which excludes ragged ones."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    return bool(leaves) and all(isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0 for leaf in leaves)
