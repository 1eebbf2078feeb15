"""Inspect Keras 2 models: the graph, and where softmaxes, losses and metrics are computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import explain_missing_names
from keras_tpu_ext._runtime.common.protocols import Call
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras2 import keras, private, tree
from keras_tpu_ext._runtime.compat.keras2 import path_of as path_of
from keras_tpu_ext._runtime.keras2.functional import Functional
from keras_tpu_ext._runtime.training.clear_session import reopened_by_clear_session as reopened_by_clear_session
from keras_tpu_ext._runtime.training.exact_models import exact_models as exact_models
from keras_tpu_ext._runtime.training.exact_models import named_as_builtin as named_as_builtin
from keras_tpu_ext._runtime.training.exact_models import plain_model as plain_model

_BaseRandomLayer = private("engine.base_layer:BaseRandomLayer")


@explain_missing_names()
def inputs_and_outputs(model: tf.keras.Model) -> tuple[Nest, Nest] | None:
    """Return the structures of symbolic inputs and outputs; `None` if `model` has none."""
    functional = functional_of(model)
    return None if functional is None else (functional._nested_inputs, functional._nested_outputs)


def functional_of(model: tf.keras.Model) -> tf.keras.Model | None:
    """Return `model` if it is a functional model, as a built `Sequential` is; else `None`."""
    return model if isinstance(model, Functional) and model.outputs else None


@explain_missing_names()
def calls(model: tf.keras.Model) -> list[Call]:
    """Return the calls of layers in a functional model, without those inside its layers."""
    nodes = [node for of_depth in model._nodes_by_depth.values() for node in of_depth]
    return [
        Call(node.layer, node.keras_inputs, tree.flatten(node.outputs), (node.call_kwargs or {}).get("training"))
        for node in nodes
    ]


@explain_missing_names()
def clone(model: tf.keras.Model, copy_of: Callable[[tf.keras.layers.Layer], tf.keras.layers.Layer]) -> tf.keras.Model:
    """Clone a functional model, with `copy_of(layer)` for each layer; the clone is not compiled."""
    plain = keras.Model(model._nested_inputs, model._nested_outputs, name=model.name)
    return keras.models.clone_model(plain, clone_function=copy_of)


@explain_missing_names()
def output_activations(model: tf.keras.Model) -> list[tuple[str, str, str]]:
    """Return `(output name, layer name, activation name)` for each output; `[]` for a subclassed model."""
    if functional_of(model) is None:
        return []
    layers = [tensor._keras_history.layer for tensor in model.outputs]
    return [(name, layer.name, _activation(layer)) for name, layer in zip(model.output_names, layers, strict=True)]


@explain_missing_names()
def flatten_layers(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Return all layers of `model` at any depth, in order of creation, without the model itself."""
    return list(model._flatten_layers(include_self=False))


def expects_logits(loss: tf.keras.losses.Loss) -> bool:
    """Return True if `loss` applies softmax or sigmoid itself."""
    return bool(getattr(loss, "from_logits", False) or getattr(loss, "_fn_kwargs", {}).get("from_logits"))


def is_compiled(model: tf.keras.Model) -> bool:
    """Return True if `compile` was called."""
    return bool(model._is_compiled)


def repeated_blocks(model: tf.keras.Model) -> list[str]:
    """Return `[]`: Keras 2 has no scope in which layers compute their activations twice."""
    return []


def draws_random_numbers(layer: tf.keras.layers.Layer) -> bool:
    """Return True if `layer` has its own random generator."""
    return isinstance(layer, _BaseRandomLayer)


def _activation(layer: tf.keras.layers.Layer) -> str:
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return str(getattr(getattr(layer, "activation", None), "__name__", ""))


_SOFTMAX_NAMES = ("softmax", "log_softmax", "softmax_v2", "log_softmax_v2")  # v2: as `tf.nn.softmax` calls itself


def softmaxes(model: tf.keras.Model) -> list[tuple[str, str, str]]:
    """Return `(layer name, class name, dtype)` of each softmax in `model`, at any depth.

    A softmax in a user's own `call` is not found; `tf.nn.softmax` in a functional model is a layer.
    """
    layers = flatten_layers(model)
    # It creates its own Softmax, whose dtype the user cannot set.
    heads = [layer for layer in layers if isinstance(layer, keras.layers.MultiHeadAttention)]
    owned = {id(getattr(layer, "_softmax", None)) for layer in heads}
    found = [layer for layer in layers if id(layer) not in owned and _computes_softmax(layer)]
    return [(layer.name, type(layer).__name__, _dtype_of(layer)) for layer in found]


def losses(model: tf.keras.Model) -> list[tuple[str, str, str, str]]:
    """Return `(layer name, its dtype, loss class name, loss dtype)` of each output that a compiled loss reads.

    A loss of Keras 2 computes in the dtype of the output. A subclassed model has no such list.
    """
    functional = functional_of(model)
    if not model._is_compiled or not model.loss or functional is None:
        return []
    found = []
    for position, (name, tensor) in enumerate(zip(functional.output_names, functional.outputs, strict=True)):
        loss = _loss_of(model.loss, name, position)
        if loss is not None:
            layer, dtype = tensor._keras_history.layer, tf.as_dtype(tensor.dtype).name
            found.append((layer.name, dtype, type(loss).__name__, dtype))
    return found


def metrics(model: tf.keras.Model) -> list[tuple[str, str, str]]:
    """Return `(metric name, class name, dtype)` of each metric of the model."""
    found = list(model.metrics)
    if model._is_compiled and not found:  # until the first batch there is only what the user gave
        container = model.compiled_metrics
        users = tf.nest.flatten([container._user_metrics, container._user_weighted_metrics])
        found = [metric for metric in users if isinstance(metric, keras.metrics.Metric)]
    return [(metric.name, type(metric).__name__, str(metric.dtype)) for metric in found]


def _dtype_of(layer: tf.keras.layers.Layer) -> str:
    if hasattr(layer, "function"):  # an operation computes in the dtype of its inputs, whatever the policy says
        return str(tf.as_dtype(layer.get_output_at(0).dtype).name)
    return str(layer.compute_dtype)


def _computes_softmax(layer: tf.keras.layers.Layer) -> bool:
    if isinstance(layer, (keras.layers.Softmax, keras.layers.Attention, keras.layers.MultiHeadAttention)):
        return True
    function = getattr(layer, "function", None)  # of the layer around an operation of TensorFlow
    names = (getattr(getattr(layer, "activation", None), "__name__", ""), getattr(function, "__name__", ""))
    return any(name in _SOFTMAX_NAMES for name in names)


def _loss_of(loss: Nest, name: str, position: int) -> tf.keras.losses.Loss | None:
    if isinstance(loss, dict):
        return loss.get(name)
    if isinstance(loss, (list, tuple)):
        return loss[position] if position < len(loss) else None
    return loss


def compile_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of a call of `keras.Model.compile` by name, including those in its `**kwargs`."""
    given = inspect.signature(keras.Model.compile).bind_partial(None, *args, **kwargs).arguments
    given.update(given.pop("kwargs", {}))
    return {name: value for name, value in given.items() if name != "self"}
