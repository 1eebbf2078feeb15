"""Where a Keras 2 model computes its softmaxes, losses and metrics, and in which dtype.

Private names of Keras that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
`MultiHeadAttention._softmax`, of the model `_is_compiled` and `compiled_metrics` with `_user_metrics` and
`_user_weighted_metrics`, and `_keras_history` of symbolic tensors.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2.graph import flatten_layers, functional_of

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
