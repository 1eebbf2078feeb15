"""Functions that take elements out of arrays, put some in, or choose between arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import number, numbers
from keras_tpu_ext.tools.migrate.tables.out_of_reach import OF_DATA

Array = Any


def _of_data(name: str, write: str) -> Callable[..., Array]:
    def call(*_: Any) -> Array:
        raise out_of_reach(what=f"tf.{name}", why="the size of its result depends on the data", write=write)

    return call


def _where(condition: Array, x: Any, y: Any) -> Array:
    if x is None and y is None:
        return _of_data("where(condition)", "tf.where(condition, x, 0.0), and sums over it")()
    return jnp.where(condition, x, y)


def _gather(params: Array, indices: Any, axis: Any, batch_dims: int) -> Array:
    """Return slices of `params`, with one index after the other; NaN where an index is too large."""
    indices = jnp.asarray(indices)
    batch = batch_dims % max(indices.ndim, 1)
    axis = batch if axis is None else axis % params.ndim

    def take(params: Array, indices: Array) -> Array:
        return jnp.take(params, indices, axis=axis - batch)

    for _ in range(batch):
        take = jax.vmap(take)
    return take(params, indices)


def _gather_nd(params: Array, indices: Array, batch_dims: int) -> Array:
    def take(params: Array, indices: Array) -> Array:
        return params.at[_position(indices)].get(mode="fill")

    for _ in range(batch_dims):
        take = jax.vmap(take)
    return take(params, indices)


def _position(indices: Array) -> tuple[Array, ...]:
    return tuple(jnp.moveaxis(indices, -1, 0))


def _scatter(method: str) -> Callable[..., Array]:
    return lambda x, indices, updates: getattr(x.at[_position(indices)], method)(updates)


def _slice(x: Array, begin: Any, sizes: tuple[Any, ...]) -> Array:
    """Return a part of an array; where it starts may depend on data."""
    starts = list(begin)
    if any(isinstance(start, jax.core.Tracer) for start in starts):
        if -1 in sizes:
            return _of_data("slice from a start that is computed from data with size -1", "the size as a number")()
        return lax.dynamic_slice(x, starts, sizes)
    begins = numbers(starts)
    ends = [None if size == -1 else start + size for start, size in zip(begins, sizes, strict=True)]
    return x[tuple(slice(start, end) for start, end in zip(begins, ends, strict=True))]


def _searchsorted(ordered: Array, values: Array, side: str, to: Any) -> Array:
    """Return where values would stand in order, in the last axis."""

    def search(ordered: Array, values: Array) -> Array:
        return jnp.searchsorted(ordered, values, side=side)

    for _ in range(ordered.ndim - 1):
        search = jax.vmap(search)
    return search(ordered, jnp.asarray(values)).astype(to)


def _reverse_sequence(x: Array, lengths: Array, axis: int, batch_axis: int | None) -> Array:
    """Reverse the first elements of each row, as many as its length says."""
    batch = number(batch_axis or 0)
    moved = jnp.moveaxis(x, (batch, axis), (0, 1))
    steps, lengths = jnp.arange(moved.shape[1]), lengths[:, None]
    indices = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    taken = jax.vmap(lambda row, index: jnp.take(row, index, axis=0))(moved, indices)
    return jnp.moveaxis(taken, (0, 1), (batch, axis))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _of_data(name, write) for name, write in OF_DATA.items()},
    "where": _where,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "scatter_nd": lambda indices, updates, shape: jnp.zeros(shape, updates.dtype).at[_position(indices)].add(updates),
    "tensor_scatter_nd_update": _scatter("set"),
    "tensor_scatter_nd_add": _scatter("add"),
    "tensor_scatter_nd_sub": _scatter("subtract"),
    "tensor_scatter_nd_max": _scatter("max"),
    "tensor_scatter_nd_min": _scatter("min"),
    "slice": _slice,
    "searchsorted": _searchsorted,
    "reverse_sequence": _reverse_sequence,
    "nn.embedding_lookup": lambda params, ids: jnp.take(params, jnp.asarray(ids), axis=0),
}
