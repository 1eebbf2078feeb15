"""Inspect Keras 3 models: the graph, and where softmaxes, losses and metrics are computed."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_tpu_ext._runtime.common.missing_names import explain_missing_names, private
from keras_tpu_ext._runtime.common.protocols import Call
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3 import path_of as path_of
from keras_tpu_ext._runtime.training.clear_session import reopened_by_clear_session as reopened_by_clear_session
from keras_tpu_ext._runtime.training.exact_models import exact_models as exact_models
from keras_tpu_ext._runtime.training.exact_models import named_as_builtin as named_as_builtin
from keras_tpu_ext._runtime.training.exact_models import plain_model as plain_model

Functional: Any = private("keras.src.models.functional:Functional")
LogSoftmax: Any = private("keras.src.ops.nn:LogSoftmax")
Softmax: Any = private("keras.src.ops.nn:Softmax")


@explain_missing_names()
def inputs_and_outputs(model: keras.Model) -> tuple[Nest, Nest] | None:
    """Return the structures of symbolic inputs and outputs; `None` if `model` has none."""
    functional = functional_of(model)
    return None if functional is None else (functional._inputs_struct, functional._outputs_struct)


def functional_of(model: keras.Model) -> Functional:
    """Return the functional model that `model` is, or holds as a `Sequential` does; else `None`."""
    if isinstance(model, keras.Sequential):
        model = model._functional
    return model if isinstance(model, Functional) else None


@explain_missing_names()
def calls(model: keras.Model) -> list[Call]:
    """Return the calls of layers and operations in a functional model, without those inside its layers."""
    nodes = [node for of_depth in functional_of(model)._nodes_by_depth.values() for node in of_depth]
    return [
        Call(node.operation, node.input_tensors, node.outputs, node.arguments.kwargs.get("training"))
        for node in nodes
    ]


@explain_missing_names()
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


@explain_missing_names()
def output_activations(model: keras.Model) -> list[tuple[str, str, str]]:
    """Return `(output name, layer name, activation name)` for each output; `[]` for a subclassed model."""
    functional = functional_of(model)
    if functional is None:
        return []
    layers = [tensor._keras_history.operation for tensor in functional.outputs]
    return [
        (name, layer.name, _activation(layer)) for name, layer in zip(functional.output_names, layers, strict=True)
    ]


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizer that a model was compiled with, and those that it has as attributes for its own step."""
    candidates = [getattr(model, "optimizer", None), *vars(model).values()]
    return list({id(one): one for one in candidates if isinstance(one, keras.optimizers.Optimizer)}.values())


@explain_missing_names()
def flatten_layers(model: keras.Model) -> list[keras.Layer]:
    """Return all layers of `model` at any depth, in order of creation, without the model itself."""
    return list(model._flatten_layers(include_self=False))


def clear_loss_ids(model: keras.Model) -> None:
    """Make all layers of `model` forget the losses of an earlier call, before a call without side effects.

    Each layer keeps the ids of its `add_loss` terms until it is called again, and then removes the losses with these
    ids from those of the call: a term of another layer that has reused the id of a deleted term would be lost
    (docs/upstream/lost_add_loss.md).
    """
    for layer in model._flatten_layers():
        layer._loss_ids.clear()


def has_layer_losses(model: keras.Model) -> bool:
    """Return whether `add_loss` terms or activity regularizers have been collected since `clear_loss_ids`."""
    return any(layer._loss_ids for layer in model._flatten_layers())


def repeated_blocks(model: keras.Model) -> list[str]:
    """Return the names of composite layers whose class occurs several times, such as the blocks of a decoder."""
    names: list[str] = []
    pending: list[keras.Layer] = [model]
    while pending:
        inside = list(pending.pop(0)._flatten_layers(include_self=False, recursive=False))
        composed = [layer for layer in inside if any(layer._flatten_layers(include_self=False, recursive=False))]
        kinds = Counter(type(layer) for layer in composed if not isinstance(layer, keras.Model))
        names += [layer.name for layer in composed if kinds[type(layer)] > 1]
        pending += [layer for layer in composed if kinds[type(layer)] <= 1]
    return names


def expects_logits(loss: keras.Loss) -> bool:
    """Return True if `loss` applies softmax or sigmoid itself."""
    return bool(getattr(loss, "from_logits", False))


def is_compiled(model: keras.Model) -> bool:
    """Return True if `compile` was called."""
    return bool(model.compiled)


def draws_random_numbers(layer: keras.Layer) -> bool:
    """Return True if `layer` has its own seed generator."""
    return any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())


def _activation(layer: keras.Layer) -> str:
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return str(getattr(getattr(layer, "activation", None), "__name__", ""))


_SOFTMAX_NAMES = ("softmax", "log_softmax", "softmax_v2", "log_softmax_v2")  # v2: as `tf.nn.softmax` calls itself
_MULTI_HEAD = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


def softmaxes(model: keras.Model) -> list[tuple[str, str, str]]:
    """Return `(layer name, class name, dtype)` of each softmax in `model`, at any depth.

    An operation such as `keras.ops.softmax` is found only in models made from inputs and outputs.
    """
    layers = flatten_layers(model)
    # These create their own Softmax, whose dtype the user cannot set.
    owned = {id(getattr(layer, "_softmax", None)) for layer in layers if isinstance(layer, _MULTI_HEAD)}
    softmax_layers = [layer for layer in layers if id(layer) not in owned and _computes_softmax(layer)]
    operations = [
        operation
        for part in (model, *layers)
        if isinstance(part, Functional)
        for operation in part.operations
        if isinstance(operation, (Softmax, LogSoftmax))
    ]
    found = [(layer.name, _class_name(layer), str(layer.compute_dtype)) for layer in softmax_layers]
    return found + [(op.name, type(op).__name__, str(op.output.dtype)) for op in operations]


def losses(model: keras.Model) -> list[tuple[str, str, str, str]]:
    """Return `(layer name, its dtype, loss class name, loss dtype)` of each output that a compiled loss reads.

    The output layers of a subclassed model are unknown: the name of the loss stands for the layer.
    """
    if not model.compiled or model.loss is None:
        return []
    functional = functional_of(model)
    if functional is None:
        flat = [loss for loss in keras.tree.flatten(model.loss) if isinstance(loss, keras.losses.Loss)]
        return [(loss.name, "", type(loss).__name__, str(loss.dtype)) for loss in flat]
    found = []
    for position, (name, tensor) in enumerate(zip(functional.output_names, functional.outputs, strict=True)):
        loss = _loss_of(model.loss, name, position)
        if loss is not None:
            dtype = loss.dtype if isinstance(loss, keras.losses.Loss) else keras.config.floatx()
            layer = tensor._keras_history.operation
            found.append((layer.name, str(tensor.dtype), type(loss).__name__, str(dtype)))
    return found


def metrics(model: keras.Model) -> list[tuple[str, str, str]]:
    """Return `(metric name, class name, dtype)` of each metric of the model."""
    compiled = model._compile_metrics if model.compiled else None
    found = [metric for metric in model.metrics if metric is not compiled]
    if compiled is not None:  # until the first batch it has only what the user gave
        users = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
        found += compiled.metrics or [metric for metric in users if isinstance(metric, keras.metrics.Metric)]
    return [(metric.name, type(metric).__name__, str(metric.dtype)) for metric in found]


def _class_name(layer: keras.Layer) -> str:
    name = type(layer).__name__
    return "GroupQueryAttention" if name == "GroupedQueryAttention" else name  # Keras exports it under another name


def _computes_softmax(layer: keras.Layer) -> bool:
    if isinstance(layer, _MULTI_HEAD):
        # Without dropout and scores, Keras fuses the attention, whose softmax is then in float32.
        scores = (node.arguments.kwargs.get("return_attention_scores") for node in layer._inbound_nodes)
        return any(scores) or layer.get_config().get("dropout", 0) > 0
    if isinstance(layer, (keras.layers.Softmax, keras.layers.Attention)):
        return True
    return getattr(getattr(layer, "activation", None), "__name__", "") in _SOFTMAX_NAMES


def _loss_of(loss: Nest, name: str, position: int) -> keras.Loss | None:
    if isinstance(loss, dict):
        return loss.get(name)
    if isinstance(loss, (list, tuple)):
        return loss[position] if position < len(loss) else None
    return loss


def compile_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of a call of `keras.Model.compile` by name, with `auto_scale_loss`."""
    given = inspect.signature(keras.Model.compile).bind_partial(None, *args, **kwargs).arguments
    return {"auto_scale_loss": True, **{name: value for name, value in given.items() if name != "self"}}
