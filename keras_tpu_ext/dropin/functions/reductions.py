"""Reductions, orders, sums along an axis and over segments, and norms."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.elementwise import maximum

Array = Any
TopK = collections.namedtuple("TopK", ["values", "indices"])


def _reduction(function: Callable[..., Array], **options: Any) -> Callable[..., Array]:
    return lambda x, axis, keepdims: function(x, axis=axis, keepdims=bool(keepdims), **options)


def _mean(x: Array, axis: Any, keepdims: bool) -> Array:
    """Return the mean; that of integers is one, as in TensorFlow."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.mean(x, axis=axis, keepdims=keepdims)
    total = jnp.sum(x, axis=axis, keepdims=keepdims, promote_integers=False)
    count = jnp.sum(jnp.ones_like(x), axis=axis, keepdims=keepdims, promote_integers=False)
    return lax.div(total, count)


def _sort(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return `sort` or `argsort`: equal elements keep their order."""

    def call(values: Array, axis: int, direction: str, stable: bool = True) -> Array:
        if direction not in ("ASCENDING", "DESCENDING"):
            raise ValueError(f"direction must be ASCENDING or DESCENDING, not {direction!r}")
        return function(values, axis=axis, descending=direction == "DESCENDING", stable=True)

    return call


def _top_k(x: Array, k: int, is_sorted: bool, index_type: Any) -> Any:
    values, indices = lax.top_k(x, k)
    return TopK(values, indices.astype(index_type))


def _in_top_k(targets: Array, predictions: Array, k: int) -> Array:
    chosen = jnp.take_along_axis(predictions, targets[:, None], axis=-1)
    finite = jnp.isfinite(chosen[:, 0]) & jnp.all(jnp.isfinite(predictions), axis=-1)
    return finite & (jnp.sum(predictions > chosen, axis=-1) < k)


def _cumulative(function: Callable[..., Array], neutral: float) -> Callable[..., Array]:
    def call(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
        x = jnp.flip(x, axis) if reverse else x
        result = function(x, axis)
        if exclusive:
            first = jnp.full_like(lax.slice_in_dim(x, 0, 1, axis=axis), neutral)
            result = jnp.concatenate([first, lax.slice_in_dim(result, 0, x.shape[axis] - 1, axis=axis)], axis)
        return jnp.flip(result, axis) if reverse else result

    return call


def _segments(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(data: Array, ids: Array, count: int) -> Array:
        return function(data.reshape((-1, *data.shape[ids.ndim :])), ids.reshape(-1), count)

    return call


def _largest_of_segments(data: Array, ids: Array, count: int) -> Array:
    info = jnp.iinfo(data.dtype) if jnp.issubdtype(data.dtype, jnp.integer) else jnp.finfo(data.dtype)
    filled = jax.ops.segment_sum(jnp.ones_like(ids), ids, count) > 0
    result = jax.ops.segment_max(data, ids, count)
    return jnp.where(filled.reshape((-1,) + (1,) * (result.ndim - 1)), result, jnp.asarray(info.min, data.dtype))


def _mean_of_segments(data: Array, ids: Array, count: int) -> Array:
    sums = jax.ops.segment_sum(data, ids, count)
    sizes = jax.ops.segment_sum(jnp.ones(ids.shape, data.dtype), ids, count)
    return sums / jnp.maximum(sizes, 1).reshape((-1,) + (1,) * (sums.ndim - 1))


def _confusion_matrix(labels: Array, predictions: Array, classes: int, weights: Any, to: Any) -> Array:
    """Count the pairs of label (rows) and prediction (columns)."""
    if classes is None:
        raise out_of_reach(
            what="tf.math.confusion_matrix",
            why="the size of its result depends on the data",
            write="tf.math.confusion_matrix(labels, predictions, num_classes=n)",
        )
    labels, predictions = labels.reshape(-1).astype(int), predictions.reshape(-1).astype(int)
    each = jnp.ones(labels.shape, to) if weights is None else weights.astype(to).reshape(-1)
    return jnp.zeros((classes, classes), to).at[labels, predictions].add(each)


def _l2_normalize(x: Array, axis: Any, epsilon: Any) -> Array:
    return x * lax.rsqrt(maximum(jnp.sum(jnp.square(x), axis=axis, keepdims=True), epsilon))


def _norm(x: Array, order: Any, axis: Any, keepdims: Any) -> Array:
    """Return the norm of vectors, or that of matrices if there are two axes."""
    keepdims = bool(keepdims)
    if order in ("euclidean", "fro") or (order == 2 and not isinstance(axis, tuple)):
        return jnp.sqrt(jnp.sum(x * jnp.conj(x), axis=axis, keepdims=keepdims))
    if axis is None:
        value = jnp.linalg.norm(x.reshape(-1), order, 0)
        return value.reshape((1,) * x.ndim) if keepdims else value
    return jnp.linalg.norm(x, order, axis, keepdims)


def _normalize(x: Array, order: Any, axis: Any) -> tuple[Array, Array]:
    length = _norm(x, order, axis, True)
    return x / length, length


def _clip_by_norm(x: Array, limit: Array, axis: Any) -> Array:
    squares = jnp.sum(x * x, axis=axis, keepdims=True)
    length = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), squares)
    return x * limit / maximum(length, limit)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "math.reduce_all": _reduction(jnp.all),
    "math.reduce_any": _reduction(jnp.any),
    "math.reduce_euclidean_norm": lambda x, axis, keepdims: _norm(x, "fro", axis, keepdims),
    "math.reduce_logsumexp": _reduction(jax.scipy.special.logsumexp),
    "math.reduce_max": _reduction(jnp.max),
    "math.reduce_mean": _reduction(_mean),
    "math.reduce_min": _reduction(jnp.min),
    "math.reduce_prod": _reduction(jnp.prod, promote_integers=False),
    "math.reduce_std": _reduction(jnp.std),
    "math.reduce_sum": _reduction(jnp.sum, promote_integers=False),
    "math.reduce_variance": _reduction(jnp.var),
    "math.argmax": lambda x, axis, to: jnp.argmax(x, axis=axis or 0).astype(to),
    "math.argmin": lambda x, axis, to: jnp.argmin(x, axis=axis or 0).astype(to),
    "argsort": _sort(jnp.argsort),
    "sort": _sort(jnp.sort),
    "math.top_k": _top_k,
    "math.in_top_k": _in_top_k,
    "math.cumsum": _cumulative(jnp.cumsum, 0),
    "math.cumprod": _cumulative(jnp.cumprod, 1),
    "math.unsorted_segment_sum": _segments(jax.ops.segment_sum),
    "math.unsorted_segment_max": _segments(_largest_of_segments),
    "math.unsorted_segment_mean": _segments(_mean_of_segments),
    "math.confusion_matrix": _confusion_matrix,
    "math.count_nonzero": lambda x, axis, keepdims, to: jnp.sum(x != 0, axis=axis, keepdims=bool(keepdims), dtype=to),
    "math.l2_normalize": _l2_normalize,
    "norm": _norm,
    "linalg.normalize": _normalize,
    "linalg.global_norm": lambda arrays: jnp.sqrt(sum(jnp.sum(jnp.square(array)) for array in arrays)),
    "clip_by_norm": _clip_by_norm,
}
