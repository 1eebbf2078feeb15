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
from keras_tpu_ext.dropin.functions.arguments import axes, dtype, number, numbers, tensor, tensors

Array = Any


def cast(x: Any, to: Any) -> Array:
    """Return `x` in another dtype."""
    x, to = tensor(x), dtype(to)
    is_real = jnp.iscomplexobj(x) and not jnp.issubdtype(to, jnp.complexfloating)
    return (jnp.real(x) if is_real else x).astype(to)


def constant(value: Any, to: Any, shape: Any = None) -> Array:
    """Return a value as an array, or many of it."""
    array = tensor(value) if to is None else tensor(value).astype(dtype(to))
    if shape is None:
        return array
    return array.reshape(numbers(shape)) if array.size > 1 else jnp.broadcast_to(array, numbers(shape))


def shape_of(x: Any, to: Any = None) -> Any:
    """Return the shape as an array of NumPy; one that has an open size is an array of objects."""
    sizes = tensor(x).shape
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, np.int32 if to is None else dtype(to))
    array = np.empty(len(sizes), object)
    array[:] = sizes
    return array


def size_of(x: Any, to: Any) -> Any:
    """Return how many elements there are."""
    size = math.prod(tensor(x).shape)
    return np.asarray(size, np.int32 if to is None else dtype(to))[()] if isinstance(size, int) else size


def ensure_shape(x: Any, shape: Any) -> Array:
    """Return `x` if it has that shape, in which None fits every size."""
    x, sizes = tensor(x), None if shape is None else tuple(shape)
    if sizes is not None and (
        len(sizes) != x.ndim or any(want not in (None, got) for want, got in zip(sizes, x.shape, strict=True))
    ):
        raise ValueError(f"tf.ensure_shape: the shape is {x.shape} and should be {sizes}")
    return x


def fill(shape: Any, value: Any, layout: Any = None) -> Array:
    """Return an array of one value."""
    return jnp.full(numbers(shape), tensor(value))


def _filled(value: int) -> Callable[..., Array]:
    return lambda shape, to, layout: jnp.full(numbers(shape), value, dtype(to))


def _filled_like(value: int) -> Callable[..., Array]:
    return lambda x, to, layout: jnp.full_like(tensor(x), value, dtype=None if to is None else dtype(to))


def arange(start: Any, limit: Any, step: Any, to: Any) -> Array:
    """Return a range; its size must not depend on data."""
    start, limit, step = (None if value is None else _bound(value) for value in (start, limit, step))
    first, last = (0, start) if limit is None else (start, limit)
    return jnp.arange(first, last, step, dtype=None if to is None else dtype(to))


def _bound(value: Any) -> Any:
    return np.asarray(value)[()] if isinstance(value, (np.ndarray, np.generic)) else _not_traced(value)


def _not_traced(value: Any) -> Any:
    return number(value) if isinstance(value, jax.core.Tracer) else value  # which raises


def linspace(start: Any, stop: Any, count: Any, axis: Any) -> Array:
    """Return numbers at equal distances, both ends among them."""
    return jnp.linspace(*tensors(start, stop), number(count), axis=number(axis))


def eye(rows: Any, columns: Any, batch: Any, to: Any) -> Array:
    """Return identity matrices."""
    matrix = jnp.eye(number(rows), None if columns is None else number(columns), dtype=dtype(to))
    return matrix if batch is None else jnp.broadcast_to(matrix, (*numbers(batch), *matrix.shape))


def one_hot(indices: Any, depth: Any, on: Any, off: Any, axis: Any, to: Any) -> Array:
    """Return vectors with one value where the index is; all are off where it is out of range."""
    if to is None:
        given = next((tensor(value).dtype for value in (on, off) if value is not None), "float32")
        to = given if not jnp.issubdtype(given, jnp.floating) else "float32"
    values = jnp.asarray([0 if off is None else off, 1 if on is None else on]).astype(dtype(to))
    indices, axis = tensor(indices), -1 if axis is None else number(axis)
    hot = jnp.expand_dims(indices, axis) == _along(jnp.arange(number(depth)), indices.ndim + 1, axis)
    return jnp.where(hot, values[1], values[0])


def _along(vector: Array, rank: int, axis: int) -> Array:
    return vector.reshape([-1 if index == axis % rank else 1 for index in range(rank)])


def sequence_mask(lengths: Any, longest: Any, to: Any) -> Array:
    """Return which positions are below the lengths."""
    if longest is None:
        raise out_of_reach(
            what="tf.sequence_mask without maxlen",
            why="the size of its result depends on the data",
            write="tf.sequence_mask(lengths, maxlen=tf.shape(x)[1])",
        )
    return (jnp.arange(number(longest)) < tensor(lengths)[..., None]).astype(dtype(to))


def squeeze(x: Any, axis: Any) -> Array:
    """Remove axes of size 1; with `[]`, all of them."""
    return jnp.squeeze(tensor(x), axes(axis) if axis is None or np.ndim(axis) == 0 else numbers(axis) or None)


def transpose(x: Any, order: Any, conjugate: bool) -> Array:
    """Permute the axes."""
    x = jnp.transpose(tensor(x), None if order is None else numbers(order))
    return jnp.conj(x) if conjugate else x


def concat(values: Any, axis: Any) -> Array:
    """Join arrays along an axis; one array alone is returned."""
    if not isinstance(values, (list, tuple)):
        return tensor(values)
    return jnp.concatenate([jnp.asarray(value) for value in tensors(*values)], number(axis))


def stack(values: Any, axis: Any) -> Array:
    """Join arrays along a new axis."""
    if isinstance(values, (list, tuple)):
        return jnp.stack([jnp.asarray(value) for value in tensors(*values)], number(axis))
    return jnp.moveaxis(tensor(values), 0, number(axis))


def unstack(value: Any, count: Any, axis: Any) -> list[Array]:
    """Return the slices along an axis."""
    value, axis = tensor(value), number(axis)
    return [lax.index_in_dim(value, index, axis, keepdims=False) for index in range(value.shape[axis])]


def split(value: Any, sizes: Any, axis: Any, count: Any) -> list[Array]:
    """Cut into equal parts, or into parts of these sizes, of which one may be -1."""
    value, axis = tensor(value), number(axis)
    if np.ndim(sizes) == 0:
        if value.shape[axis] % number(sizes):
            raise ValueError(f"tf.split: {value.shape[axis]} elements cannot be split evenly into {sizes} parts")
        return list(jnp.split(value, number(sizes), axis))
    parts = list(numbers(sizes))
    if -1 in parts:
        parts[parts.index(-1)] = value.shape[axis] - sum(parts) - 1
    if sum(parts) != value.shape[axis]:
        raise ValueError(f"tf.split: parts of {parts} are not the {value.shape[axis]} elements that are there")
    return list(jnp.split(value, np.cumsum(parts[:-1]), axis))


def repeat(x: Any, times: Any, axis: Any) -> Array:
    """Repeat elements; how often must not depend on data."""
    if isinstance(times, jax.core.Tracer):
        number(times)  # which raises
    return jnp.repeat(tensor(x), np.asarray(times), None if axis is None else number(axis))


def pad(x: Any, paddings: Any, mode: str, value: Any) -> Array:
    """Pad each axis before and after."""
    x, mode = tensor(x), mode.upper()
    widths = [numbers(pair) for pair in paddings]
    if mode == "CONSTANT":
        return jnp.pad(x, widths, constant_values=value)
    return jnp.pad(x, widths, mode={"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[mode])


def roll(x: Any, shift: Any, axis: Any) -> Array:
    """Move elements along axes, round the end."""
    shift = shift if isinstance(shift, jax.core.Tracer) else numbers(shift) if np.ndim(shift) else number(shift)
    return jnp.roll(tensor(x), shift, axes(axis))


def space_to_depth(x: Any, block: Any, data_format: str) -> Array:
    """Move blocks of pixels into channels."""
    x, block = _channels_last(tensor(x), data_format), number(block)
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // block, block, width // block, block, channels).transpose(0, 1, 3, 2, 4, 5)
    return _from_channels_last(x.reshape(*x.shape[:3], block * block * channels), data_format)


def depth_to_space(x: Any, block: Any, data_format: str) -> Array:
    """Move channels into blocks of pixels."""
    x, block = _channels_last(tensor(x), data_format), number(block)
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height, width, block, block, channels // block**2).transpose(0, 1, 3, 2, 4, 5)
    return _from_channels_last(x.reshape(batch, height * block, width * block, channels // block**2), data_format)


def _channels_last(x: Array, data_format: str) -> Array:
    return x if data_format == "NHWC" else jnp.moveaxis(x, 1, -1)


def _from_channels_last(x: Array, data_format: str) -> Array:
    return x if data_format == "NHWC" else jnp.moveaxis(x, -1, 1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cast": cast,
    "constant": constant,
    "convert_to_tensor": lambda value, to, hint: constant(value, to),
    "identity": tensor,
    "identity_n": lambda values: [tensor(value) for value in values],
    "stop_gradient": lambda x: lax.stop_gradient(tensor(x)),
    "shape": shape_of,
    "size": size_of,
    "rank": lambda x: np.int32(tensor(x).ndim),
    "ensure_shape": ensure_shape,
    "fill": fill,
    "zeros": _filled(0),
    "ones": _filled(1),
    "zeros_like": _filled_like(0),
    "ones_like": _filled_like(1),
    "range": arange,
    "linspace": linspace,
    "eye": eye,
    "meshgrid": lambda *values, indexing="xy": jnp.meshgrid(*tensors(*values), indexing=indexing),
    "one_hot": one_hot,
    "sequence_mask": sequence_mask,
    "reshape": lambda x, shape: jnp.reshape(tensor(x), numbers(shape)),
    "expand_dims": lambda x, axis: jnp.expand_dims(tensor(x), number(axis)),
    "squeeze": squeeze,
    "transpose": transpose,
    "concat": concat,
    "stack": stack,
    "unstack": unstack,
    "split": split,
    "tile": lambda x, multiples: jnp.tile(tensor(x), numbers(multiples)),
    "repeat": repeat,
    "pad": pad,
    "reverse": lambda x, axis: jnp.flip(tensor(x), axes(axis)),
    "roll": roll,
    "broadcast_to": lambda x, shape: jnp.broadcast_to(tensor(x), numbers(shape)),
    "math.add_n": lambda values: sum(tensors(*values[1:]), start=tensor(values[0])),
    "math.accumulate_n": lambda values, shape, to: sum(tensors(*values[1:]), start=tensor(values[0])),
    "nn.space_to_depth": space_to_depth,
    "nn.depth_to_space": depth_to_space,
}
