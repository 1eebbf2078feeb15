"""The node of a pipeline after which a cache belongs."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from keras_tpu_ext.data.pipeline import nodes
from keras_tpu_ext.data.pipeline.effects import is_deterministic, is_source, reason_to_keep

_AFTER_CACHE = {nodes.SHUFFLE, nodes.PREFETCH, nodes.REPEAT, nodes.OPTIONS, nodes.ZIP, nodes.CONCATENATE}
_COMMUTING = nodes.ANY_BATCH | {nodes.SHUFFLE, nodes.PREFETCH}  # a cache may come before or after them


def cache_position(dataset: Any, most: float) -> tuple[Any, str]:
    """Return the node to cache, in at most `most` bytes, and the reason if it is `None`."""
    if not most:
        return None, ""
    reason = "No cache was added: nowhere are the elements the same in every epoch."
    node = dataset
    while not reason_to_keep(node):
        if nodes.class_name(node) not in _AFTER_CACHE and _is_worth_caching(node):
            size = _bytes(node)
            if any(nodes.class_name(one) == nodes.CACHE for one in nodes.nodes_of(node)):
                return None, "No cache was added: there is one already."
            if size is not None and size <= most:
                return node, ""
            reason = (
                f"No cache was added: the size of the elements after {nodes.method_name(node)} is not known."
                if size is None
                else f"No cache was added: it would take {size / 2**20:.0f} MiB, and may take {most / 2**20:.0f} MiB."
            )
        if is_source(node) or len(nodes.inputs_of(node)) != 1:
            break
        (node,) = nodes.inputs_of(node)
    return None, reason


def _is_worth_caching(node: Any) -> bool:
    """Return whether the elements are costly to make, and the same in every epoch."""
    upstream = list(nodes.nodes_of(node))
    works = any(nodes.functions_of(one) or nodes.class_name(one).startswith("readers.") for one in upstream)
    return works and is_deterministic(node) and not any(nodes.class_name(one) == nodes.SHUFFLE for one in upstream)


def _bytes(node: Any) -> float | None:
    """Return the size of all elements in bytes; `None` if it is unknown."""
    count, total = int(node.cardinality()), 0
    for spec in tf.nest.flatten(node.element_spec):
        if type(spec).__name__ == "NoneTensorSpec":
            continue
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined() or spec.dtype == tf.string:
            return None
        total += math.prod(spec.shape) * spec.dtype.size
    return None if count < 0 else float(count * total)


def cache_before_shuffle(node: Any, inputs: list[Any]) -> Any:
    """Return a cache with the shuffle after it instead of before; `None` if there is no shuffle."""
    downstream, upstream = [], inputs[0]
    while nodes.class_name(upstream) in _COMMUTING and nodes.node_type(upstream):
        downstream.append(upstream)
        (upstream,) = nodes.inputs_of(upstream)
    shuffles = [number for number, one in enumerate(downstream) if nodes.class_name(one) == nodes.SHUFFLE]
    if not shuffles:
        return None
    # What comes before the first shuffle stays before the cache.
    downstream = downstream[: shuffles[-1] + 1]
    made = nodes.rebuild(node, nodes.inputs_of(downstream[-1]))
    for one in reversed(downstream):
        made = nodes.rebuild(one, [made])
    return made
