"""Reductions, orders, sums along an axis and over segments, and norms."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import axes, dtype, number, tensor, tensors
from keras_tpu_ext.dropin.functions.elementwise import maximum

Array = Any
TopK = collections.namedtuple("TopK", ["values", "indices"])


def _reduction(function: Callable[..., Array], **options: Any) -> Callable[..., Array]:
    def call(x: Any, axis: Any, keepdims: Any) -> Array:
        return function(tensor(x), axis=axes(axis), keepdims=bool(keepdims), **options)

    return call


def _mean(x: Array, axis: Any, keepdims: bool) -> Array:
    """Return the mean; that of integers is one, as in TensorFlow."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.mean(x, axis=axis, keepdims=keepdims)
    total = jnp.sum(x, axis=axis, keepdims=keepdims, promote_integers=False)
    count = jnp.sum(jnp.ones_like(x), axis=axis, keepdims=keepdims, promote_integers=False)
    return lax.div(total, count)


def _euclidean_norm(x: Array, axis: Any, keepdims: bool) -> Array:
    return jnp.sqrt(jnp.sum(x * jnp.conj(x), axis=axis, keepdims=keepdims))


def _axis_function(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return argmax or argmin, whose indices are int32: JAX has no int64 as long as `jax_enable_x64` is off."""

    def call(x: Any, axis: Any, output_type: Any) -> Array:
        return function(tensor(x), axis=0 if axis is None else number(axis)).astype(dtype(output_type))

    return call


def _sort(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(values: Any, axis: Any, direction: str, stable: bool = True) -> Array:
        if direction not in ("ASCENDING", "DESCENDING"):
            raise ValueError(f"direction must be ASCENDING or DESCENDING, not {direction!r}")
        return function(tensor(values), axis=number(axis), descending=direction == "DESCENDING", stable=True)

    return call


def top_k(x: Any, k: Any, is_sorted: bool, index_type: Any) -> Any:
    """Return the largest k of the last axis, in falling order, and where they are."""
    values, indices = lax.top_k(tensor(x), number(k))
    return TopK(values, indices.astype(dtype(index_type)))


def in_top_k(targets: Any, predictions: Any, k: Any) -> Array:
    """Return whether fewer than k predictions are above that of the target."""
    predictions, targets = tensor(predictions), tensor(targets)
    chosen = jnp.take_along_axis(predictions, targets[:, None], axis=-1)
    finite = jnp.isfinite(chosen[:, 0]) & jnp.all(jnp.isfinite(predictions), axis=-1)
    return finite & (jnp.sum(predictions > chosen, axis=-1) < k)


def _cumulative(function: Callable[..., Array], neutral: float) -> Callable[..., Array]:
    def call(x: Any, axis: Any, exclusive: bool, reverse: bool) -> Array:
        x, axis = tensor(x), number(axis)
        x = jnp.flip(x, axis) if reverse else x
        result = function(x, axis)
        if exclusive:
            first = jnp.full_like(lax.slice_in_dim(x, 0, 1, axis=axis), neutral)
            result = jnp.concatenate([first, lax.slice_in_dim(result, 0, x.shape[axis] - 1, axis=axis)], axis)
        return jnp.flip(result, axis) if reverse else result

    return call


def _log_cumulative_sum(x: Array, axis: int) -> Array:
    return lax.cumlogsumexp(x, axis=axis % x.ndim)


def _segments(function: Callable[..., Array], empty: Callable[[Any], Any] | None = None) -> Callable[..., Array]:
    """Return a reduction over segments; one that is `empty` has the value that this makes of a dtype."""

    def call(data: Any, ids: Any, count: Any) -> Array:
        data, ids, count = tensor(data), tensor(ids), number(count)
        data = data.reshape((-1, *data.shape[ids.ndim :]))
        result = function(data, ids.reshape(-1), count)
        if empty is None:
            return result
        filled = jax.ops.segment_sum(jnp.ones_like(ids.reshape(-1)), ids.reshape(-1), count) > 0
        filled = filled.reshape((-1,) + (1,) * (result.ndim - 1))
        return jnp.where(filled, result, jnp.asarray(empty(data.dtype), data.dtype))

    return call


def _info(to: Any) -> Any:
    return jnp.iinfo(to) if jnp.issubdtype(to, jnp.integer) else jnp.finfo(to)


def _mean_of_segments(power: float) -> Callable[..., Array]:
    def call(data: Array, ids: Array, count: int) -> Array:
        sums = jax.ops.segment_sum(data, ids, count)
        sizes = jax.ops.segment_sum(jnp.ones(ids.shape, data.dtype), ids, count)
        return sums / jnp.maximum(sizes, 1).reshape((-1,) + (1,) * (sums.ndim - 1)) ** power

    return call


def _segments_of_data(name: str) -> Callable[..., Array]:
    def call(*_: Any) -> Array:
        raise out_of_reach(
            what=f"tf.math.{name}",
            why="the number of its segments depends on the data",
            write=f"tf.math.unsorted_{name}(data, segment_ids, num_segments)",
        )

    return call


def bincount(x: Any, weights: Any, low: Any, high: Any, to: Any, axis: Any, binary: bool) -> Array:
    """Count how often each number is there; there must be as many numbers whatever the data."""
    if low is None or high is None or number(low) != number(high):
        raise out_of_reach(
            what="tf.math.bincount",
            why="the size of its result depends on the data",
            write="tf.math.bincount(x, minlength=n, maxlength=n)",
        )
    x, size = tensor(x), number(high)
    if axis not in (None, 0, -1):
        raise ValueError(f"tf.math.bincount: axis must be None, 0 or -1, not {axis}")
    x = x.reshape(-1) if axis in (None, 0) else x
    ones = jnp.ones(x.shape, dtype(to)) if weights is None else tensor(weights).reshape(x.shape)
    chosen = (x[..., None] == jnp.arange(size)).astype(ones.dtype)
    return jnp.max(chosen, axis=-2).astype(dtype(to)) if binary else jnp.sum(chosen * ones[..., None], axis=-2)


def confusion_matrix(labels: Any, predictions: Any, classes: Any, weights: Any, to: Any) -> Array:
    """Count the pairs of label (rows) and prediction (columns)."""
    if classes is None:
        raise out_of_reach(
            what="tf.math.confusion_matrix",
            why="the size of its result depends on the data",
            write="tf.math.confusion_matrix(labels, predictions, num_classes=n)",
        )
    size, labels, predictions = number(classes), tensor(labels).reshape(-1), tensor(predictions).reshape(-1)
    each = jnp.ones(labels.shape, dtype(to)) if weights is None else tensor(weights).astype(dtype(to)).reshape(-1)
    return jnp.zeros((size, size), dtype(to)).at[labels.astype(int), predictions.astype(int)].add(each)


def count_nonzero(x: Any, axis: Any, keepdims: Any, to: Any) -> Array:
    """Count what is not 0."""
    return jnp.sum(tensor(x) != 0, axis=axes(axis), keepdims=bool(keepdims), dtype=dtype(to))


def l2_normalize(x: Any, axis: Any, epsilon: Any, dim: Any) -> Array:
    """Divide by the norm, which is at least the square root of epsilon."""
    x, axis = tensor(x), axes(axis if dim is None else dim)
    return x * lax.rsqrt(maximum(jnp.sum(jnp.square(x), axis=axis, keepdims=True), epsilon))


def norm(x: Any, order: Any, axis: Any, keepdims: Any) -> Array:
    """Return the norm of vectors, or that of matrices if there are two axes."""
    x, axis, keepdims = tensor(x), axes(axis), bool(keepdims)
    if order in ("euclidean", "fro") or (order == 2 and not isinstance(axis, tuple)):
        return _euclidean_norm(x, axis, keepdims)
    if axis is None:
        x, axis, keepdims_of = x.reshape(-1), 0, (1,) * x.ndim
        value = jnp.linalg.norm(x, order, 0)
        return value.reshape(keepdims_of) if keepdims else value
    return jnp.linalg.norm(x, order, axis, keepdims)


def clip_by_norm(x: Any, limit: Any, axis: Any) -> Array:
    """Scale what has a larger norm than the limit."""
    x, limit = tensors(x, limit)
    squares = jnp.sum(x * x, axis=axes(axis), keepdims=True)
    length = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), squares)
    return x * limit / maximum(length, limit)


def global_norm(arrays: list[Any]) -> Array:
    """Return the norm of all arrays together."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(tensor(array))) for array in arrays if array is not None))


def clip_by_global_norm(arrays: list[Any], limit: Any, use_norm: Any) -> tuple[list[Any], Array]:
    """Scale all arrays if their norm together is larger than the limit; NaN if it is not finite."""
    total = global_norm(arrays) if use_norm is None else use_norm
    scale = limit * jnp.minimum(1 / total, 1 / tensor(limit).astype(jnp.result_type(total)))
    scale = jnp.where(jnp.isfinite(total), scale, jnp.nan)
    return [None if array is None else tensor(array) * scale.astype(tensor(array).dtype) for array in arrays], total


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "math.reduce_all": _reduction(jnp.all),
    "math.reduce_any": _reduction(jnp.any),
    "math.reduce_euclidean_norm": _reduction(_euclidean_norm),
    "math.reduce_logsumexp": _reduction(jax.scipy.special.logsumexp),
    "math.reduce_max": _reduction(jnp.max),
    "math.reduce_mean": _reduction(_mean),
    "math.reduce_min": _reduction(jnp.min),
    "math.reduce_prod": _reduction(jnp.prod, promote_integers=False),
    "math.reduce_std": _reduction(jnp.std),
    "math.reduce_sum": _reduction(jnp.sum, promote_integers=False),
    "math.reduce_variance": _reduction(jnp.var),
    "math.argmax": _axis_function(jnp.argmax),
    "math.argmin": _axis_function(jnp.argmin),
    "argsort": _sort(jnp.argsort),
    "sort": _sort(jnp.sort),
    "math.top_k": top_k,
    "math.in_top_k": in_top_k,
    "math.cumsum": _cumulative(jnp.cumsum, 0),
    "math.cumprod": _cumulative(jnp.cumprod, 1),
    "math.cumulative_logsumexp": _cumulative(_log_cumulative_sum, -jnp.inf),
    "math.unsorted_segment_sum": _segments(jax.ops.segment_sum),
    "math.unsorted_segment_prod": _segments(jax.ops.segment_prod),
    "math.unsorted_segment_max": _segments(jax.ops.segment_max, lambda to: _info(to).min),
    "math.unsorted_segment_min": _segments(jax.ops.segment_min, lambda to: _info(to).max),
    "math.unsorted_segment_mean": _segments(_mean_of_segments(1)),
    "math.unsorted_segment_sqrt_n": _segments(_mean_of_segments(0.5)),
    **{f"math.{name}": _segments_of_data(name) for name in ("segment_sum", "segment_prod", "segment_max")},
    **{f"math.{name}": _segments_of_data(name) for name in ("segment_min", "segment_mean")},
    "math.bincount": bincount,
    "math.confusion_matrix": confusion_matrix,
    "math.count_nonzero": count_nonzero,
    "math.zero_fraction": lambda x: jnp.mean((tensor(x) == 0).astype("float32")),
    "math.l2_normalize": l2_normalize,
    "norm": norm,
    "linalg.normalize": lambda x, order, axis: _normalize(tensor(x), order, axis),
    "linalg.global_norm": global_norm,
    "clip_by_norm": clip_by_norm,
    "clip_by_global_norm": clip_by_global_norm,
}


def _normalize(x: Array, order: Any, axis: Any) -> tuple[Array, Array]:
    length = norm(x, order, axis, True)
    return x / length, length
