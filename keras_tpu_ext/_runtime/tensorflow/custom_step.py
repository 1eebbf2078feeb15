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

import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.tensorflow.batch import batch_context
from keras_tpu_ext._runtime.tensorflow.batch_statistics import mask_metrics
from keras_tpu_ext._runtime.tensorflow.empty_replicas import one_row_if_empty
from keras_tpu_ext._runtime.tensorflow.mixing import mixes
from keras_tpu_ext._runtime.tensorflow.replicas import num_replicas
from keras_tpu_ext._runtime.tensorflow.whole_batch import on_whole_batch
from keras_tpu_ext._runtime.training.model import ExactModel, is_own_step
from keras_tpu_ext.errors import CustomStepWarning

Step = Callable[[Any], Any]


def wrap_custom_step(model: Model, step: Step) -> Step:
    """Return `step` of `model`; for a user's own step, one that gets the batch that its code is written for.

    Args:
        model: The model.
        step: Its `train_step` or `test_step`, which takes one replica's part of the batch.
    """
    if is_own_step(step):
        return _on_whole_batch_if_mixed(model, step)
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas == 1 or not model._kte.is_plain or _is_for_replicas(model):
        return _on_own_part(model, step)
    _warn(
        model,
        f"so each of the {replicas} replicas runs it on the whole batch: its numbers are those of one device, and so "
        "is its speed. To let each take its part, write",
    )
    return on_whole_batch(model, step)


def _on_whole_batch_if_mixed(model: Model, step: Step) -> Step:
    """Return one of our steps, which sees the whole batch if the layers mix its examples."""
    whole_step = on_whole_batch(model, step)
    return lambda data: whole_step(data) if mixes(model) else step(data)


def _on_own_part(model: Model, step: Step) -> Step:
    trains = getattr(step, "__name__", "") == "train_step"
    told: list[bool] = []

    def wrapped_step(data: Nest) -> Any:
        if not _is_of_rows(data):
            return step(data)
        with (
            batch_context(data, stands_in=True) as batch,
            model._kte.adapter.exclude_padding(model),
            mask_metrics(model._kte.adapter.custom_metrics(model)),
        ):
            logs = step(one_row_if_empty(data, batch.has_any))
            if trains and num_replicas() > 1 and not batch.is_shared and not told:
                told.append(True)  # replicas trace one after another
                _warn(
                    model,
                    "and runs on each replica's part of the batch: a mean that it takes is that of a part, and the "
                    "gradients of all parts are added. Write",
                )
            return logs

    return wrapped_step


def _warn(model: Model, what: str) -> None:
    warnings.warn(
        f"{model.name!r} has a step of its own, {what} its means as self.global_mean(values) and its updates as "
        "self.minimize(loss, variables, optimizer, tape)",
        CustomStepWarning,
        stacklevel=3,
    )


def _is_for_replicas(model: Model) -> bool:
    """Return whether the user's classes mention `global_mean`, and mean this package's."""
    if type(model).global_mean is not ExactModel.global_mean:
        return False
    others = ("keras_tpu_ext.", "keras.", "tf_keras.")
    classes = [base for base in type(model).__mro__ if not base.__module__.startswith(others)]
    functions = (value for base in classes for value in vars(base).values() if inspect.isfunction(value))
    return any("global_mean" in names for function in functions for names in _names(function.__code__))


def _names(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_of_rows(data: Nest) -> bool:
    """Return whether `data` consists of tensors that a row of ones can stand in for, which excludes ragged ones."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    return bool(leaves) and all(isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0 for leaf in leaves)
