"""Sums over replicas under `tf.distribute`, and the split of one batch over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def num_replicas() -> int:
    """Return the number of replicas of the strategy that is current."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def sum_over_replicas(values: Sequence[Any]) -> list[Any]:
    """Return each value summed over all replicas, in one all-reduce a dtype.

    Args:
        values: Tensors, `tf.IndexedSlices`, `None` (stays `None`), or Python numbers. In a graph a number
            comes of a static shape and is the same on every replica, so it is multiplied and costs no
            communication. Eagerly every shape is static, and an uneven batch has several.

    Returns:
        The sums, in the order of `values`.
    """
    count = num_replicas()
    context = tf.distribute.get_replica_context()
    if count == 1 or context is None:  # out of a replica (Keras builds a model so) the caller holds all there is
        return list(values)
    if tf.executing_eagerly():
        values = [tf.constant(float(value)) if isinstance(value, (int, float)) else value for value in values]
    summed = [value * count if isinstance(value, (int, float)) else value for value in values]
    for places in _places_by_dtype(values).values():
        reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, [values[i] for i in places])
        for place, value in zip(places, reduced, strict=True):
            summed[place] = value
    return summed


def _places_by_dtype(values: Sequence[Any]) -> dict[Any, list[int]]:
    """Group tensors by dtype: `tf.distribute` packs one all-reduce into one buffer, which has one dtype."""
    places: dict[Any, list[int]] = {}
    for i, value in enumerate(values):
        if value is not None and not isinstance(value, (int, float)):
            places.setdefault(value.dtype, []).append(i)
    return places


def batch_size(data: Any) -> Any:
    """Return the leading dimension of the first array in `data`: an int where it is static, else a tensor."""
    first = next(leaf for leaf in tf.nest.flatten(data) if leaf is not None)
    static = first.shape[0]
    return int(static) if static is not None else tf.shape(first)[0]


def hide_uneven_sizes(strategy: tf.distribute.Strategy, data: Any) -> Any:
    """Return `data`, without the static batch sizes where replicas differ in them.

    What is static in a graph is taken to be the same on every replica, see `sum_over_replicas`.
    """
    if tf.executing_eagerly():
        return data
    sizes = [
        {part.shape[0] for part in strategy.experimental_local_results(leaf) if part is not None}
        for leaf in tf.nest.flatten(data)
    ]
    if all(len(of_leaf) <= 1 for of_leaf in sizes):
        return data

    def hide(leaf: Any) -> Any:
        return leaf if leaf is None else tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    return strategy.run(lambda part: tf.nest.map_structure(hide, part), args=(data,))


def split_batch(strategy: tf.distribute.Strategy, data: Any) -> Any:
    """Return `data`, one batch of host arrays, split over the replicas as evenly as it goes.

    Args:
        strategy: The strategy whose replicas take part.
        data: A structure of arrays with one leading dimension, batch; `None` leaves stay.
    """
    if strategy.num_replicas_in_sync == 1:
        return data
    parts = [
        leaf if leaf is None else np.array_split(np.asarray(leaf), strategy.num_replicas_in_sync)
        for leaf in tf.nest.flatten(data)
    ]

    def of_replica(context: tf.distribute.ValueContext) -> Any:
        index = context.replica_id_in_sync_group
        leaves = [part if part is None else tf.convert_to_tensor(part[index]) for part in parts]
        return tf.nest.pack_sequence_as(data, leaves)

    return _values_from(strategy, of_replica)


def _values_from(strategy: tf.distribute.Strategy, function: Callable[[Any], Any]) -> Any:
    return strategy.experimental_distribute_values_from_function(function)
