"""What TensorFlow's functions are given, as JAX wants it: arguments in order, values, dtypes, shapes and axes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf

from keras_tpu_ext.dropin.errors import out_of_reach


def bind(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with the signature that TensorFlow's function `name` has.

    `function` takes that signature's parameters in their order, but for `name`; all of them, so it needs no defaults.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = _signature(name).bind(*args, **kwargs)
        bound.apply_defaults()
        values: list[Any] = []
        options: dict[str, Any] = {}
        for parameter, value in bound.arguments.items():
            kind = bound.signature.parameters[parameter].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                values += _values(value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                options = {key: _values(option) for key, option in value.items() if key != "name"}
            elif parameter != "name":
                values.append(_values(value))
        return function(*values, **options)

    call.__name__ = call.__qualname__ = name
    return call


@functools.cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(functools.reduce(getattr, name.split("."), tf))


def _values(value: Any) -> Any:
    """Return an argument with tensors of TensorFlow as NumPy arrays and variables of Keras as their values."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_values(item) for item in value)
    if isinstance(value, keras.Variable):
        return value.value
    if isinstance(value, tf.TensorShape):
        return tuple(value.as_list())
    if isinstance(value, tf.Variable):
        raise out_of_reach(
            what="a tf.Variable in a model",
            why="Keras would neither train nor save it",
            write="self.add_weight(...) in the layer's __init__ or build, or keras.Variable(...)",
        )
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        raise out_of_reach(
            what=f"a tf.{type(value).__name__} in a model",
            why="its size depends on its data",
            write=".to_tensor() or tf.sparse.to_dense(...) in the tf.data pipeline",
        )
    return value.numpy() if isinstance(value, tf.Tensor) and hasattr(value, "numpy") else value


def tensor(value: Any) -> Any:
    """Return a value, or a list of such, as an array."""
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def tensors(*values: Any) -> list[Any]:
    """Return values for a function of several tensors: numbers as they are, the others as arrays.

    Arrays of NumPy take the dtype of the first array of JAX, if both are floating, as in TensorFlow.
    """
    dtype = next((value.dtype for value in values if isinstance(value, jax.Array)), None)

    def convert(value: Any) -> Any:
        if value is None or (
            isinstance(value, (jax.Array, bool, int, float, complex)) and not isinstance(value, np.generic)
        ):
            return value
        array = jnp.asarray(value)
        is_float = (
            dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.issubdtype(array.dtype, jnp.floating)
        )
        return array.astype(dtype) if is_float else array

    return [convert(value) for value in values]


def dtype(value: Any) -> Any:
    """Return a dtype of TensorFlow, NumPy or a name as one that JAX has: int64 is int32, float64 is float32."""
    of_numpy = tf.as_dtype(value).as_numpy_dtype
    if of_numpy is object:
        raise out_of_reach(
            what="tf.string in a model",
            why="JAX has no strings",
            write="the lookup in the tf.data pipeline, and numbers to the model",
        )
    return jax.dtypes.canonicalize_dtype(of_numpy)


def number(value: Any) -> Any:
    """Return a size, index or axis as an int; the open size of a KerasTensor stays what it is."""
    if isinstance(value, jax.core.Tracer):
        raise out_of_reach(
            what="a shape, size or axis that is computed from data",
            why="a program is compiled for shapes that are known",
            write="a Python number, or a size of a tensor: tf.shape(x)[1]",
        )
    return int(value) if isinstance(value, (np.generic, np.ndarray, jax.Array)) else value


def numbers(value: Any) -> tuple[Any, ...]:
    """Return a shape, or what has a number for each axis, as a tuple."""
    if isinstance(value, jax.core.Tracer):
        return (number(value),)
    if isinstance(value, (np.ndarray, jax.Array)):
        value = list(np.asarray(value).reshape(-1))
    return tuple(number(item) for item in value) if isinstance(value, (list, tuple)) else (number(value),)


def axes(value: Any) -> Any:
    """Return the axes of a reduction as jnp takes them."""
    if value is None or isinstance(value, (list, tuple)) or np.ndim(value):
        return None if value is None else numbers(value)
    return number(value)
