"""What Keras 2 calls what `compat/__init__.py` offers; there it is `tf.keras`, whatever package that comes from.

Private names of Keras that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
`mixed_precision.loss_scale_optimizer.BaseLossScaleOptimizer`, `mixed_precision.autocast_variable.
enable_auto_cast_variables`, and the names of the graphs in `_SHAPES_ONLY`.
"""

from __future__ import annotations

import importlib
import types
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

keras: Any = tf.keras
PACKAGE = keras.Model.__module__.split(".")[0]  # "keras" on TensorFlow 2.15, "tf_keras" on newer ones

# As in `keras.tree`, which Keras 2 has not.
tree = types.SimpleNamespace(
    flatten=tf.nest.flatten, map_structure=tf.nest.map_structure, pack_sequence_as=tf.nest.pack_sequence_as
)


def private(name: str) -> Any:
    """Return a module of Keras that is not public, such as `"engine.compile_utils"`."""
    return importlib.import_module(f"{PACKAGE}.src.{name}")


# Graphs in which Keras calls layers for the shapes of their outputs.
_SHAPES_ONLY = ("_scratch_graph", "build_graph", "keras_graph")
_enable_auto_cast_variables: Any = private("mixed_precision.autocast_variable").enable_auto_cast_variables
LossScaleOptimizer: Any = private("mixed_precision.loss_scale_optimizer").BaseLossScaleOptimizer


def mask_of(tensor: Any) -> Any:
    """Return the mask that Keras keeps beside `tensor`, or `None`."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: Any, mask: Any) -> Any:
    """Return `tensor`, with a mask unless that is `None`."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def path_of(variable: Any) -> str:
    """Return the name of a variable with those of the layers around it."""
    return str(variable.name.removesuffix(":0"))


def new_variable(value: Any, dtype: str, name: str, *, per_replica: bool = False) -> Any:
    """Return a variable that no gradient changes.

    Args:
        value: What it is at first.
        dtype: Its dtype.
        name: Its name.
        per_replica: Whether every replica has a value of its own, of which others see the sum.
    """
    kind = {"aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
    if per_replica:
        kind = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    return tf.Variable(value, trainable=False, dtype=dtype, name=name, **kind)


def asks_for_shapes() -> bool:
    """Return whether layers are called for the shapes of their outputs only."""
    return not tf.executing_eagerly() and str(getattr(tf.compat.v1.get_default_graph(), "name", "")).endswith(
        _SHAPES_ONLY
    )


def own_dtypes() -> AbstractContextManager[Any]:
    """Return a context in which variables are read in their own dtype, not in the compute dtype of the layer."""
    context: AbstractContextManager[Any] = _enable_auto_cast_variables(None)
    return context


def add_count(layer: Any, name: str) -> Any:
    """Return a new weight of `layer`, a whole number, 0 at first; replicas assign it once for all of them."""
    options = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
    return layer.add_weight(shape=(), dtype="int32", initializer="zeros", name=name, **options)


def _shape(tensor: Any) -> tuple[Any, ...]:
    """Return the sizes, as numbers where they are static."""
    dynamic: Any = None if tensor.shape.is_fully_defined() else tf.shape(tensor)
    return tuple(dynamic[i] if size is None else size for i, size in enumerate(tensor.shape))


def _convert_to_tensor(value: Any, dtype: Any = None) -> Any:
    tensor = tf.convert_to_tensor(value)
    return tensor if dtype is None else tf.cast(tensor, dtype)


# As in `keras.ops`, which Keras 2 has not.
ops = types.SimpleNamespace(
    arange=lambda stop, dtype=None: tf.range(tf.cast(stop, dtype), dtype=dtype),
    bitwise_and=tf.bitwise.bitwise_and,
    bitwise_left_shift=tf.bitwise.left_shift,
    bitwise_or=tf.bitwise.bitwise_or,
    bitwise_right_shift=tf.bitwise.right_shift,
    bitwise_xor=tf.bitwise.bitwise_xor,
    cast=tf.cast,
    clip=tf.clip_by_value,
    concatenate=tf.concat,
    convert_to_numpy=lambda tensor: tf.convert_to_tensor(tensor).numpy(),
    convert_to_tensor=_convert_to_tensor,
    custom_gradient=tf.custom_gradient,
    divide_no_nan=tf.math.divide_no_nan,
    equal=tf.equal,
    expand_dims=tf.expand_dims,
    flip=lambda tensor, axis: tf.reverse(tensor, [axis]),
    logical_and=tf.logical_and,
    logical_not=tf.logical_not,
    maximum=tf.maximum,
    ones=tf.ones,
    ones_like=tf.ones_like,
    pad=tf.pad,
    reshape=tf.reshape,
    round=tf.round,
    rsqrt=tf.math.rsqrt,
    segment_sum=tf.math.unsorted_segment_sum,
    shape=_shape,
    sqrt=tf.sqrt,
    square=tf.square,
    stop_gradient=tf.stop_gradient,
    sum=tf.reduce_sum,
    take=tf.gather,
    transpose=tf.transpose,
    where=tf.where,
    zeros_like=tf.zeros_like,
)
