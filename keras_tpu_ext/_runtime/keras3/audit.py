"""Where a Keras 3 model computes its softmaxes, losses and metrics, and in which dtype.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
`MultiHeadAttention._softmax` (and that of `GroupQueryAttention`), `Operation._inbound_nodes`,
`Trainer._compile_metrics` and its `_user_metrics` and `_user_weighted_metrics`, the operations
`keras.src.ops.nn.Softmax` and `LogSoftmax`.
"""

from __future__ import annotations

from typing import Any

import keras
from keras.src.models.functional import Functional
from keras.src.ops.nn import LogSoftmax, Softmax

from keras_tpu_ext._runtime.keras3.graph import flatten_layers, functional_of

_SOFTMAX_NAMES = ("softmax", "log_softmax", "softmax_v2", "log_softmax_v2")  # v2: as `tf.nn.softmax` calls itself
_MULTI_HEAD = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


def softmaxes(model: Any) -> list[tuple[str, str, str]]:
    """Return `(layer name, class name, dtype)` of each softmax in `model`, at any depth.

    An operation such as `keras.ops.softmax` is seen in models made of inputs and outputs only.
    """
    layers = flatten_layers(model)
    # These make a Softmax of their own, which no user can write a dtype for.
    owned = {id(getattr(layer, "_softmax", None)) for layer in layers if isinstance(layer, _MULTI_HEAD)}
    softmax_layers = [layer for layer in layers if id(layer) not in owned and _computes_softmax(layer)]
    operations = [
        operation
        for part in (model, *layers)
        if isinstance(part, Functional)
        for operation in part.operations
        if isinstance(operation, (Softmax, LogSoftmax))
    ]
    found = [(layer.name, _class_name(layer), str(layer.compute_dtype)) for layer in softmax_layers]
    return found + [(op.name, type(op).__name__, str(op.output.dtype)) for op in operations]


def losses(model: Any) -> list[tuple[str, str, str, str]]:
    """Return `(layer name, its dtype, loss class name, loss dtype)` of each output that a compiled loss reads.

    For a subclassed model, whose output layers cannot be told, the name of the loss stands for the layer.
    """
    if not model.compiled or model.loss is None:
        return []
    functional = functional_of(model)
    if functional is None:
        flat = [loss for loss in keras.tree.flatten(model.loss) if isinstance(loss, keras.losses.Loss)]
        return [(loss.name, "", type(loss).__name__, str(loss.dtype)) for loss in flat]
    found = []
    for position, (name, tensor) in enumerate(zip(functional.output_names, functional.outputs, strict=True)):
        loss = _loss_of(model.loss, name, position)
        if loss is not None:
            dtype = loss.dtype if isinstance(loss, keras.losses.Loss) else keras.config.floatx()
            layer = tensor._keras_history.operation
            found.append((layer.name, str(tensor.dtype), type(loss).__name__, str(dtype)))
    return found


def metrics(model: Any) -> list[tuple[str, str, str]]:
    """Return `(metric name, class name, dtype)` of each metric that the model keeps."""
    compiled = model._compile_metrics if model.compiled else None
    found = [metric for metric in model.metrics if metric is not compiled]
    if compiled is not None:  # it makes its metrics out of the user's when it sees the first batch
        users = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
        found += compiled.metrics or [metric for metric in users if isinstance(metric, keras.metrics.Metric)]
    return [(metric.name, type(metric).__name__, str(metric.dtype)) for metric in found]


def _class_name(layer: Any) -> str:
    name = type(layer).__name__
    return "GroupQueryAttention" if name == "GroupedQueryAttention" else name  # Keras exports it under another name


def _computes_softmax(layer: Any) -> bool:
    if isinstance(layer, _MULTI_HEAD):
        # Without dropout and scores Keras fuses the attention, and its softmax is then in float32.
        scores = (node.arguments.kwargs.get("return_attention_scores") for node in layer._inbound_nodes)
        return any(scores) or layer.get_config().get("dropout", 0) > 0
    if isinstance(layer, (keras.layers.Softmax, keras.layers.Attention)):
        return True
    return getattr(getattr(layer, "activation", None), "__name__", "") in _SOFTMAX_NAMES


def _loss_of(loss: Any, name: str, position: int) -> Any:
    if isinstance(loss, dict):
        return loss.get(name)
    if isinstance(loss, (list, tuple)):
        return loss[position] if position < len(loss) else None
    return loss
