"""Which layers and operations of a model are not known to look at single examples."""

from __future__ import annotations

import keras

from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext._runtime.compat.keras3 import functional_of
from keras_tpu_ext._runtime.training.compile_utils import is_known, layer_is_known

# Of the operations that a functional model may have between its layers, the elementwise ones.
_ELEMENTWISE = (
    "Absolute Add Cast Clip Divide Exp Gelu LeakyRelu Log Maximum Minimum Multiply Negative Power Relu Relu6 Sigmoid "
    "Silu Softplus Sqrt Square Subtract Tanh TrueDivide"
)


def own_layers(model: Model) -> list[str]:
    """Return the names of layers and operations that are not known to process each example independently."""
    functional = functional_of(model._kte.inner)
    if functional is None or not is_known(type(model).call) or not is_known(type(model).predict_step):
        return [model.name]
    layers = functional._flatten_layers(include_self=False)
    operations = [
        operation
        for part in [functional, *layers]
        if functional_of(part) is not None
        for operation in functional_of(part).operations
        if not isinstance(operation, keras.layers.Layer)
    ]
    unknown = [layer.name for layer in layers if not layer_is_known(layer)]
    return unknown + [each.name for each in operations if not _operation_is_known(each)]


def _operation_is_known(operation: keras.Operation) -> bool:
    return type(operation).__name__ in _ELEMENTWISE.split() and is_known(type(operation))
