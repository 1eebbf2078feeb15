"""Keras 2's names for what `compat/__init__.py` offers; `keras` is `tf.keras`, whatever package it comes from."""

from __future__ import annotations

import types
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common import missing_names
from keras_tpu_ext._runtime.common.types import Layer, Model, Tensor, Variable

keras: Any = tf.keras
PyDataset = keras.utils.Sequence
PACKAGE = keras.Model.__module__.split(".")[0]  # "keras" on TensorFlow 2.15, "tf_keras" on newer ones

# As in `keras.tree`, which Keras 2 lacks.
tree = types.SimpleNamespace(
    flatten=tf.nest.flatten, map_structure=tf.nest.map_structure, pack_sequence_as=tf.nest.pack_sequence_as
)


def private(name: str) -> Any:
    """Return a private object of Keras, such as `"engine.functional:Functional"`, like `missing_names.private`."""
    return missing_names.private(f"{PACKAGE}.src.{name}")


# Callbacks whose `save_freq` may be "epoch".
saves_each_epoch = (keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint)

# Graphs in which Keras calls layers only for the shapes of their outputs.
_SHAPES_ONLY = ("_scratch_graph", "build_graph", "keras_graph")
_enable_auto_cast_variables: Any = private("mixed_precision.autocast_variable:enable_auto_cast_variables")
LossScaleOptimizer: Any = private("mixed_precision.loss_scale_optimizer:BaseLossScaleOptimizer")


def builtin_models() -> tuple[type[Model], ...]:
    """Return Keras's own model classes."""
    return (keras.Model, keras.Sequential, private("engine.functional:Functional"))


def compiled_with(model: Model) -> dict[str, Any] | None:
    """Return the arguments with which `model` was compiled; `None` if it was not."""
    if getattr(model, "_compile_config", None) is None:
        return None
    return {name: value for name, value in model._compile_config.config.items() if value is not None}


def save_as(variant: type[Model], cls: type[Model]) -> None:
    """Let models of the class `variant` be saved as those of `cls`."""
    for name in ("_keras_api_names", "_keras_api_names_v1"):
        if name in vars(cls):
            setattr(variant, name, vars(cls)[name])
    names = private("saving.object_registration:_GLOBAL_CUSTOM_NAMES")
    if cls in names:
        names[variant] = names[cls]


def mask_of(tensor: Tensor) -> Any:
    """Return the mask that Keras attaches to `tensor`, or `None`."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: Any, mask: Tensor | None) -> Any:
    """Return `tensor`, with a mask unless that is `None`."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def path_of(variable: Variable) -> str:
    """Return the path of a variable: its name, prefixed with those of the layers that contain it."""
    return str(variable.name.removesuffix(":0"))


def dtype_of(variable: Variable) -> str:
    """Return the name of a variable's dtype."""
    return str(variable.dtype.base_dtype.name)


def new_variable(value: Tensor, dtype: str, name: str, *, per_replica: bool = False) -> Any:
    """Return a variable that no gradient changes."""
    kind = {"aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
    if per_replica:
        kind = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    return tf.Variable(value, trainable=False, dtype=dtype, name=name, **kind)


def in_symbolic_call() -> bool:
    """Return whether layers are called only for the shapes of their outputs."""
    return not tf.executing_eagerly() and str(getattr(tf.compat.v1.get_default_graph(), "name", "")).endswith(
        _SHAPES_ONLY
    )


def no_autocast() -> AbstractContextManager[Any]:
    """Return a context in which variables are read in their own dtype, not in the compute dtype of the layer."""
    context: AbstractContextManager[Any] = _enable_auto_cast_variables(None)
    return context


def add_counter(layer: Layer, name: str) -> Any:
    """Return a new int32 weight of `layer`, initially 0, that replicas assign once for all of them."""
    options = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
    return layer.add_weight(shape=(), dtype="int32", initializer="zeros", name=name, **options)


def loss_tracker_of(model: Model) -> Any:
    """Return the metric in which Keras tracks the loss of `model`, or `None`."""
    return getattr(getattr(model, "compiled_loss", None), "_total_loss_mean", None)
