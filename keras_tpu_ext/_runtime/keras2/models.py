"""What a Keras 2 model tells about itself: its graph, and where it computes softmaxes, losses and metrics.

Private names of Keras that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
`engine.functional.Functional` with `_nested_inputs`, `_nested_outputs` and `_nodes_by_depth`,
`Layer._flatten_layers`, `engine.base_layer.BaseRandomLayer`, `Model._is_compiled`, `_fn_kwargs` of losses,
`_keras_history` of symbolic tensors, `MultiHeadAttention._softmax`, and of the model `_is_compiled` and
`compiled_metrics` with `_user_metrics` and `_user_weighted_metrics`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.protocols import Call
from keras_tpu_ext._runtime.compat.keras2 import keras, private, tree
from keras_tpu_ext._runtime.compat.keras2 import path_of as path_of
from keras_tpu_ext._runtime.keras2.functional import Functional

_BaseRandomLayer: Any = private("engine.base_layer").BaseRandomLayer


def inputs_and_outputs(model: Any) -> tuple[Any, Any] | None:
    """Return the structures of symbolic inputs and outputs; `None` where `model` has none."""
    functional = functional_of(model)
    return None if functional is None else (functional._nested_inputs, functional._nested_outputs)


def functional_of(model: Any) -> Any:
    """Return `model` if it is a graph of inputs and outputs, as a built `Sequential` is; else `None`."""
    return model if isinstance(model, Functional) and model.outputs else None


def calls(model: Any) -> list[Call]:
    """Return what is called in a model of inputs and outputs, without what models in it call."""
    nodes = [node for of_depth in model._nodes_by_depth.values() for node in of_depth]
    return [
        Call(node.layer, node.keras_inputs, tree.flatten(node.outputs), (node.call_kwargs or {}).get("training"))
        for node in nodes
    ]


def clone(model: Any, copy_of: Callable[[Any], Any]) -> Any:
    """Return a model of inputs and outputs like `model`, not compiled, with `copy_of(layer)` for each layer."""
    plain = keras.Model(model._nested_inputs, model._nested_outputs, name=model.name)
    return keras.models.clone_model(plain, clone_function=copy_of)


def output_activations(model: Any) -> list[tuple[str, str, str]]:
    """Return `(output name, layer name, activation name)` for each output; `[]` where it cannot be told."""
    if functional_of(model) is None:
        return []
    layers = [tensor._keras_history.layer for tensor in model.outputs]
    return [(name, layer.name, _activation(layer)) for name, layer in zip(model.output_names, layers, strict=True)]


def flatten_layers(model: Any) -> list[Any]:
    """Return all layers of `model` at any depth, without the model itself, in order of creation."""
    return list(model._flatten_layers(include_self=False))


def expects_logits(loss: Any) -> bool:
    """Return whether a loss applies softmax or sigmoid itself."""
    return bool(getattr(loss, "from_logits", False) or getattr(loss, "_fn_kwargs", {}).get("from_logits"))


def is_compiled(model: Any) -> bool:
    """Return whether `compile` was called."""
    return bool(model._is_compiled)


def draws_random_numbers(layer: Any) -> bool:
    """Return whether a layer has a generator of random numbers of its own."""
    return isinstance(layer, _BaseRandomLayer)


def _activation(layer: Any) -> str:
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return str(getattr(getattr(layer, "activation", None), "__name__", ""))


_SOFTMAX_NAMES = ("softmax", "log_softmax", "softmax_v2", "log_softmax_v2")  # v2: as `tf.nn.softmax` calls itself


def softmaxes(model: Any) -> list[tuple[str, str, str]]:
    """Return `(layer name, class name, dtype)` of each softmax in `model`, at any depth.

    A softmax in a user's own `call` cannot be seen; one that a functional model makes by `tf.nn.softmax` is a layer.
    """
    layers = flatten_layers(model)
    # It makes a Softmax of its own, which no user can write a dtype for.
    heads = [layer for layer in layers if isinstance(layer, keras.layers.MultiHeadAttention)]
    owned = {id(getattr(layer, "_softmax", None)) for layer in heads}
    found = [layer for layer in layers if id(layer) not in owned and _computes_softmax(layer)]
    return [(layer.name, type(layer).__name__, _dtype_of(layer)) for layer in found]


def losses(model: Any) -> list[tuple[str, str, str, str]]:
    """Return `(layer name, its dtype, loss class name, loss dtype)` of each output that a compiled loss reads.

    A loss of Keras 2 computes in the dtype of the output. For a subclassed model there is no telling.
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


def metrics(model: Any) -> list[tuple[str, str, str]]:
    """Return `(metric name, class name, dtype)` of each metric that the model keeps."""
    found = list(model.metrics)
    if model._is_compiled and not found:  # it makes its metrics out of the user's when it sees the first batch
        container = model.compiled_metrics
        users = tf.nest.flatten([container._user_metrics, container._user_weighted_metrics])
        found = [metric for metric in users if isinstance(metric, keras.metrics.Metric)]
    return [(metric.name, type(metric).__name__, str(metric.dtype)) for metric in found]


def _dtype_of(layer: Any) -> str:
    if hasattr(layer, "function"):  # an operation computes in the type of what it gets, whatever the policy says
        return str(tf.as_dtype(layer.get_output_at(0).dtype).name)
    return str(layer.compute_dtype)


def _computes_softmax(layer: Any) -> bool:
    if isinstance(layer, (keras.layers.Softmax, keras.layers.Attention, keras.layers.MultiHeadAttention)):
        return True
    function = getattr(layer, "function", None)  # of the layer around an operation of TensorFlow
    names = (getattr(getattr(layer, "activation", None), "__name__", ""), getattr(function, "__name__", ""))
    return any(name in _SOFTMAX_NAMES for name in names)


def _loss_of(loss: Any, name: str, position: int) -> Any:
    if isinstance(loss, dict):
        return loss.get(name)
    if isinstance(loss, (list, tuple)):
        return loss[position] if position < len(loss) else None
    return loss


def compile_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of `keras.Model.compile` by name, those that it does not name too."""
    given = inspect.signature(keras.Model.compile).bind_partial(None, *args, **kwargs).arguments
    given.update(given.pop("kwargs", {}))
    return {name: value for name, value in given.items() if name != "self"}
