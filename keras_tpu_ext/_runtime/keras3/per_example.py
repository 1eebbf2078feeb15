"""Which code is that of Keras and of this package, and which layers of it are known to look at single examples."""

from __future__ import annotations

from typing import Any

import keras

from keras_tpu_ext._runtime.common.types import Layer, Model
from keras_tpu_ext._runtime.compat.keras3 import functional_of
from keras_tpu_ext._runtime.training.compile_utils import pads_to_longest

# Of the operations that a functional model may have between its layers, the elementwise ones.
_ELEMENTWISE = (
    "Absolute Add Cast Clip Divide Exp Gelu LeakyRelu Log Maximum Minimum Multiply Negative Power Relu Relu6 Sigmoid "
    "Silu Softplus Sqrt Square Subtract Tanh TrueDivide"
)
# Keras's layers that mix the examples of a batch; ours handle padded rows.
_MIXING = ("MixUp", "CutMix", "RandAugment", "AugMix", "MelSpectrogram")


def own_layers(model: Model) -> list[str]:
    """Return the names of layers and operations that are not known to process each example independently."""
    functional = functional_of(model._kte.inner)
    if functional is None or not is_of_keras(type(model).call) or not is_of_keras(type(model).predict_step):
        return [model.name]
    layers = functional._flatten_layers(include_self=False)
    operations = [
        operation
        for part in [functional, *layers]
        if functional_of(part) is not None
        for operation in functional_of(part).operations
        if not isinstance(operation, keras.layers.Layer)
    ]
    unknown = [layer.name for layer in layers if not _layer_is_known(layer)]
    return unknown + [each.name for each in operations if not _operation_is_known(each)]


def is_of_keras(thing: Any) -> bool:
    """Return whether a class or a function is that of Keras or of this package."""
    return str(getattr(thing, "__module__", "")).startswith(("keras.", "keras_tpu_ext."))


def _operation_is_known(operation: keras.Operation) -> bool:
    return type(operation).__name__ in _ELEMENTWISE.split() and is_of_keras(type(operation))


def _layer_is_known(layer: Layer) -> bool:
    functions = [layer.activity_regularizer, getattr(layer, "activation", None)]
    return (
        is_of_keras(type(layer))
        and not isinstance(layer, keras.layers.Lambda)
        and not pads_to_longest(layer)
        and not isinstance(layer.activity_regularizer, keras.regularizers.OrthogonalRegularizer)
        and not (type(layer).__name__ in _MIXING and type(layer).__module__.startswith("keras."))
        and all(function is None or is_of_keras(function) for function in functions)
        and 0 not in keras.tree.flatten(getattr(layer, "axis", None))
    )
