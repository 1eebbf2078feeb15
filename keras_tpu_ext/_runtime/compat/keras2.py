"""Keras 2's names for what `compat/__init__.py` offers; `keras` is `tf.keras`, whatever package it comes from."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common import missing_names
from keras_tpu_ext._runtime.common.types import Layer, Metric, Model, Nest, Optimizer, Tensor, Variable
from keras_tpu_ext._runtime.common.values import Call
from keras_tpu_ext._runtime.compat import keras2_ops

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

ops = keras2_ops
CALLED = keras.layers.Layer, "keras.src.engine.base_layer.Layer.__call__"  # what runs a layer
COMPILE_OPTIONS: dict[str, object] = {}
UNREDUCED = "none"  # the reduction of a loss that keeps a value for each example
COUNTS_SKIPPED_STEPS = True  # whether a `LossScaleOptimizer` counts skipped steps like any others

# Graphs in which Keras calls layers only for the shapes of their outputs.
_SHAPES_ONLY = ("_scratch_graph", "build_graph", "keras_graph")
_enable_auto_cast_variables: Any = private("mixed_precision.autocast_variable:enable_auto_cast_variables")
_BaseRandomLayer: Any = private("engine.base_layer:BaseRandomLayer")
Functional: Any = private("engine.functional:Functional")
LossScaleOptimizer: Any = private("mixed_precision.loss_scale_optimizer:BaseLossScaleOptimizer")
MULTI_HEAD = (keras.layers.MultiHeadAttention,)


def compiled_with(model: Model) -> dict[str, Any] | None:
    """Return the arguments with which `model` was compiled; `None` if it was not."""
    if getattr(model, "_compile_config", None) is None:
        return None
    return {name: value for name, value in model._compile_config.config.items() if value is not None}


def functional_of(model: Model) -> Any:
    """Return `model` if it is a functional model, as a built `Sequential` is; else `None`."""
    return model if isinstance(model, Functional) and model.outputs else None


def inputs_and_outputs(model: Model) -> tuple[Nest, Nest] | None:
    """Return the structures of symbolic inputs and outputs; `None` if `model` has none."""
    functional = functional_of(model)
    return None if functional is None else (functional._nested_inputs, functional._nested_outputs)


def calls(model: Model) -> list[Call]:
    """Return the calls of layers in a functional model, without those inside its layers."""
    nodes = [node for of_depth in model._nodes_by_depth.values() for node in of_depth]
    return [
        Call(node.layer, node.keras_inputs, tree.flatten(node.outputs), (node.call_kwargs or {}).get("training"))
        for node in nodes
    ]


def clone(model: Model, copy_of: Callable[[Layer], Layer]) -> Model:
    """Clone a functional model, with `copy_of(layer)` for each layer; the clone is not compiled."""
    plain = keras.Model(model._nested_inputs, model._nested_outputs, name=model.name)
    return keras.models.clone_model(plain, clone_function=copy_of)


def draws_random_numbers(layer: Layer) -> bool:
    """Return True if `layer` has its own random generator."""
    return isinstance(layer, _BaseRandomLayer)


def compute_dtype(layer: Layer) -> str:
    """Return the dtype in which `layer` computes: an operation, in that of its inputs, whatever the policy says."""
    return dtype_of(layer.get_output_at(0)) if hasattr(layer, "function") else str(layer.compute_dtype)


def fuses_attention(layer: Layer) -> bool:
    """Return False: no attention of Keras 2 is fused."""
    return False


def loss_dtype(loss: Any, output: Tensor | None) -> str:
    """Return the dtype in which a loss computes, which is that of the output; empty without one."""
    return "" if output is None else dtype_of(output)


def compiled_metrics_of(model: Model) -> Any:
    """Return the container of the metrics that `model` was compiled with."""
    return model.compiled_metrics


def save_as(variant: type, cls: type) -> None:
    """Let models of the class `variant` be saved as those of `cls`."""
    for name in ("_keras_api_names", "_keras_api_names_v1"):
        if name in vars(cls):
            setattr(variant, name, vars(cls)[name])
    names = private("saving.object_registration:_GLOBAL_CUSTOM_NAMES")
    if cls in names:
        names[variant] = names[cls]


def functional_members(cls: type[Model]) -> dict[str, object]:
    """Return members of a functional variant of `cls`: by `__init__` Keras tells whether a config recreates it."""
    init: Any = cls.__init__
    if not init.__module__.startswith("keras_tpu_ext."):  # the user's
        return {}

    def functional_init(
        self: Model, inputs: Nest, outputs: Nest, name: str | None = None, trainable: bool = True, **kwargs: object
    ) -> None:
        init(self, inputs=inputs, outputs=outputs, name=name, trainable=trainable, **kwargs)

    return {"__init__": functional_init}


def record_gradient(optimizer: Optimizer, gradient: tf.Tensor | tf.IndexedSlices, variable: Variable) -> None:
    """Make `gradient` the momentum of `variable` in an `SGD`; slices of the same row add up."""
    momentum = optimizer.momentums[optimizer._index_dict[optimizer._var_key(variable)]]
    momentum.assign(tf.zeros_like(momentum))
    if isinstance(gradient, tf.IndexedSlices):
        momentum.scatter_add(gradient)
    else:
        momentum.assign_add(tf.cast(gradient, momentum.dtype))


def scaling_as(scaling: Optimizer, inner: Optimizer) -> Optimizer:
    """Return a `LossScaleOptimizer` of `inner` with the settings of `scaling`."""
    return keras.mixed_precision.LossScaleOptimizer(
        inner, scaling.dynamic, scaling.initial_scale, scaling.dynamic_growth_steps
    )


def build_for_step(model: Model, data_spec: Nest, trace_step: Callable[[], object]) -> None:
    """Create the variables that a step needs, by tracing it once, as `fit` does."""
    trace_step()


def scale_of(optimizer: Optimizer) -> Tensor:
    """Return the loss scale of the next step of a `LossScaleOptimizer`."""
    return optimizer.loss_scale


def end_names_last_batch() -> bool:
    """Return whether `on_train_batch_end` gets the index of the last batch of an execution, not of the first."""
    return True


def mask_of(tensor: Tensor) -> Tensor | None:
    """Return the mask that Keras attaches to `tensor`, or `None`."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: Any, mask: Tensor | None) -> Tensor:
    """Return `tensor`, with a mask unless that is `None`."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def path_of(variable: Variable) -> str:
    """Return the path of a variable: its name, prefixed with those of the layers that contain it."""
    return str(variable.name.removesuffix(":0"))


def dtype_of(variable: Variable | Tensor) -> str:
    """Return the name of a variable's dtype."""
    return str(variable.dtype.base_dtype.name)


def new_variable(value: Tensor | float, dtype: str, name: str, *, per_replica: bool = False) -> Variable:
    """Return a variable that no gradient changes; with `per_replica`, each replica's own, and read as their sum."""
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


def add_counter(layer: Layer, name: str) -> Variable:
    """Return a new int32 weight of `layer`, initially 0, that replicas assign once for all of them."""
    options = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
    return layer.add_weight(shape=(), dtype="int32", initializer="zeros", name=name, **options)


def loss_tracker_of(model: Model) -> Metric | None:
    """Return the metric in which Keras tracks the loss of `model`, or `None`."""
    return getattr(getattr(model, "compiled_loss", None), "_total_loss_mean", None)
