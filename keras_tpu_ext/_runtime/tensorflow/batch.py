"""What a step knows about its batch: how many examples there are, here and on all replicas, and which rows count.

From a row that does not, because it was padded or stands in for none (`empty_replicas.py`), layers and metrics learn
nothing.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import MARK, PaddedBatch
from keras_tpu_ext._runtime.common.patches import Patch, attributes_restored, patched, temporarily
from keras_tpu_ext._runtime.common.types import Layer, Metric, Model, Nest, SameNest
from keras_tpu_ext._runtime.tensorflow.empty_replicas import no_row_if_empty, one_row_if_empty, with_attached
from keras_tpu_ext._runtime.tensorflow.graph_axis import of_rows, of_whole_batch
from keras_tpu_ext._runtime.tensorflow.replicas import (
    gather_batch,
    holding_whole_batch,
    holds_whole_batch,
    is_per_replica,
    native,
    num_replicas,
    numbers_of_rows,
    sum_over_replicas,
)
from keras_tpu_ext._runtime.tensorflow.separability import keeps_sums as keeps_sums
from keras_tpu_ext._runtime.tensorflow.separability import of_function
from keras_tpu_ext._runtime.training.program import BLOCKS

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Batch(threading.local):
    """What the step that runs in this thread (each replica has one) knows about its batch.

    Attributes:
        role: Whose step runs: this package's or a user's own; `None` if none does.
        is_trial: Whether code is only traced, to find out what it does with the rows.
        examples: Number of examples of this replica, without padded rows.
        total: Number of examples of all replicas, in this package's step.
        has_any: Whether this replica has any row; `None` if it certainly has.
        has_examples: The same in a user's own step, which gets one row of ones instead of none;
            `None` in this package's steps, which remove that row first.
        valid: For each row whether it is an example; `None` if every row is.
        is_shared: Whether a user's own step has asked for anything about the whole batch.
        asks_mean: Whether it has asked for `global_mean`, and so is written for replicas.
        layer_losses: Pairs of a layer and an `add_loss` term of the forward pass, later this replica's part of it.
        layer_loss_elements: Number of this replica's elements, of examples, in an unreduced term; `None` without one.
    """

    role: Literal["exact", "own"] | None = None
    is_trial: bool = False
    examples: Any = None
    total: Any = None
    has_any: Any = None
    has_examples: Any = None
    valid: Any = None
    is_shared: bool = False
    asks_mean: bool = False
    layer_losses: Any = ()
    layer_loss_elements: Any = None


BATCH = _Batch()
# Where Keras sums over replicas or divides by their number, from the program of each Keras.
KERAS_PATCHES: list[Patch] = []


@contextlib.contextmanager
def batch_context(
    data: Nest, role: Literal["exact", "own"] = "exact", *, stands_in: bool = False
) -> Iterator[_Batch]:
    """Within the block this is the batch of a step, which gets a row of ones if there is none and `stands_in`."""
    # A step inside a user's own step may get other data, but still has the rows of the outer one.
    valid = valid_rows(data) if isinstance(data, PaddedBatch) else BATCH.valid
    rows = numbers_of_rows(data)[0]
    with attributes_restored(BATCH):
        BATCH.valid = valid
        BATCH.examples = rows if isinstance(rows, int) else tf.cast(rows, tf.float32)
        if valid is not None:
            BATCH.examples = tf.reduce_sum(tf.cast(valid, tf.float32))
        BATCH.role = role
        BATCH.total = sum_over_replicas([BATCH.examples])[0] if role == "exact" else None
        BATCH.has_any = has_any(data)
        BATCH.has_examples = BATCH.has_any if stands_in else None
        BATCH.is_shared = BATCH.asks_mean = False
        with patched(KERAS_PATCHES):
            yield BATCH


@contextlib.contextmanager
def prediction_context(data: Nest, has_rows: tf.Tensor | None) -> Iterator[None]:
    """Within the block, sums over the batch count neither a row that stands in for none nor padded rows of `data`."""
    with attributes_restored(BATCH):
        if not BATCH.is_trial:
            BATCH.has_any, BATCH.valid = has_rows, valid_rows(data) if isinstance(data, PaddedBatch) else None
        yield


@contextlib.contextmanager
def trial_context(data: Nest = None) -> Iterator[None]:
    """Within the block code is only traced: a user's own step with `data`, or anything else without a batch."""
    with attributes_restored(BATCH), patched(KERAS_PATCHES):
        vars(BATCH).clear()
        BATCH.is_trial = True
        if data is not None:
            BATCH.role, BATCH.examples = "own", tf.cast(numbers_of_rows(data)[0], tf.float32)
        yield


def is_row_by_row(function: Callable[..., Any], specs: Sequence[Any]) -> bool:
    """Return whether results of `function` for a row, on tensors like `specs`, depend on that row alone."""
    return of_function(function, specs).is_row_by_row


def note_shared() -> None:
    """Note, in a user's own step, that it has asked for something about the whole batch."""
    if BATCH.examples is not None:  # else there is no batch, for example when Keras tries the step to build the model
        BATCH.is_shared = True


def has_any(data: Nest) -> tf.Tensor | None:
    """Return whether this replica has any row; `None` if every replica certainly has."""
    rows = numbers_of_rows(data)
    # In a graph, static sizes are the same on every replica. Eagerly they are not, and all must take the same path.
    is_certain = any(isinstance(each, int) and each > 0 for each in rows) and not tf.executing_eagerly()
    return None if is_certain or num_replicas() == 1 else tf.reduce_any(tf.greater(tf.stack(rows), 0))


def valid_rows(batch: PaddedBatch) -> tf.Tensor:
    """Return for each row of a padded batch whether it is an example."""
    weight = next(leaf for leaf in tf.nest.flatten(batch.sample_weight) if leaf is not None)
    bits = tf.bitcast(weight, tf.int32)
    mark = np.float32(MARK).view(np.int32)
    return tf.reduce_any(tf.not_equal(bits, mark), axis=list(range(1, weight.shape.rank)))


def gather_examples(data: SameNest) -> SameNest:
    """Return `data` and the masks on it with the examples of all replicas joined, in order, without padded rows."""

    def gather(parts: Any) -> Nest:
        if BATCH.valid is None:
            return gather_batch(parts)
        parts, valid = gather_batch((parts, BATCH.valid))
        return tf.nest.map_structure(lambda leaf: leaf if leaf is None else tf.boolean_mask(leaf, valid), parts)

    return with_attached(data, gather) if needs_gather() else data


@contextlib.contextmanager
def whole_batch_view() -> Iterator[None]:
    """Within the block, this replica holds what `gather_examples` returns."""
    with temporarily(BATCH, valid=None), holding_whole_batch(), patched(KERAS_PATCHES):
        yield


def averaging(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an optimizer's method that sums gradients, to take their mean if each replica has the whole batch.

    All of them are the same then, and their mean keeps replicas in sync even if they draw different random numbers.
    """

    @functools.wraps(stock)
    def reduce(optimizer: Any, grads_and_vars: Any) -> object:
        if holds_whole_batch():
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            grads_and_vars = [(_part_of_sum(gradient, replicas), variable) for gradient, variable in grads_and_vars]
        return stock(optimizer, grads_and_vars)

    return reduce


def _part_of_sum(gradient: Any, replicas: int) -> tf.Tensor | tf.IndexedSlices | None:
    """Return what this replica adds to the sum: of slices a part, so that all parts are the slices of one device."""
    if not isinstance(gradient, tf.IndexedSlices):
        return None if gradient is None else gradient / tf.cast(replicas, gradient.dtype)
    count = tf.shape(gradient.indices)[0]
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    begin, end = (count * one // replicas for one in (number, number + 1))
    return tf.IndexedSlices(gradient.values[begin:end], gradient.indices[begin:end], gradient.dense_shape)


def unscaled_if_local(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that divides a loss by the number of replicas, to skip that if `is_mean_local`."""

    @functools.wraps(stock)
    def scale(value: Any) -> tf.Tensor:
        return value if is_mean_local() else stock(value)

    return scale


def is_mean_local() -> bool:
    """Return whether one of Keras's means is to be taken over the rows at hand.

    This is so if each replica has the whole batch, for a layer's loss in the exact step, which weights it itself, and
    in a block where no step runs: there it is the same as on one device.
    """
    is_in_no_step = bool(BLOCKS.open) and tf.distribute.in_cross_replica_context()
    is_exact = BATCH.role == "exact" or (BATCH.is_trial and BATCH.role is None)
    return bool(holds_whole_batch() or is_exact or is_in_no_step)


@contextlib.contextmanager
def whole_state(metrics: Callable[[], Iterable[Any]]) -> Iterator[None]:
    """Within the block each replica holds the metrics' state of all examples; after it, only the first one does."""

    def summed() -> list[Any]:
        return [native(each) for metric in metrics() for each in metric.variables if is_per_replica(each)]

    before = summed()
    # The first replica may create more of them: here it waits for the others, even if there is none yet.
    values = sum_over_replicas([tf.zeros([]), *map(tf.identity, before)])
    for variable, value in zip(before, values[1:], strict=True):
        variable.assign(value)
    yield
    is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
    for variable in summed():
        variable.assign(tf.where(is_first, variable, tf.zeros_like(variable)))


def on_some_row(function: _Function) -> _Function:
    """Return `function`, called with a row where this replica has none; the values of that row are cut off."""
    if BATCH.has_any is None:
        return function

    @functools.wraps(function)
    def call(*tensors: tf.Tensor) -> tf.Tensor:
        values = function(*with_attached(tensors, lambda parts: one_row_if_empty(parts, BATCH.has_any)))
        return no_row_if_empty(values, BATCH.has_any) if values.shape.rank else values

    return cast(_Function, call)


def needs_gather() -> bool:
    """Return whether this replica's data are fewer or more than the examples of the batch."""
    return num_replicas() > 1 or BATCH.valid is not None


def is_padded() -> bool:
    """Return whether some rows may not be examples."""
    return BATCH.valid is not None


def valid_rows_of(values: tf.Tensor) -> tf.Tensor | None:
    """Return for each row of `values` whether it counts; `None` if every row does.

    There are one or several rows for each example; with any other static number they are not examples but, for
    instance, a table that a layer learns.
    """
    if BATCH.valid is None:
        return None
    examples, rows = BATCH.valid.shape[0], values.shape[0]
    if not examples or rows is None:
        return tf.repeat(BATCH.valid, tf.shape(values)[0] // tf.maximum(tf.shape(BATCH.valid)[0], 1))
    if not rows or rows % examples:
        return None
    return BATCH.valid if rows == examples else tf.repeat(BATCH.valid, rows // examples)  # static, as TPUs need it


def zero_invalid_rows(values: tf.Tensor) -> tf.Tensor:
    """Return `values` with zeros in the rows that do not count."""
    valid = valid_rows_of(values)
    if valid is None:
        return values
    shape = tf.concat([tf.shape(valid), tf.ones([values.shape.rank - 1], tf.int32)], axis=0)
    return tf.where(tf.reshape(valid, shape), values, tf.zeros_like(values))


def select_valid_rows(values: SameNest) -> SameNest:
    """Return `values` without the rows that do not count, in a shape that is not static; `None` is kept."""
    valid = None if values is None else valid_rows_of(values)
    return values if valid is None else tf.boolean_mask(values, valid)


def valid_fraction() -> tf.Tensor | float:
    """Return the fraction of this replica's rows that are examples: 1.0 if all are."""
    if BATCH.valid is None:
        return 1.0
    return tf.math.divide_no_nan(BATCH.examples, tf.cast(tf.shape(BATCH.valid)[0], tf.float32))


def static_examples(rows: int | None) -> int | None:
    """Return the number of rows here that Keras would know to be examples; `None` if unknown, or padded."""
    return rows if BATCH.valid is None else None


def row_weights(inputs: tf.Tensor) -> tf.Tensor | None:
    """Return float32 weights of one or zero that broadcast to `inputs`; `None` if every row counts."""
    valid = valid_rows_of(inputs)
    if valid is None and BATCH.has_any is None:
        return None
    ones = [1] * (inputs.shape.rank - 1)
    weights = tf.ones([1, *ones], tf.float32)
    if valid is not None:
        weights = one_row_if_empty(tf.reshape(tf.cast(valid, tf.float32), [-1, *ones]), BATCH.has_any)
    return weights if BATCH.has_any is None else weights * tf.cast(BATCH.has_any, tf.float32)


def respects_padding(function: _Function) -> _Function:
    """Return `function`, whose results belong to their rows, whatever a trial would see of how they are made."""
    if not BATCH.is_trial:
        return function

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Nest:
        results = function(*args, **kwargs)
        given = [leaf for leaf in tf.nest.flatten((args, kwargs)) if tf.is_tensor(leaf) and hasattr(leaf, "op")]
        return tf.nest.map_structure(lambda leaf: of_rows(leaf, given) if tf.is_tensor(leaf) else leaf, results)

    return cast(_Function, marked)


def batch_sum(values: tf.Tensor) -> tf.Tensor:
    """Return the sum over the first axis and over replicas, of examples only; see `training/protocols.py`."""
    return sum_over_replicas([tf.reduce_sum(_of_examples(values), axis=0)])[0]


def batch_mean(values: tf.Tensor) -> tf.Tensor:
    """Return the mean over the first axis and over replicas, of examples only; see `training/protocols.py`."""
    ones = tf.ones(tf.shape(values)[:1], values.dtype)
    sums = [tf.reduce_sum(_of_examples(each), axis=0) for each in (values, ones)]
    return tf.math.divide_no_nan(*sum_over_replicas(sums))


def _of_examples(values: tf.Tensor) -> tf.Tensor:
    weights = row_weights(values)
    return values if weights is None else tf.where(weights > 0, values, tf.zeros_like(values))


def position_in_batch(rows: tf.Tensor) -> tuple[Any, Any]:
    """Return the index of the first of this replica's `rows` in the whole batch, and that batch's number of rows."""
    count = num_replicas()
    if count == 1:
        return 0, rows
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    if isinstance(rows, int) and not tf.executing_eagerly():
        return replica * rows, count * rows
    (sizes,) = sum_over_replicas([tf.one_hot(replica, count, rows, 0, dtype=tf.int32)])
    return respects_padding(lambda: (tf.reduce_sum(sizes[:replica]), tf.reduce_sum(sizes)))()


def has_local_statistics(normalization: Layer) -> bool:
    """Return whether a `BatchNormalization` takes mean and variance from its replica's part of the batch only."""
    return not any(getattr(normalization, name, False) for name in ("synchronized", "is_exact_over_replicas"))


def local_layer_loss(loss: tf.Tensor, rows: Any = None) -> tf.Tensor:
    """Return the local part of an `add_loss` term: arrays are summed, numbers are means over the batch, or `rows`."""
    loss = loss if loss.dtype.is_floating else tf.cast(loss, tf.float32)
    local = tf.reduce_sum(zero_invalid_rows(loss) if loss.shape.rank else loss)
    if BATCH.role != "exact":
        return local
    if BATCH.has_any is not None:
        local = tf.where(BATCH.has_any if rows is None else rows > 0, local, tf.zeros_like(local))
    if not loss.shape.rank:
        part, whole = (BATCH.examples, BATCH.total) if rows is None else (rows, sum_over_replicas([rows])[0])
        local *= tf.cast(part, local.dtype) / tf.cast(whole, local.dtype)
    return local


_Regularizer: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


def regularizer_of_examples(stock: _Regularizer) -> _Regularizer:
    """Return a regulariser that corrects for Keras's division by the number of rows, padded ones included."""

    def regularizer(outputs: tf.Tensor) -> tf.Tensor:
        loss = stock(zero_invalid_rows(outputs))
        return tf.math.divide_no_nan(loss, tf.cast(valid_fraction(), loss.dtype))

    return regularizer


def regularizer_of_whole_batch(stock: _Regularizer) -> _Regularizer:
    """Return a regulariser for Keras before 3.14, whose loss is a sum over the batch.

    The step treats a scalar as a mean and adds up each replica's part of it; this corrects for that.
    """

    def regularizer(outputs: tf.Tensor) -> tf.Tensor:
        loss = stock(zero_invalid_rows(outputs))
        if BATCH.is_trial and BATCH.role is None:
            return loss / tf.cast(tf.shape(outputs)[0], loss.dtype)  # a mean, if it is a sum
        if BATCH.is_trial:
            return of_whole_batch(loss)
        if BATCH.role != "exact":
            return loss
        return tf.math.divide_no_nan(loss * tf.cast(BATCH.total, loss.dtype), tf.cast(BATCH.examples, loss.dtype))

    return regularizer


def has_any_example() -> tf.Tensor | None:
    """Return whether this replica has an example; `None` if that is certain."""
    return BATCH.has_any if BATCH.valid is None else BATCH.examples > 0


def weights_of(inputs: tf.Tensor) -> tf.Tensor:
    """Return weights of one or zero, in the dtype of `inputs`, that broadcast to them; ones if all rows count."""
    weights = row_weights(inputs)
    return tf.ones([1] * inputs.shape.rank, inputs.dtype) if weights is None else tf.cast(weights, inputs.dtype)


def synchronizes(model: Model, normalization: Layer) -> bool:
    """Return whether a `BatchNormalization` uses the statistics of the whole batch: if made so, or in a plain model.

    To a trial it looks like that: what it does in a `TPUModel` is on purpose.
    """
    if BATCH.is_trial:
        return True
    everywhere = model._kte.is_plain and num_replicas() > 1 and has_local_statistics(normalization)
    return bool(normalization.synchronized or everywhere)


def weighted_moments(
    inputs: tf.Tensor, axes: Sequence[int], weights: tf.Tensor, *, of_all_replicas: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return mean, variance and sum of weights, of this replica or of all.

    The mean of squares minus the square of the mean, as `keras.ops.moments(synchronized=True)` has it, would be only
    rounding error if the mean is much larger than the deviation.
    """
    summed = sum_over_replicas if of_all_replicas else list
    weights = tf.broadcast_to(weights, tf.shape(inputs))
    sums = [tf.reduce_sum(value, axes, keepdims=True) for value in (weights * inputs, weights)]
    total, count = summed(sums)
    mean = tf.math.divide_no_nan(total, count)  # `tf.distribute` sums gradients too
    squares = tf.reduce_sum(weights * tf.square(inputs - mean), axes, keepdims=True)
    variance = tf.math.divide_no_nan(summed([squares])[0], count)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes), tf.squeeze(count, axes)


def mask_metrics(metrics: Sequence[Metric]) -> contextlib.AbstractContextManager[None]:
    """Return a context in which `metrics` count neither a row that stands in for no example nor a padded one.

    A value without rows, such as a loss, is the same on every replica and counts on each of them, so that every
    batch has the same weight.
    """
    if BATCH.has_any is None and BATCH.valid is None:
        return contextlib.nullcontext()
    return patched([(m, "a metric's update_state", functools.partial(_with_examples, m)) for m in metrics])


def _with_examples(metric: Metric, update_state: Callable[..., Any]) -> Callable[..., Any]:
    """Return `update_state` of a metric, called with only the rows of examples in its tensors; scalars are kept."""
    knows_padding = getattr(metric, "knows_padding", False)

    def update(*args: Any, **kwargs: Any) -> object:
        leaves = tf.nest.flatten((args, kwargs))
        of_rows = [i for i, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0]
        for i, leaf in zip(of_rows, no_row_if_empty([leaves[i] for i in of_rows], BATCH.has_any), strict=True):
            leaves[i] = leaf if knows_padding else select_valid_rows(leaf)
        args, kwargs = tf.nest.pack_sequence_as((args, kwargs), leaves)
        return update_state(*args, **kwargs)

    return update
