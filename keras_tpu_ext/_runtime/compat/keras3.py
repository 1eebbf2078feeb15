"""Keras 3's names for what `compat/__init__.py` offers, and what differs between its versions.

A branch on `VERSION` can be removed once the oldest version in `machine/versions.py` passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras as keras

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import Patch
from keras_tpu_ext._runtime.common.types import Layer, Metric, Model, Nest, Tensor, Variable
from keras_tpu_ext._runtime.common.values import Call

_names_of_exported: Any = private("keras.src.api_export:REGISTERED_OBJS_TO_NAMES")
_names_of_custom: Any = private("keras.src.saving.object_registration:GLOBAL_CUSTOM_NAMES")
_AutocastScope: Any = private("keras.src.backend.common.variables:AutocastScope")
_get_keras_mask: Any = private("keras.src.backend.common.masking:get_keras_mask")
_set_keras_mask: Any = private("keras.src.backend.common.masking:set_keras_mask")
_in_symbolic_scope: Any = private("keras.src.backend:in_symbolic_scope")
Functional: Any = private("keras.src.models.functional:Functional")
ops_nn: Any = private("keras.src.ops.nn")

VERSION = tuple(map(int, keras.__version__.split(".")[:2]))
# The modules `nn` and `numpy` of this backend.
backend_ops: Any = ops_nn.backend.ops if VERSION >= (3, 16) else ops_nn.backend
# Whether the loss of an activity regulariser is divided by the size of the batch.
DIVIDES_REGULARIZERS = VERSION >= (3, 14)

LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
MULTI_HEAD = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
PyDataset = keras.utils.PyDataset
ops = keras.ops
CALLED = keras.Operation, "keras.Operation.__call__"  # what runs a layer, or an operation between layers
tree = keras.tree
# Arguments of `keras.Model.compile`: no wrapped optimizer under mixed_float16, where the step scales the loss itself.
COMPILE_OPTIONS = {"auto_scale_loss": False}
COUNTS_SKIPPED_STEPS = False  # whether a `LossScaleOptimizer` counts skipped steps like any others
UNREDUCED = None  # the reduction of a loss that keeps a value for each example
# Callbacks whose `save_freq` may be "epoch".
saves_each_epoch = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.ModelCheckpoint,
    getattr(keras.callbacks, "OrbaxCheckpoint", None),  # from Keras 3.13 on
)


def compiled_with(model: Model) -> dict[str, Any] | None:
    """Return the arguments with which `model` was compiled, with its optimizer of now; `None` if it was not."""
    now = {"optimizer": getattr(model, "optimizer", None), "auto_scale_loss": False}
    return {**model._compile_config.config, **now} if model.compiled else None


def functional_of(model: keras.Model) -> Any:
    """Return the functional model that `model` is, or holds as a `Sequential` does; else `None`."""
    if isinstance(model, keras.Sequential):
        model = model._functional
    return model if isinstance(model, Functional) else None


def inputs_and_outputs(model: keras.Model) -> tuple[Nest, Nest] | None:
    """Return the structures of symbolic inputs and outputs; `None` if `model` has none."""
    functional = functional_of(model)
    return None if functional is None else (functional._inputs_struct, functional._outputs_struct)


def calls(model: keras.Model) -> list[Call]:
    """Return the calls of layers and operations in a functional model, without those inside its layers."""
    nodes = [node for of_depth in functional_of(model)._nodes_by_depth.values() for node in of_depth]
    return [
        Call(node.operation, node.input_tensors, node.outputs, node.arguments.kwargs.get("training"))
        for node in nodes
    ]


def clone(model: keras.Model, copy_of: Callable[[keras.Layer], keras.Layer]) -> keras.Model:
    """Clone a functional model, with `copy_of(layer)` for each layer; the clone is not compiled."""
    copies: dict[int, keras.Layer] = {}

    def copy_once(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, keras.layers.InputLayer) or not isinstance(layer, keras.layers.Layer):
            return layer
        if id(layer) not in copies:
            copies[id(layer)] = copy_of(layer)
        return copies[id(layer)]

    functional = functional_of(model)
    inputs, outputs = functional._inputs_struct, functional._outputs_struct
    # Keras would name them after the tensors rather than the layers, by which data in a dict is matched.
    like = keras.tree.map_structure(
        lambda one: keras.Input(
            batch_shape=one.shape, dtype=one.dtype, sparse=one.sparse, name=one._keras_history.operation.name
        ),
        inputs,
    )
    plain = keras.Model(inputs, outputs, name=model.name)
    return keras.models.clone_model(plain, like, clone_function=copy_once)


def draws_random_numbers(layer: keras.Layer) -> bool:
    """Return True if `layer` has its own seed generator."""
    return any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())


def compute_dtype(layer: keras.Layer) -> str:
    """Return the dtype in which `layer` computes."""
    return str(layer.compute_dtype)


def fuses_attention(layer: keras.Layer) -> bool:
    """Return whether an attention is fused, and its softmax in float32: without dropout and scores."""
    returns_scores = any(node.arguments.kwargs.get("return_attention_scores") for node in layer._inbound_nodes)
    return not returns_scores and layer.get_config().get("dropout", 0) <= 0


def loss_dtype(loss: Any, output: Tensor | None) -> str:
    """Return the dtype in which a loss, or a function, computes."""
    return str(loss.dtype if isinstance(loss, keras.losses.Loss) else keras.config.floatx())


def compiled_metrics_of(model: keras.Model) -> Any:
    """Return the container of the metrics that `model` was compiled with, or `None`."""
    return model._compile_metrics


def save_as(variant: type, cls: type) -> None:
    """Let models of the class `variant` be saved as those of `cls`."""
    if cls in _names_of_exported:
        _names_of_exported[variant] = _names_of_exported[cls]
    if cls in _names_of_custom:
        _names_of_custom[variant] = _names_of_custom[cls]


def functional_members(cls: type[Model]) -> dict[str, object]:
    """Return an empty dict: Keras 3 recreates a functional variant of `cls` by its `__init__` as it is."""
    return {}


def record_gradient(optimizer: keras.Optimizer, gradient: Tensor, variable: keras.Variable) -> None:
    """Make `gradient` the momentum of `variable` in an `SGD`; slices of the same row add up."""
    momentum = optimizer.momentums[optimizer._get_variable_index(variable)]
    optimizer.assign(momentum, keras.ops.zeros(momentum.shape, momentum.dtype))
    optimizer.assign_add(momentum, gradient)


def scaling_as(scaling: keras.Optimizer, inner: keras.Optimizer) -> keras.Optimizer:
    """Return a `LossScaleOptimizer` of `inner` with the settings of `scaling`."""
    settings = {name: getattr(scaling, name) for name in ("initial_scale", "dynamic_growth_steps")}
    return LossScaleOptimizer(inner, **settings)


def build_for_step(model: keras.Model, data_spec: Nest, trace_step: Callable[[], object] | None = None) -> None:
    """Create the variables that a step needs, from the specs of its data."""
    model._symbolic_build(data_batch=data_spec)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def scale_of(optimizer: keras.Optimizer) -> Tensor | None:
    """Return the loss scale of the next step of a `LossScaleOptimizer`; `None` before it is built."""
    return optimizer.dynamic_scale if optimizer.built else None


def execution(first: int, last: int, iterator: Any) -> tuple[Any, ...]:
    """Return an execution of an epoch, of the batches `first` to `last`, in the form that Keras's loops unpack."""
    return (first, iterator) if VERSION < (3, 11) else (first, last, iterator)


def end_names_last_batch() -> bool:
    """Return whether `on_train_batch_end` gets the index of the last batch of an execution; until 3.10, the first."""
    return VERSION >= (3, 11)


def mask_of(tensor: Tensor) -> Tensor | None:
    """Return the mask that Keras attaches to `tensor`, or `None`."""
    return _get_keras_mask(tensor)


def with_mask(tensor: Tensor, mask: Tensor | None) -> Tensor:
    """Return `tensor`, with a mask unless that is `None`."""
    if mask is not None:
        _set_keras_mask(tensor, mask)
    return tensor


def path_of(variable: Variable) -> str:
    """Return the path of a variable: its name, prefixed with those of the layers that contain it."""
    return str(variable.path)


def dtype_of(variable: Variable | Tensor) -> str:
    """Return the name of a variable's dtype."""
    return str(keras.backend.standardize_dtype(variable.dtype))


def new_variable(value: Tensor | float, dtype: str, name: str, *, per_replica: bool = False) -> Variable:
    """Return a variable that no gradient changes; with `per_replica`, each replica's own, and read as their sum."""
    kind = {"aggregation": "only_first_replica"}
    if per_replica:
        # Before Keras 3.10 see `sum_when_read`.
        kind = {"aggregation": "sum", **({} if VERSION < (3, 10) else {"synchronization": "on_read"})}
    return keras.Variable(value, trainable=False, dtype=dtype, name=name, **kind)


def in_symbolic_call() -> bool:
    """Return whether layers are called only for the shapes of their outputs."""
    return bool(_in_symbolic_scope())


def no_autocast() -> AbstractContextManager[Any]:
    """Return a context in which variables are read in their own dtype, not in the compute dtype of the layer."""
    context: AbstractContextManager[Any] = _AutocastScope(None)
    return context


def add_counter(layer: Layer, name: str) -> Variable:
    """Return a new int32 weight of `layer`, initially 0, that replicas assign once for all of them."""
    options = {"trainable": False, "aggregation": "only_first_replica"}
    return layer.add_weight(shape=(), dtype="int32", initializer="zeros", name=name, **options)


def loss_tracker_of(model: Model) -> Metric | None:
    """Return the metric in which Keras tracks the loss of `model`, or `None`."""
    return model._loss_tracker


def moments_patches(layers: Sequence[Layer], moments: Callable[..., Any]) -> list[Patch]:
    """Return patches by which `moments` gets a batch normalisation, Keras's own method, inputs and mask."""

    def of(layer: Layer) -> Callable[[Any], Any]:
        return lambda stock: lambda inputs, mask: moments(layer, stock, inputs, mask)

    normalisations = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    return [(layer, "a BatchNormalization's _moments", of(layer)) for layer in normalisations]


def regularizer_patches(layers: Sequence[Layer], regulariser: Callable[[Any], Any]) -> list[Patch]:
    """Return patches by which `regulariser` gets an activity regulariser, and returns its replacement."""
    regularised = [layer for layer in layers if layer.activity_regularizer is not None]
    return [(layer, "a layer's activity_regularizer", regulariser) for layer in regularised]
