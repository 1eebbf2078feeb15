"""Whether replicas can split the batches of a model, and how its steps run on them, those of the user's own too.

A `train_step` of a user's own in a plain model is written for one device, and each replica runs it on the whole
batch, as it does a step whose layers look at the examples of a batch together. That is exact, and only as fast as one
device. Its gradients are all the same, so their mean is taken, and only the first replica keeps what metrics count,
because reading them returns the sum. A step that calls `global_mean` is written for replicas, like those of a
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import without_own_weights
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Model, Nest, Variable
from keras_tpu_ext._runtime.common.user_frame import warn
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.compat.autograph import as_keras_traces, inlined
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    batch_context,
    gather_examples,
    has_any,
    mask_metrics,
    position_in_batch,
    prediction_context,
    trial_context,
    whole_batch_view,
    whole_state,
)
from keras_tpu_ext._runtime.tensorflow.empty_replicas import (
    attached_to,
    no_row_if_empty,
    one_row_if_empty,
    with_attached,
)
from keras_tpu_ext._runtime.tensorflow.replicas import ONCE_A_BATCH, UNIQUE, num_replicas, with_none
from keras_tpu_ext._runtime.tensorflow.separability import (
    Separability,
    handle_of,
    of_loss,
    of_model,
    of_step,
)
from keras_tpu_ext._runtime.training.compile_utils import is_known, is_overridden
from keras_tpu_ext._runtime.training.model import is_own_step
from keras_tpu_ext.errors import ArgumentError, CustomStepWarning, MixedExamplesWarning

HOW_TO_SPLIT = (
    "its means as self.global_mean(values) and its updates as self.minimize(loss, variables, optimizer, tape)"
)


def takes_whole_batch(model: Model, step: Callable[..., Any]) -> bool:
    """Return whether each replica has to run `step` on the whole batch, as `find_separability` has found."""
    found = model._kte.separability.get(step.__name__)
    return found is not None and not found.is_row_by_row


def find_separability(model: Model, data: Nest, step: Callable[..., Any]) -> None:
    """Find out, once, whether the layers of a built `model`, or its own step, work row by row; warn if not.

    Nothing is read from `data`, an iterator over batches or a batch.
    """
    answers: dict[str, Separability] = model._kte.separability
    if model.distribute_strategy.num_replicas_in_sync == 1 or step.__name__ in answers:
        return
    specs = with_none(tf.nest.map_structure(_of_one_replica, getattr(data, "element_spec", data)))
    category: type[Warning] = MixedExamplesWarning
    with model.distribute_strategy.scope():
        if is_own_step(step):
            found = _of_layers(model, specs, step.__name__)
        elif step.__name__ == "predict_step":
            found = _of_own_prediction(model, specs, step)
        else:
            found, category = _of_own_step(model, specs, step), CustomStepWarning
    has_warned = any(not answer.is_row_by_row for answer in answers.values())
    answers[step.__name__] = found
    if not found.is_row_by_row and not has_warned:
        _warn(model, found, category)


def _warn(model: Model, found: Separability, category: type[Warning]) -> None:
    replicas = model.distribute_strategy.num_replicas_in_sync
    if category is CustomStepWarning:
        why = "" if found is _FOR_ONE_DEVICE else f", which is not written for replicas ({found.reason})"
        text = (
            f"{model.name!r} has a step of its own{why}, so each of the {replicas} replicas "
            "runs it on the whole batch"
        )
        cure = f"To let each take its part, write {HOW_TO_SPLIT}"
    else:
        looks, cure = "looks" if found.is_certain else "may look", _CURE
        text = (
            f"{model.name!r} {looks} at the examples of a batch together ({found.reason}), so each of the {replicas} "
            "replicas runs it on the whole batch"
        )
    text += f": its numbers are those of one device, and so is its speed. {cure}"
    warn(text, category)


_FOR_ONE_DEVICE = Separability("it is written for one device")
_CURE = (
    "To be faster, let its layers work on each example by itself, or take sums and means over the batch with "
    "keras_tpu_ext.batch_sum and batch_mean"
)


def _of_layers(model: Model, specs: Nest, step: str) -> Separability:
    program, training = model._kte, step == "train_step"
    recurrent = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.RNN)]
    stateful = [layer.name for layer in recurrent if layer.stateful]
    if stateful:
        return Separability(f"{', '.join(stateful)} keeps a state for each row of a batch")
    if training and any(getattr(each, "overwrite_with_gradient", False) for each in model.trainable_variables):
        return Separability("layers with float8 keep the largest number of a batch")
    x, _, _ = keras.utils.unpack_x_y_sample_weight(specs)

    def forward(x: Nest) -> tuple[Any, list[tf.Tensor]]:
        with program.exclude_padding(), program.record_layer_losses():
            outputs = as_keras_traces(program.forward)(x, training=training)
        return outputs, [loss for _, loss in BATCH.layer_losses]

    with trial_context():
        found = of_model(forward, [x], _variables(model))
    if not found.is_certain and not program.own_layers():
        found = Separability()
    if found.is_row_by_row and step != "predict_step" and _has_own_loss(model):
        of_loss = _of_what_its_loss_reads(model, specs, training=training)
        found = found if of_loss.is_row_by_row else of_loss
    return found


def _has_own_loss(model: Model) -> bool:
    """Return whether the loss or the metrics of a model run code of the user's, which may read what a layer keeps."""
    names = ("_compile_loss", "_compile_metrics", "compiled_loss", "compiled_metrics")  # of Keras 3, and of Keras 2
    compiled = [vars(model).get(name) for name in names]
    names = ("_user_loss", "_user_losses", "_user_metrics", "_user_weighted_metrics")
    given = tf.nest.flatten([getattr(each, name, None) for each in compiled for name in names])
    functions = [getattr(each, "fn", getattr(each, "_fn", each)) for each in given]
    is_own = any(callable(each) and not is_known(each) for each in [*given, *functions])
    return is_own or _has_own_methods(model)


def _has_own_methods(model: Model) -> bool:
    return is_overridden(type(model), "compute_loss") or bool(model._kte.has_custom_compute_metrics())


def _of_what_its_loss_reads(model: Model, specs: Nest, *, training: bool) -> Separability:
    """Return whether the loss of a model, which may get the whole batch, reads nothing else that is of a part.

    What `compute_loss` looks up each replica looks up for the whole batch: those slices cannot be told from parts.
    """
    program, has_own_loss = model._kte, is_overridden(type(model), "compute_loss")

    def step(data: Nest, mark: Callable[[Nest, Nest], None]) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(without_own_weights(data))
        with trial_context(data), whole_batch_view():
            with program.exclude_padding():
                y_pred = as_keras_traces(program.forward)(x, training=training)
            y_pred = with_attached(y_pred, lambda parts: tf.nest.map_structure(_copy, parts))
            given = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight}
            mark(
                y_pred if _has_own_methods(model) else (),
                [given, BATCH.examples, program.layer_losses(), attached_to(y_pred)],
            )
            as_keras_traces(model.compute_metrics)(**given)
            mark((), ())
            as_keras_traces(program.loss_of_model)(**given, training=training)

    return of_loss(step, specs, may_look_up=not (training and has_own_loss))


def _copy(leaf: Any) -> Any:
    return tf.identity(leaf) if tf.is_tensor(leaf) else leaf


def _of_own_prediction(model: Model, specs: Nest, step: Callable[..., Any]) -> Separability:
    with trial_context():
        return of_model(lambda data: (as_keras_traces(step)(data), []), [specs], _variables(model))


def _of_own_step(model: Model, specs: Nest, step: Any) -> Separability:
    """Return whether a user's own step can take a part of the batch: it is for replicas, and makes no mistake.

    That of a plain model is for replicas if it calls `global_mean`.
    """
    is_for_replicas = [not model._kte.is_plain]

    def traced(data: Nest) -> Nest:
        with trial_context(data), model._kte.exclude_padding():
            logs = as_keras_traces(step)(data)
            is_for_replicas[0] = is_for_replicas[0] or BATCH.asks_mean
        return logs

    found = of_step(traced, specs, _variables(model))
    if not is_for_replicas[0]:
        return _FOR_ONE_DEVICE
    return found if model._kte.is_plain else Separability()


def _variables(model: Model) -> list[Variable]:
    return [*model.variables, *(variable for metric in model.metrics for variable in metric.variables)]


def _of_one_replica(spec: Any) -> Nest:
    """Return the first replica's part, or its spec, if `spec` is all parts or their specs."""
    if isinstance(spec, tf.distribute.DistributedValues):
        return spec.values[0]
    return getattr(spec, "_value_specs", [spec])[0]


def mark_slices(model: Model, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
    """Mark, for `sum_over_replicas`, the gradients of lookups that every replica has made for the same rows.

    Keras 3's optimizers square slices one by one, so their number matters. Lookups of each example yield as many on
    replicas as on one device. Those made once per batch, as of positions, yield them on each replica, and the sums of
    these are the slices of one device. In a user's own step, only a number of rows that the graph does not know tells
    its lookups from these. Those of sparse inputs yield one for each row of the table.
    """
    if num_replicas() == 1:
        return
    found = model._kte.separability.get("train_step") if BATCH.role == "exact" else None
    for gradient, variable in zip(gradients, variables, strict=True):
        if not isinstance(gradient, tf.IndexedSlices):
            continue
        if gradient.indices.shape[0] is None:
            setattr(gradient, UNIQUE, _are_unique(gradient.indices))
        else:
            has_open_size = BATCH.valid is None and isinstance(BATCH.examples, tf.Tensor)
            is_once = has_open_size or (found is not None and handle_of(variable) in found.once)
            setattr(gradient, ONCE_A_BATCH, is_once)


def _are_unique(indices: tf.Tensor) -> bool:
    operation = indices.op
    while operation.type in ("Reshape", "Identity", "Cast"):
        operation = operation.inputs[0].op
    return bool(operation.type == "Unique")


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
