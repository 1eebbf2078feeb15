"""Batches as structures of arrays: checking, cutting, repeating and reversing them."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._parity.job import Batch
from keras_tpu_ext.errors import ArgumentError

_WRITE = "Write a batch as x, (x, y) or (x, y, sample_weight), of arrays with the examples first: (images, labels)."


def as_batch(batch: Any) -> Batch:
    """Return `batch` as `x`, `y` and `sample_weight`, structures of NumPy arrays with one leading dimension.

    Raises:
        ArgumentError: If it is no batch.
    """
    if hasattr(batch, "element_spec") or hasattr(batch, "__next__"):
        raise ArgumentError(
            f"`batch` must be one batch of arrays; got a {type(batch).__name__}, which has many. "
            "Write check_parity(build_model, next(iter(dataset)))."
        )
    parts = batch if isinstance(batch, tuple) else (batch,)
    if not 1 <= len(parts) <= 3:
        raise ArgumentError(f"`batch` must have one to three parts; got a tuple of {len(parts)}. {_WRITE}")
    arrays = _map(np.asarray, (*parts, None, None)[:3])
    leaves = [leaf for leaf in _runtime.tree.flatten(arrays) if leaf is not None]
    if any(leaf.ndim == 0 for leaf in leaves):
        raise ArgumentError(f"`batch` holds single numbers where arrays were needed. {_WRITE}")
    sizes = sorted({len(leaf) for leaf in leaves})
    if len(sizes) != 1 or sizes[0] == 0:
        raise ArgumentError(
            f"The arrays of `batch` must all have the same number of examples, at least 1; got {sizes}. {_WRITE}"
        )
    x, y, sample_weight = arrays
    return x, y, sample_weight


def size(batch: Batch) -> int:
    """Return the number of examples."""
    return len(next(leaf for leaf in _runtime.tree.flatten(batch) if leaf is not None))


def take(batch: Batch, places: Any) -> Batch:
    """Return the examples at `places`, in that order."""
    x, y, sample_weight = _map(lambda leaf: leaf[places], batch)
    return x, y, sample_weight


def tail_places(examples: int, replicas: int, *, reverse: bool = False) -> tuple[Any, int]:
    """Return which examples make an epoch of two batches, and the size of the first.

    The first divides by `replicas` and the last does not; a small batch is repeated.

    Args:
        examples: Number of examples there are.
        replicas: Number of replicas.
        reverse: Whether each of the two batches comes in reverse order.
    """
    tail = examples % replicas or max(replicas - 1, 1)
    first = (examples - tail) // replicas * replicas if examples - tail >= replicas else replicas
    places = np.arange(first + tail) % examples
    if reverse:
        places = np.concatenate([places[:first][::-1], places[first:][::-1]])
    return places, first


def with_infinity(batch: Batch, replicas: int) -> tuple[Batch, Batch]:
    """Return the batch with weights, and the same with an infinite weight on the second replica's first example."""
    examples = max(size(batch), 2)
    x, y, sample_weight = take(batch, np.arange(examples) % size(batch))
    place = -(-examples // replicas) if replicas > 1 else 0
    weights = _map(lambda leaf: np.asarray(leaf, "float32"), sample_weight)
    if weights is None:
        weights = np.ones(examples, "float32")

    def infinite(leaf: Any) -> Any:
        leaf = leaf.copy()
        leaf[min(place, examples - 1)] = np.inf
        return leaf

    return (x, y, weights), (x, y, _map(infinite, weights))


def _map(function: Any, structure: Any) -> Any:
    return _runtime.tree.map_structure(lambda leaf: leaf if leaf is None else function(leaf), structure)
