"""What a Keras 3 model made of inputs and outputs tells about itself.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
`Functional._inputs_struct`, `_outputs_struct` and `_nodes_by_depth`, `Sequential._functional`,
`Layer._flatten_layers`, and `_keras_history` of symbolic tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.models.functional import Functional

from keras_tpu_ext._runtime.common.protocols import Call


def inputs_and_outputs(model: Any) -> tuple[Any, Any] | None:
    """Return the structures of symbolic inputs and outputs; `None` where `model` has none."""
    functional = functional_of(model)
    return None if functional is None else (functional._inputs_struct, functional._outputs_struct)


def functional_of(model: Any) -> Any:
    """Return the graph of inputs and outputs that `model` is or holds; `None` where it has none."""
    if isinstance(model, keras.Sequential):
        model = model._functional
    return model if isinstance(model, Functional) else None


def calls(model: Any) -> list[Call]:
    """Return what is called in a model of inputs and outputs, without what models in it call."""
    nodes = [node for of_depth in functional_of(model)._nodes_by_depth.values() for node in of_depth]
    return [
        Call(node.operation, node.input_tensors, node.outputs, node.arguments.kwargs.get("training"))
        for node in nodes
    ]


def clone(model: Any, copy_of: Callable[[Any], Any]) -> Any:
    """Return a model of inputs and outputs like `model`, not compiled, with `copy_of(layer)` for each layer."""
    copies: dict[int, Any] = {}

    def once(layer: Any) -> Any:
        if isinstance(layer, keras.layers.InputLayer) or not isinstance(layer, keras.layers.Layer):
            return layer
        if id(layer) not in copies:
            copies[id(layer)] = copy_of(layer)
        return copies[id(layer)]

    functional = functional_of(model)
    inputs, outputs = functional._inputs_struct, functional._outputs_struct
    # Keras would name them after the tensors, and not as the layers that data in a dict is matched with.
    like = keras.tree.map_structure(
        lambda one: keras.Input(
            batch_shape=one.shape, dtype=one.dtype, sparse=one.sparse, name=one._keras_history.operation.name
        ),
        inputs,
    )
    plain = keras.Model(inputs, outputs, name=model.name)
    return keras.models.clone_model(plain, like, clone_function=once)


def output_activations(model: Any) -> list[tuple[str, str, str]]:
    """Return `(output name, layer name, activation name)` for each output; `[]` where it cannot be told."""
    if not isinstance(model, Functional):
        return []
    layers = [tensor._keras_history.operation for tensor in model.outputs]
    return [(name, layer.name, _activation(layer)) for name, layer in zip(model.output_names, layers, strict=True)]


def flatten_layers(model: Any) -> list[Any]:
    """Return all layers of `model` at any depth, without the model itself, in order of creation."""
    return list(model._flatten_layers(include_self=False))


def expects_logits(loss: Any) -> bool:
    """Return whether a loss applies softmax or sigmoid itself."""
    return bool(getattr(loss, "from_logits", False))


def is_compiled(model: Any) -> bool:
    """Return whether `compile` was called."""
    return bool(model.compiled)


def draws_random_numbers(layer: Any) -> bool:
    """Return whether a layer has a generator of random numbers of its own."""
    return any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())


def _activation(layer: Any) -> str:
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return str(getattr(getattr(layer, "activation", None), "__name__", ""))
