"""What a Keras 3 model made of inputs and outputs tells about itself.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
`Functional._inputs_struct` and `_outputs_struct`, `Sequential._functional`, `Layer._flatten_layers`, and
`_keras_history` of symbolic tensors.
"""

from __future__ import annotations

from typing import Any

import keras
from keras.src.models.functional import Functional


def inputs_and_outputs(model: Any) -> tuple[Any, Any] | None:
    """Return the structures of symbolic inputs and outputs; `None` where `model` has none."""
    functional = functional_of(model)
    return None if functional is None else (functional._inputs_struct, functional._outputs_struct)


def functional_of(model: Any) -> Any:
    """Return the graph of inputs and outputs that `model` is or holds; `None` where it has none."""
    if isinstance(model, keras.Sequential):
        model = model._functional
    return model if isinstance(model, Functional) else None


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
