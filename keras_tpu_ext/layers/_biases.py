"""Biases that a normalisation takes away again: found in a model, so that they can be left out."""

from __future__ import annotations

import collections
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.layers.batch_normalization import BatchNormalization

layers = _runtime.keras.layers

# Layers that add a bias to their last step, one for each channel.
_WITH_BIAS = tuple(
    getattr(layers, name)
    for name in (
        *("Dense", "Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        *("SeparableConv1D", "SeparableConv2D", "DepthwiseConv1D", "DepthwiseConv2D"),
    )
)

_NORMALISATIONS = (layers.BatchNormalization, BatchNormalization)  # and no subclass, which may do anything


def needless_biases(model: Any) -> list[tuple[Any, Any]]:
    """Return pairs of a layer whose bias changes nothing in training, and the normalisation that sees to it.

    Args:
        model: A model of inputs and outputs.
    """
    calls = _runtime.models.calls(model)
    times = collections.Counter(id(call.layer) for call in calls)
    users = collections.Counter(id(tensor) for call in calls for tensor in call.inputs)
    users.update(id(tensor) for tensor in model.outputs)
    makers = {id(tensor): call.layer for call in calls for tensor in call.outputs}
    found = []
    for call in calls:
        if type(call.layer) not in _NORMALISATIONS or times[id(call.layer)] != 1 or call.training is False:
            continue
        tensor = call.inputs[0]  # a mask may follow
        maker = makers.get(id(tensor))
        is_alone = users[id(tensor)] == 1 and times[id(maker)] == 1
        if is_alone and _has_plain_bias(maker) and _is_normalised(maker, call.layer, len(tensor.shape)):
            found.append((maker, call.layer))
    return found


def _has_plain_bias(layer: Any) -> bool:
    """Return whether `layer` adds a bias last of all, of which nothing else depends."""
    if type(layer) not in _WITH_BIAS or not layer.use_bias:
        return False
    others = (layer.bias_regularizer, layer.bias_constraint, layer.activity_regularizer)
    return layer.activation in (None, _runtime.keras.activations.linear) and all(other is None for other in others)


def _is_normalised(layer: Any, normalisation: Any, rank: int) -> bool:
    """Return whether the axis of the bias is that of the normalisation, whose batch's own mean takes it away."""
    axis = normalisation.axis[0] if isinstance(normalisation.axis, (list, tuple)) else normalisation.axis
    of_bias = 1 if getattr(layer, "data_format", "") == "channels_first" else rank - 1
    is_learning = normalisation.trainable and not getattr(normalisation, "renorm", False)
    return bool(is_learning and axis % rank == of_bias)
