"""Functions that take elements out of arrays, put some in, or choose between arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import dtype, number, numbers, tensor, tensors

Array = Any


def _of_data(name: str, write: str) -> Callable[..., Array]:
    def call(*_: Any) -> Array:
        raise out_of_reach(what=f"tf.{name}", why="the size of its result depends on the data", write=write)

    return call


def where(condition: Any, x: Any, y: Any) -> Array:
    """Choose between two arrays."""
    if x is None and y is None:
        return _of_data("where(condition)", "tf.where(condition, x, 0.0), and sums over it")()
    return jnp.where(tensor(condition), *tensors(x, y))


def gather(params: Any, indices: Any, validate: Any, axis: Any, batch_dims: Any) -> Array:
    """Return slices of `params`, with one index after the other; NaN where an index is too large."""
    params, indices, batch = tensor(params), tensor(indices), number(batch_dims)
    batch = batch % max(indices.ndim, 1)
    axis = batch if axis is None else number(axis) % params.ndim

    def take(params: Array, indices: Array) -> Array:
        return jnp.take(params, indices, axis=axis - batch)

    for _ in range(batch):
        take = jax.vmap(take)
    return take(params, indices)


def gather_nd(params: Any, indices: Any, batch_dims: Any, policy: Any = "") -> Array:
    """Return the slices of `params` at these positions."""

    def take(params: Array, indices: Array) -> Array:
        return params.at[_position(indices)].get(mode="fill")

    for _ in range(number(batch_dims)):
        take = jax.vmap(take)
    return take(tensor(params), tensor(indices))


def _position(indices: Array) -> tuple[Array, ...]:
    return tuple(jnp.moveaxis(indices, -1, 0))


def _scatter(method: str) -> Callable[..., Array]:
    def call(x: Any, indices: Any, updates: Any, policy: Any = "") -> Array:
        x, updates = tensors(x, updates)
        return getattr(tensor(x).at[_position(tensor(indices))], method)(updates)

    return call


def scatter_nd(indices: Any, updates: Any, shape: Any, policy: Any = "") -> Array:
    """Add updates at these positions of an array of zeros."""
    updates = tensor(updates)
    return jnp.zeros(numbers(shape), updates.dtype).at[_position(tensor(indices))].add(updates)


def slice_of(x: Any, begin: Any, size: Any) -> Array:
    """Return a part of the array; a size of -1 is all that is left."""
    x, sizes = tensor(x), numbers(size)
    starts = list(begin) if isinstance(begin, (list, tuple, np.ndarray)) else list(jnp.asarray(begin))
    if any(isinstance(start, jax.core.Tracer) for start in starts):
        if -1 in sizes:
            raise out_of_reach(
                what="tf.slice from a start that is computed from data with size -1",
                why="the size of its result depends on the data",
                write="the size as a number",
            )
        return lax.dynamic_slice(x, starts, sizes)
    begins = numbers(starts)
    ends = [None if size == -1 else start + size for start, size in zip(begins, sizes, strict=True)]
    return x[tuple(slice(start, end) for start, end in zip(begins, ends, strict=True))]


def strided_slice(
    x: Any,
    begin: Any,
    end: Any,
    strides: Any,
    begin_mask: int,
    end_mask: int,
    ellipsis: int,
    new: int,
    shrink: int,
    var: Any,
) -> Array:
    """Return x[begin:end:strides]; each bit of a mask is about one of the indices."""
    begins, ends = numbers(begin), numbers(end)
    steps = (1,) * len(begins) if strides is None else numbers(strides)

    def index(at: int) -> Any:
        def has(mask: int) -> bool:
            return bool(mask >> at & 1)

        if has(ellipsis) or has(new):
            return ... if has(ellipsis) else None
        if has(shrink):
            return begins[at]
        return slice(None if has(begin_mask) else begins[at], None if has(end_mask) else ends[at], steps[at])

    return tensor(x)[tuple(index(at) for at in range(len(begins)))]


def embedding_lookup(params: Any, ids: Any, max_norm: Any) -> Array:
    """Return rows of `params`."""
    rows = params[0] if isinstance(params, (list, tuple)) and len(params) == 1 else params
    found = jnp.take(tensor(rows), tensor(ids), axis=0)
    if max_norm is None:
        return found
    axis = tuple(range(np.ndim(ids), found.ndim))
    return found * jnp.minimum(1, max_norm * lax.rsqrt(jnp.sum(jnp.square(found), axis, keepdims=True)))


def searchsorted(ordered: Any, values: Any, side: str, to: Any) -> Array:
    """Return where values would stand in order, in the last axis."""

    def search(ordered: Array, values: Array) -> Array:
        return jnp.searchsorted(ordered, values, side=side)

    ordered, values = tensor(ordered), tensor(values)
    for _ in range(ordered.ndim - 1):
        search = jax.vmap(search)
    return search(ordered, values).astype(dtype(to))


def reverse_sequence(x: Any, lengths: Any, axis: Any, batch_axis: Any) -> Array:
    """Reverse the first elements of each row, as many as its length says."""
    x, axis, batch = tensor(x), number(axis), number(batch_axis or 0)
    moved = jnp.moveaxis(x, (batch, axis), (0, 1))
    steps, lengths = jnp.arange(moved.shape[1]), tensor(lengths)[:, None]
    indices = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    return jnp.moveaxis(
        jax.vmap(lambda row, index: jnp.take(row, index, axis=0))(moved, indices), (0, 1), (batch, axis)
    )


def invert_permutation(x: Any) -> Array:
    """Return the permutation that undoes this one."""
    x = tensor(x)
    return jnp.zeros_like(x).at[x].set(jnp.arange(x.shape[0], dtype=x.dtype))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": where,
    "boolean_mask": _of_data("boolean_mask", "tf.where(mask, x, 0.0), and divide by the sum of the mask"),
    "unique": _of_data("unique", "the call in the tf.data pipeline"),
    "unique_with_counts": _of_data("unique_with_counts", "the call in the tf.data pipeline"),
    "dynamic_partition": _of_data("dynamic_partition", "tf.where(partitions == i, x, 0.0) for each i"),
    "gather": gather,
    "gather_nd": gather_nd,
    "scatter_nd": scatter_nd,
    "tensor_scatter_nd_update": _scatter("set"),
    "tensor_scatter_nd_add": _scatter("add"),
    "tensor_scatter_nd_sub": _scatter("subtract"),
    "tensor_scatter_nd_max": _scatter("max"),
    "tensor_scatter_nd_min": _scatter("min"),
    "slice": slice_of,
    "strided_slice": strided_slice,
    "searchsorted": searchsorted,
    "reverse_sequence": reverse_sequence,
    "math.invert_permutation": invert_permutation,
    "nn.embedding_lookup": embedding_lookup,
}
