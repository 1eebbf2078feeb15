"""Outputs that are probabilities although their loss expects logits."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.common.types import Layer, Loss, Model
from keras_tpu_ext._runtime.compat import functional_of, keras


def output_activations(model: Model) -> list[tuple[str, str, str]]:
    """Return `(output name, layer name, activation name)` for each output; `[]` for a subclassed model."""
    functional = functional_of(model)
    if functional is None:
        return []
    layers = [layer_of(tensor) for tensor in functional.outputs]
    activations = ["softmax" if isinstance(layer, keras.layers.Softmax) else activation(layer) for layer in layers]
    names = [layer.name for layer in layers]
    return list(zip(functional.output_names, names, activations, strict=True))


def expects_logits(loss: Loss) -> bool:
    """Return True if `loss` applies softmax or sigmoid itself."""
    return bool(getattr(loss, "from_logits", False) or getattr(loss, "_fn_kwargs", {}).get("from_logits"))


def probabilities_taken_for_logits(model: Model) -> list[str]:
    """Return a message for each softmax or sigmoid output of a compiled `model` whose loss has `from_logits=True`.

    A softmax of a softmax is almost flat: the gradient all but vanishes and accuracy stays where it starts. Only
    functional models can be inspected; for a subclassed model the list is empty.
    """
    messages = []
    for position, (output, layer, activation) in enumerate(output_activations(model)):
        loss = loss_of(model.loss, output, position)
        is_probability = activation in ("softmax", "sigmoid")
        if is_probability and isinstance(loss, keras.losses.Loss) and expects_logits(loss):
            name = type(loss).__name__
            messages.append(
                f"The output of layer {layer!r} is a {activation}, but its loss {name} has from_logits=True and "
                f"applies {activation} once more, so the model may hardly learn. Write {name}(from_logits=False), or "
                f"take the {activation} out of the layer."
            )
    return messages


def layer_of(tensor: Any) -> Layer:
    """Return the layer or operation that a symbolic tensor is an output of."""
    return tensor._keras_history[0]


def activation(layer: Layer) -> str:
    """Return the name of a layer's activation; empty if it has none."""
    return str(getattr(getattr(layer, "activation", None), "__name__", ""))


def loss_of(loss: Any, name: str, position: int) -> Loss | None:
    """Return the loss of an output, given what `compile` got."""
    if isinstance(loss, dict):
        return loss.get(name)
    if isinstance(loss, (list, tuple)):
        return loss[position] if position < len(loss) else None
    return loss
