"""A user's own `train_step` or `test_step`, on replicas.

In a plain model it is written for one device, and each replica runs it on the whole batch, as it does a step whose
layers look at the examples of a batch together. That is exact, and only as fast as one device. Its gradients are all
the same, so their mean is taken, and only the first replica keeps what metrics count, because reading them returns
the sum. A step that calls `global_mean` is written for replicas, like those of a `TPUModel`: each replica runs it on
its part of the batch.

Such a step's code is not made for an empty batch: TensorFlow's oneDNN convolutions crash the process on one, and a
mean over no rows is NaN. So it never gets one. A replica without examples gets one row of ones in each tensor, whose
results count nowhere: not in `global_mean`, not in the gradients that `minimize` computes, not in the statistics of a
batch normalisation, not in a metric that is updated with rows, and not in a `super().train_step` or in
`compute_loss`. Anything else that the user computes from it counts, as does anything not computed with `global_mean`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.common.user_frame import warn
from keras_tpu_ext._runtime.compat.autograph import inlined
from keras_tpu_ext._runtime.tensorflow.batch import (
    batch_context,
    gather_examples,
    has_any,
    position_in_batch,
    prediction_context,
    whole_batch_view,
    whole_state,
)
from keras_tpu_ext._runtime.tensorflow.batch_statistics import mask_metrics
from keras_tpu_ext._runtime.tensorflow.empty_replicas import no_row_if_empty, one_row_if_empty
from keras_tpu_ext._runtime.tensorflow.model_separability import HOW_TO_SPLIT, takes_whole_batch
from keras_tpu_ext._runtime.tensorflow.replicas import num_replicas
from keras_tpu_ext._runtime.training.model import is_own_step
from keras_tpu_ext.errors import ArgumentError, CustomStepWarning

Step = Callable[[Nest], Nest]


def wrap_custom_step(model: Model, step: Step) -> Step:
    """Return the `train_step` or `test_step` of `model`; if it is the user's, one that gets the batch it is for."""
    step = inlined(step)
    model._kte.separability.pop(step.__name__, None)
    part_step = step if is_own_step(step) else _on_own_part(model, step)
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return part_step
    whole_step = _on_whole_batch(model, step)

    @functools.wraps(step)
    def wrapped_step(data: Nest) -> Nest:
        with _explained_errors(model, step):
            return whole_step(data) if takes_whole_batch(model, step) else part_step(data)

    return wrapped_step


@contextlib.contextmanager
def _explained_errors(model: Model, step: Step) -> Iterator[None]:
    """Say what to write where TensorFlow refuses an update by a step of the user's own."""
    try:
        yield
    except RuntimeError as error:
        if is_own_step(step) or "merge_call" not in str(error):
            raise
        raise ArgumentError(
            f"{step.__name__} of {model.name!r} updates variables in a branch, a loop or a function with a graph of "
            "its own, where replicas cannot wait for each other. Update in every step: for a sum of the gradients of "
            "several batches, write compile(..., gradient_accumulation_steps=4); for a condition, "
            "variable.assign(tf.where(condition, value, variable))."
        ) from error


def own_predict_step(model: Model) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a user's own `predict_step` gets a batch that its code is written for."""
    step = model.predict_step
    if is_own_step(step) or model.distribute_strategy.num_replicas_in_sync == 1:
        return contextlib.nullcontext()

    def wrapped_step(data: Nest) -> Nest:
        if takes_whole_batch(model, step):
            return predict_on_whole_batch(step, data)
        has_rows = has_any(data)
        with prediction_context(data, has_rows):
            outputs = step(one_row_if_empty(data, has_rows))
        return no_row_if_empty(outputs, has_rows)

    return patched([(model, "a model's predict_step", lambda stock: wrapped_step)])


def predict_on_whole_batch(step: Step, data: Nest) -> Nest:
    """Return what `step` predicts for this replica's part of the batch, given the whole batch."""
    with batch_context(data, "own") as batch:
        rows = tf.cast(batch.examples, tf.int32)
        begin, _ = position_in_batch(rows)
        whole = gather_examples(data)
    with whole_batch_view():
        outputs = step(whole)
    return tf.nest.map_structure(lambda values: values[begin : begin + rows], outputs)


def _on_whole_batch(model: Model, step: Step) -> Step:
    """Return `step`, which takes a whole batch, as a step that takes a replica's part of it."""

    def whole_step(data: Nest) -> Nest:
        with batch_context(data, "own"):
            data = gather_examples(data)
            with whole_state(lambda: model.metrics), whole_batch_view(), model._kte.operations():
                return step(data)

    return whole_step


def _on_own_part(model: Model, step: Step) -> Step:
    warned: list[bool] = []

    @functools.wraps(step)
    def wrapped_step(data: Nest) -> Nest:
        if not _is_of_rows(data):
            return step(data)
        with (
            batch_context(data, "own", stands_in=True) as batch,
            model._kte.exclude_padding(),
            mask_metrics(model._kte.custom_metrics()),
            model._kte.operations(),
        ):
            logs = step(one_row_if_empty(data, batch.has_any))
            if step.__name__ == "train_step" and num_replicas() > 1 and not batch.is_shared and not warned:
                warned.append(True)  # replicas trace one after another
                warn(
                    f"{model.name!r} has a step of its own, and runs on each replica's part of the batch: a mean "
                    "that it takes is that of a part, and the gradients of all parts are added. Write "
                    f"{HOW_TO_SPLIT}",
                    CustomStepWarning,
                )
            return logs

    return wrapped_step


def _is_of_rows(data: Nest) -> bool:
    """Return whether `data` consists of tensors that a row of ones can stand in for, which excludes ragged ones."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    return bool(leaves) and all(isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0 for leaf in leaves)
