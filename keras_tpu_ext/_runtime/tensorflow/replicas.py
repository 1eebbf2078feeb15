"""What replicas do together under `tf.distribute`: sum, gather, decide, and split a batch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import temporarily
from keras_tpu_ext._runtime.common.types import Nest, SameNest, Variable
from keras_tpu_ext.errors import ArgumentError

# Attributes of slices; see `mark_slices`.
ONCE_A_BATCH = "kte_once_a_batch"
UNIQUE = "kte_unique"


class _View(threading.local):
    """Whether this thread (each replica has one) holds the whole batch at the moment."""

    whole_batch = False


_VIEW = _View()


def holding_whole_batch() -> AbstractContextManager[None]:
    """Return a context in which this replica holds the whole batch, so sums over replicas are its own values."""
    return temporarily(_VIEW, whole_batch=True)


def holds_whole_batch() -> bool:
    """Return whether this replica holds the whole batch, as each of the others does."""
    return _VIEW.whole_batch


def num_replicas() -> int:
    """Return the number of replicas that the current data is split over: 1 outside replicas, which holds all data."""
    if _VIEW.whole_batch or tf.distribute.get_replica_context() is None:
        return 1
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def sum_over_replicas(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return each value summed over all replicas, in one all-reduce per dtype; `None` stays `None`.

    Slices are joined; those with the attribute `ONCE_A_BATCH`, whose indices are the same on every replica, are
    summed, and those with `UNIQUE`, none of which has the index of another, where their indices are the same.

    In a graph a Python number is a static size, the same on every replica, so it is multiplied. Eagerly all sizes are
    static, and those of an uneven batch differ.
    """
    count = num_replicas()
    if count == 1:
        return list(values)
    lookups = {i: value for i, value in enumerate(values) if getattr(value, ONCE_A_BATCH, False)}
    sums: list[Any] = [value.values if i in lookups else value for i, value in enumerate(values)]
    by_dtype: dict[Any, list[int]] = {}  # `tf.distribute` packs one all-reduce into one buffer, which has one dtype
    for i, value in enumerate(sums):
        if isinstance(value, (int, float)):
            sums[i] = value = tf.constant(float(value)) if tf.executing_eagerly() else value * count
        if value is not None and not isinstance(value, (int, float)):
            by_dtype.setdefault(value.dtype, []).append(i)
    for indices in by_dtype.values():
        parts = [_on_device(sums[i]) for i in indices]
        reduced = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, parts)
        for i, value in zip(indices, reduced, strict=True):
            sums[i] = _summed_by_index(value) if getattr(values[i], UNIQUE, False) else value
    for i, slices in lookups.items():
        sums[i] = tf.IndexedSlices(sums[i], slices.indices, slices.dense_shape)
    return sums


def _summed_by_index(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _on_device(value: tf.Tensor) -> tf.Tensor:
    """Return `value` on a device, if this process has one of several replicas.

    `MultiWorkerMirroredStrategy` then rejects a variable read in a condition, which is on no device.
    """
    devices = tf.distribute.get_strategy().extended.worker_devices
    if len(devices) > 1 or not isinstance(value, tf.Tensor) or value.device:
        return value
    with tf.device(devices[0]):
        return tf.identity(value)


def as_global(local: tf.Tensor) -> tf.Tensor:
    """Return the sum of `local` over replicas, whose gradient is the gradient of this replica's part alone.

    The gradients of all replicas then add up to the gradient of the sum, even after another function is applied.
    """
    if num_replicas() == 1:
        return local

    @tf.custom_gradient
    def summed(local: tf.Tensor) -> tf.Tensor:
        return sum_over_replicas([local])[0], lambda upstream: upstream

    return summed(local)


def local_as_whole(local: tf.Tensor) -> tf.Tensor:
    """Return the whole of a value that replicas have parts of, on each of them: for use in `holding_whole_batch`.

    As in `gather_batch`, its gradient is N times that of this replica's part.
    """
    return _amplified(as_global(local), num_replicas())


def gather_batch(data: SameNest) -> SameNest:
    """Return the structure `data` with the batches of all replicas joined, in order, on each of them.

    Every replica computes the same number L from it, and takes L / N as its part. Gradients reach only this
    replica's own rows, N times too large, so that the gradients of the parts add up to those of L.
    """
    if num_replicas() == 1:
        return data
    return tf.nest.map_structure(lambda leaf: _gather(leaf) if getattr(leaf, "shape", ()) != () else leaf, data)


def _gather(tensor: tf.Tensor) -> tf.Tensor:
    if isinstance(tensor, tf.RaggedTensor):
        lengths = [_gather(of_level) for of_level in tensor.nested_row_lengths()]
        return tf.RaggedTensor.from_nested_row_lengths(_gather(tensor.flat_values), lengths, validate=False)
    if isinstance(tensor, tf.SparseTensor):
        return _gather_sparse(tensor)
    return _gather_dense(tf.convert_to_tensor(tensor))


def _gather_sparse(tensor: tf.SparseTensor) -> tf.SparseTensor:
    shapes = _gather(tensor.dense_shape[tf.newaxis])
    before = tf.reduce_sum(shapes[: tf.distribute.get_replica_context().replica_id_in_sync_group, :1])
    indices = tensor.indices + tf.one_hot(0, tensor.shape.rank, before, tf.zeros([], tf.int64))
    shape = tf.concat([tf.reduce_sum(shapes[:, :1], axis=0), tf.reduce_max(shapes[:, 1:], axis=0)], axis=0)
    return tf.SparseTensor(_gather(indices), _gather(tensor.values), shape)


def _gather_dense(tensor: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    mine = tf.shape(tensor)[0]
    sizes = context.all_gather(mine[tf.newaxis], axis=0)
    begin = tf.reduce_sum(sizes[: context.replica_id_in_sync_group])
    everyone = context.all_gather(tf.stop_gradient(tensor), axis=0)
    own = _amplified(tensor, num_replicas()) if tensor.dtype.is_floating else tensor
    whole = tf.concat([everyone[:begin], own, everyone[begin + mine :]], axis=0)
    if tensor.shape.rank is not None:
        whole.set_shape([None, *tensor.shape[1:]])
    return whole


def gather_everywhere(strategy: tf.distribute.Strategy, values: tf.Tensor) -> np.ndarray:
    """Return the values of all replicas in all processes, joined along the first dimension; outside replicas."""
    return np.asarray(_gather_function(strategy)(values))


@functools.cache
def _gather_function(strategy: tf.distribute.Strategy) -> Callable[[Nest], tf.Tensor]:
    """Wrap `gather`, which would retrace eagerly at each call and warn about it."""
    return tf.function(lambda values: strategy.gather(values, axis=0), autograph=False, reduce_retracing=True)


def _amplified(tensor: tf.Tensor, factor: int) -> tf.Tensor:
    """Return `tensor`, with `factor` times its gradient."""

    @tf.custom_gradient
    def identity(value: tf.Tensor) -> tf.Tensor:
        return tf.identity(value), lambda upstream: upstream * tf.cast(factor, upstream.dtype)

    return identity(tensor)


def cross_replica_cond(
    condition: tf.Tensor, then: Callable[..., None], otherwise: Callable[..., None], *args: Any
) -> None:
    """Call `then(*args)` on every replica if `condition`, which is the same on all, else `otherwise(*args)`.

    Either may update variables and sum over replicas, which `MirroredStrategy` allows only in a condition outside of
    the replicas: they are left for it, and entered again.
    """
    strategy = tf.distribute.get_strategy()

    @tf.autograph.experimental.do_not_convert
    def decide(strategy: tf.distribute.Strategy, condition: tf.Tensor, *args: Any) -> None:
        crossed = tf.distribute.in_cross_replica_context()
        if crossed:
            condition = strategy.experimental_local_results(condition)[0]

        def branch(function: Callable[..., None]) -> Callable[[], tf.Tensor]:
            def run() -> tf.Tensor:
                if crossed:
                    strategy.extended.call_for_each_replica(function, args=args)
                else:
                    function(*args)
                return tf.constant(0)

            return run

        tf.cond(condition, branch(then), branch(otherwise))

    tf.__internal__.distribute.interim.maybe_merge_call(decide, strategy, condition, *args)


def assign_replicated(variable: Variable, value: tf.Tensor) -> None:
    """Assign `value`, the same on all replicas, without another reduction; call it in a replica."""
    strategy = tf.distribute.get_strategy()
    own = native(variable)

    @tf.autograph.experimental.do_not_convert
    def assign(strategy: tf.distribute.Strategy, value: tf.Tensor) -> None:
        if tf.distribute.in_cross_replica_context():
            strategy.extended.update(own, lambda var, new: var.assign(tf.cast(new, var.dtype)), args=(value,))
        else:
            own.assign(tf.cast(value, own.dtype))

    tf.__internal__.distribute.interim.maybe_merge_call(assign, strategy, value)


def native(variable: Variable) -> Any:
    """Return TensorFlow's own variable; a Keras 3 variable wraps it as its value."""
    value = getattr(variable, "value", variable)
    return variable if callable(value) else value


def numbers_of_rows(data: Nest) -> list[int | tf.Tensor]:
    """Return the leading dimension of each array in `data` that has one: an int if it is static, else a tensor."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None and leaf.shape.rank != 0]
    return [tf.shape(leaf)[0] if leaf.shape[0] is None else int(leaf.shape[0]) for leaf in leaves]


def hide_uneven_sizes(strategy: tf.distribute.Strategy, data: Nest, *, sparse: bool = True) -> Nest:
    """Return `data`, without static batch sizes if replicas differ in them.

    Static sizes in a graph are assumed to be the same on every replica; see `sum_over_replicas`.
    """
    if tf.executing_eagerly():
        return data
    parts = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(data)]
    sizes = [{part.shape[0] for part in of_leaf if part is not None} for of_leaf in parts]
    are_all_here = len(parts[0]) == strategy.num_replicas_in_sync  # else other processes have the other parts
    if are_all_here and all(len(of_leaf) <= 1 for of_leaf in sizes):
        return data

    def hide(leaf: tf.Tensor) -> tf.Tensor:
        if isinstance(leaf, tf.RaggedTensor):
            return tf.nest.map_structure(hide, leaf, expand_composites=True)
        if isinstance(leaf, tf.SparseTensor) and sparse:
            return _with_rows(leaf, tf.compat.v1.placeholder_with_default(leaf.dense_shape[0], []), leaf.shape)
        if not isinstance(leaf, tf.Tensor):  # None, or sparse
            return leaf
        return tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    return strategy.run(lambda part: tf.nest.map_structure(hide, part), args=(data,))


def split_batch(strategy: tf.distribute.Strategy, data: Nest) -> Nest:
    """Return `data`, one batch of host arrays, split over the replicas as evenly as possible."""
    if strategy.num_replicas_in_sync == 1:
        return data
    parts = [_split(leaf, strategy.num_replicas_in_sync) for leaf in tf.nest.flatten(data)]

    def of_replica(context: tf.distribute.ValueContext) -> Nest:
        return tf.nest.pack_sequence_as(data, [of_leaf[context.replica_id_in_sync_group] for of_leaf in parts])

    return strategy.experimental_distribute_values_from_function(of_replica)


def _split(leaf: Nest, replicas: int) -> Sequence[Nest]:
    if leaf is None:
        return [None] * replicas
    if isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
        return [part_of_batch(leaf, index, replicas) for index in range(replicas)]
    return [tf.convert_to_tensor(part) for part in np.array_split(np.asarray(leaf), replicas)]


def is_none(leaf: object) -> bool:
    """Return whether a leaf of a batch, or its spec, is `None` or the optional that Keras puts there."""
    # TensorFlow does not export NoneTensorSpec.
    is_optional = isinstance(leaf, (tf.experimental.Optional, tf.OptionalSpec))
    return leaf is None or is_optional or type(leaf).__name__ == "NoneTensorSpec"


def with_none(data: Any) -> Any:
    """Return a batch, or its specs, with `None` where `()` or an empty optional stands for it."""
    if type(data) is dict:
        return {name: with_none(part) for name, part in data.items()}
    if type(data) in (list, tuple):
        return type(data)(map(with_none, data)) if data else None
    if isinstance(data, tuple):  # a named one
        return type(data)(*map(with_none, data))
    return tf.nest.map_structure(lambda leaf: None if is_none(leaf) else leaf, data)


def part_of_batch(leaf: tf.Tensor, index: tf.Tensor | int, parts: int) -> tf.Tensor:
    """Return the rows of one part of a batch, or a number; the first parts may have one row more than the others."""
    if leaf.shape.rank == 0:
        return leaf
    rows = tf.cast(leaf.dense_shape[0] if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)[0], tf.int64)
    begin, end = (rows // parts * number + tf.minimum(number, rows % parts) for number in (index, index + 1))
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[begin:end]
    others = leaf.dense_shape[1:]
    start, size = tf.concat([[begin], tf.zeros_like(others)], axis=0), tf.concat([[end - begin], others], axis=0)
    return _with_rows(tf.sparse.slice(leaf, start, size), size[0], leaf.shape)


def _with_rows(tensor: tf.SparseTensor, rows: tf.Tensor, shape: tf.TensorShape) -> tf.SparseTensor:
    """Return `tensor` with `rows` rows; Keras knows of the other dimensions what `shape` says."""
    lengths = [tensor.dense_shape[i] if length is None else length for i, length in enumerate(shape)]
    return tf.SparseTensor(tensor.indices, tensor.values, tf.stack([rows, *lengths[1:]]))


def number_of_replicated(kind: type, stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `stock`, which converts Keras's variable to `int` or `float`, for a variable that replicas share."""

    @functools.wraps(stock)
    def number(variable: Any) -> float:
        is_shared = isinstance(variable.value, tf.distribute.DistributedValues)
        return kind(variable.numpy()) if is_shared else stock(variable)

    return number


def handle_in_replicas(stock: property) -> property:
    """Wrap the handle of Keras's variable, to say what to write where a gradient is taken outside of replicas."""

    def handle(variable: Variable) -> tf.Tensor:
        try:
            return stock.__get__(variable)
        except ValueError as error:
            raise ArgumentError(
                f"A gradient of {variable.path!r}, of which each replica has a copy, is taken within "
                "strategy_scope() by a training loop of one's own, which is for one device. Write the step as "
                "train_step(self, data) of a keras.Model, and model.fit(...). Or write "
                "optimizer.build(model.trainable_variables) and, below the block, the loop: it runs on one device."
            ) from error

    return property(handle)


def is_per_replica(variable: Variable) -> bool:
    """Return whether each replica has its own value, and reading the variable elsewhere returns their sum or mean."""
    own = native(variable)
    return getattr(own, "synchronization", None) == tf.VariableSynchronization.ON_READ


def values_of_replicas(variable: Variable) -> np.ndarray:
    """Return the values that the replicas of all processes have of a variable which they do not share.

    Where several processes train together, all of them must call it.
    """
    own = native(variable)
    if not isinstance(own, tf.distribute.DistributedValues):
        return np.stack([own.numpy()])
    if len(own.values) == own.distribute_strategy.num_replicas_in_sync:
        return np.stack([part.numpy() for part in own.values])
    strategy, parts = own.distribute_strategy, iter(own.values)
    mine = strategy.experimental_distribute_values_from_function(
        lambda _: tf.convert_to_tensor(next(parts))[tf.newaxis]
    )
    return gather_everywhere(strategy, mine)


def assign_to_replicas(variable: Variable, values: np.ndarray) -> None:
    """Assign to each replica of this process its own element of `values`, which holds those of all replicas.

    If they come from a different number of replicas, the first replica gets their sum.
    """
    replicas = len(zeros_of_replicas(variable))
    if len(values) != replicas:
        values = np.stack([values.sum(axis=0)] + [np.zeros_like(values[0])] * (replicas - 1))
    mirrored = native(variable)
    if not isinstance(mirrored, tf.distribute.DistributedValues):
        mirrored.assign(values[0])
        return
    strategy = mirrored.distribute_strategy

    def of_replica(context: tf.distribute.ValueContext) -> tf.Tensor:
        return tf.convert_to_tensor(values[context.replica_id_in_sync_group])

    own = strategy.experimental_local_results(strategy.experimental_distribute_values_from_function(of_replica))
    for part, value in zip(mirrored.values, own, strict=True):
        part.assign(value)


def zeros_of_replicas(variable: Variable) -> np.ndarray:
    """Return zeros in the shape that `values_of_replicas` returns."""
    own = native(variable)
    needs_gather = isinstance(own, tf.distribute.DistributedValues)
    replicas = own.distribute_strategy.num_replicas_in_sync if needs_gather else 1
    return np.zeros([replicas, *variable.shape], tf.as_dtype(variable.dtype).as_numpy_dtype)
