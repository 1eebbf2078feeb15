"""Finds outputs that are probabilities although their loss expects logits."""

from __future__ import annotations

from collections.abc import Iterator

from keras_tpu_ext._runtime.common.types import Loss, Model
from keras_tpu_ext._runtime.compat import keras


def probabilities_taken_for_logits(model: Model) -> list[str]:
    """Return a message for each softmax or sigmoid output of a compiled `model` whose loss has `from_logits=True`.

    A softmax of a softmax is almost flat: the gradient all but vanishes and accuracy stays where it starts. Only
    functional models can be inspected; for a subclassed model the list is empty.
    """
    messages = []
    adapter = model._kte.adapter
    for loss, (layer, activation) in _losses_by_output(model):
        if isinstance(loss, keras.losses.Loss) and adapter.expects_logits(loss):
            messages.append(
                f"The output of layer {layer!r} is a {activation}, but its loss "
                f"{type(loss).__name__} has from_logits=True and applies {activation} once more, so the model "
                f"may hardly learn. Write {type(loss).__name__}(from_logits=False), or take the {activation} out "
                "of the layer."
            )
    return messages


def _losses_by_output(model: Model) -> Iterator[tuple[Loss, tuple[str, str]]]:
    outputs = model._kte.adapter.output_activations(model)
    loss = model.loss
    for position, (name, layer, activation) in enumerate(outputs):
        if activation not in ("softmax", "sigmoid"):
            continue
        if isinstance(loss, dict):
            yield loss.get(name), (layer, activation)
        elif isinstance(loss, (list, tuple)):
            yield (loss[position] if position < len(loss) else None), (layer, activation)
        else:
            yield loss, (layer, activation)
