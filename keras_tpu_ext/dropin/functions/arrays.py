"""Functions that make, cast, shape and join arrays.

Shapes are data of Python: `tf.shape` gives an array of NumPy, so that what is computed from it stays known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import number, numbers

Array = Any


def _cast(x: Any, to: Any) -> Array:
    x = jnp.asarray(x)
    is_real = jnp.iscomplexobj(x) and not jnp.issubdtype(to, jnp.complexfloating)
    return (jnp.real(x) if is_real else x).astype(to)


def _constant(value: Any, to: Any, shape: Any = None) -> Array:
    """Return a value as an array, or many of it."""
    array = jnp.asarray(value, to)
    if shape is None:
        return array
    return array.reshape(shape) if array.size > 1 else jnp.broadcast_to(array, shape)


def _shape(x: Any, to: Any) -> Any:
    """Return the shape as an array of NumPy; one that has an open size is an array of objects."""
    sizes = jnp.shape(x)
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, to or np.int32)
    array = np.empty(len(sizes), object)
    array[:] = sizes
    return array


def _size(x: Any, to: Any) -> Any:
    size = math.prod(jnp.shape(x))
    return np.asarray(size, to or np.int32)[()] if isinstance(size, int) else size


def _ensure_shape(x: Array, shape: Any) -> Array:
    if shape is not None and (
        len(shape) != x.ndim or any(want not in (None, got) for want, got in zip(shape, x.shape, strict=True))
    ):
        raise ValueError(f"tf.ensure_shape: the shape is {x.shape} and should be {shape}")
    return x


def _range(start: Any, limit: Any, step: Any, to: Any) -> Array:
    """Return a range; its size must not depend on data."""
    start, limit, step = (number(one) if isinstance(one, jax.core.Tracer) else one for one in (start, limit, step))
    first, last = (0, start) if limit is None else (start, limit)
    return jnp.arange(first, last, step, dtype=to)


def _eye(rows: Any, columns: Any, batch: Any, to: Any) -> Array:
    matrix = jnp.eye(rows, columns, dtype=to)
    return matrix if batch is None else jnp.broadcast_to(matrix, (*batch, *matrix.shape))


def _one_hot(indices: Any, depth: Any, on: Any, off: Any, axis: Any, to: Any) -> Array:
    """Return vectors with one value where the index is; all are off where it is out of range."""
    if to is None:
        given = next((jnp.asarray(value).dtype for value in (on, off) if value is not None), "float32")
        to = given if not jnp.issubdtype(given, jnp.floating) else "float32"
    values = jnp.asarray([0 if off is None else off, 1 if on is None else on]).astype(to)
    indices, axis = jnp.asarray(indices), -1 if axis is None else axis
    along = [-1 if index == axis % (indices.ndim + 1) else 1 for index in range(indices.ndim + 1)]
    hot = jnp.expand_dims(indices, axis) == jnp.arange(depth).reshape(along)
    return jnp.where(hot, values[1], values[0])


def _sequence_mask(lengths: Any, longest: Any, to: Any) -> Array:
    if longest is None:
        raise out_of_reach(
            what="tf.sequence_mask without maxlen",
            why="the size of its result depends on the data",
            write="tf.sequence_mask(lengths, maxlen=tf.shape(x)[1])",
        )
    return (jnp.arange(longest) < jnp.asarray(lengths)[..., None]).astype(to)


def _transpose(x: Array, order: Any, conjugate: bool) -> Array:
    x = jnp.transpose(x, order)
    return jnp.conj(x) if conjugate else x


def _concat(values: Any, axis: Any) -> Array:
    return jnp.concatenate(list(map(jnp.asarray, values)), axis) if isinstance(values, list) else values


def _stack(values: Any, axis: Any) -> Array:
    if isinstance(values, list):
        return jnp.stack(list(map(jnp.asarray, values)), axis)
    return jnp.moveaxis(values, 0, axis)


def _split(value: Array, sizes: Any, axis: int) -> list[Array]:
    """Cut into equal parts, or into parts of these sizes, of which one may be -1."""
    length = value.shape[axis]
    if np.ndim(sizes) == 0:
        if length % number(sizes):
            raise ValueError(f"tf.split: {length} elements cannot be split evenly into {sizes} parts")
        return list(jnp.split(value, number(sizes), axis))
    parts = list(numbers(sizes))
    if -1 in parts:
        parts[parts.index(-1)] = length - sum(parts) - 1
    if sum(parts) != length:
        raise ValueError(f"tf.split: parts of {parts} are not the {length} elements that are there")
    return list(jnp.split(value, np.cumsum(parts[:-1]), axis))


def _repeat(x: Any, times: Any, axis: Any) -> Array:
    if isinstance(times, jax.core.Tracer):
        number(times)  # which raises
    return jnp.repeat(jnp.asarray(x), np.asarray(times), axis)


def _pad(x: Array, paddings: Any, mode: str, value: Any) -> Array:
    widths = [numbers(pair) for pair in paddings]
    if mode.upper() == "CONSTANT":
        return jnp.pad(x, widths, constant_values=value)
    return jnp.pad(x, widths, mode={"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[mode.upper()])


def _roll(x: Array, shift: Any, axis: Any) -> Array:
    return jnp.roll(x, shift if isinstance(shift, jax.core.Tracer) or not np.ndim(shift) else numbers(shift), axis)


def _space_to_depth(x: Array, block: int) -> Array:
    """Move blocks of pixels into channels."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // block, block, width // block, block, channels).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(*x.shape[:3], block * block * channels)


def _depth_to_space(x: Array, block: int) -> Array:
    """Move channels into blocks of pixels."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height, width, block, block, channels // block**2).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, height * block, width * block, channels // block**2)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cast": _cast,
    "constant": _constant,
    "convert_to_tensor": lambda value, to: _constant(value, to),
    "identity": jnp.asarray,
    "stop_gradient": lambda x: lax.stop_gradient(jnp.asarray(x)),
    "shape": _shape,
    "size": _size,
    "rank": lambda x: np.int32(jnp.ndim(x)),
    "ensure_shape": _ensure_shape,
    "fill": lambda shape, value: jnp.full(shape, value),
    "zeros": lambda shape, to: jnp.zeros(shape, to),
    "ones": lambda shape, to: jnp.ones(shape, to),
    "zeros_like": lambda x, to: jnp.zeros_like(x, to),
    "ones_like": lambda x, to: jnp.ones_like(x, to),
    "range": _range,
    "linspace": lambda start, stop, count, axis: jnp.linspace(start, stop, count, axis=axis),
    "eye": _eye,
    "meshgrid": lambda *values, indexing="xy": jnp.meshgrid(*values, indexing=indexing),
    "one_hot": _one_hot,
    "sequence_mask": _sequence_mask,
    "reshape": lambda x, shape: jnp.reshape(x, shape),
    "expand_dims": lambda x, axis: jnp.expand_dims(jnp.asarray(x), axis),
    "squeeze": lambda x, axis: jnp.squeeze(x, None if axis == () else axis),
    "transpose": _transpose,
    "concat": _concat,
    "stack": _stack,
    "unstack": lambda value, count, axis: list(jnp.moveaxis(value, axis, 0)),
    "split": _split,
    "tile": lambda x, multiples: jnp.tile(x, multiples),
    "repeat": _repeat,
    "pad": _pad,
    "reverse": lambda x, axis: jnp.flip(x, axis),
    "roll": _roll,
    "broadcast_to": lambda x, shape: jnp.broadcast_to(x, shape),
    "math.add_n": lambda values: sum(values[1:], start=values[0]),
    "nn.space_to_depth": _space_to_depth,
    "nn.depth_to_space": _depth_to_space,
}
