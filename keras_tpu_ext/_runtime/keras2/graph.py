"""What a Keras 2 model made of inputs and outputs tells about itself.

Private names of Keras that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
`engine.functional.Functional` with `_nested_inputs`, `_nested_outputs` and `_nodes_by_depth`,
`Layer._flatten_layers`, `engine.base_layer.BaseRandomLayer`, `Model._is_compiled`, `_fn_kwargs` of losses, and
`_keras_history` of symbolic tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.protocols import Call
from keras_tpu_ext._runtime.compat.keras2 import keras, private, tree
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
