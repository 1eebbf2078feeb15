"""Which models compute each example independently, so that batches may be padded.

A model gets padded batches if each of its layers, losses and metrics is known to process each example independently,
or to respect weights and masks. A user's own code may do anything with the rows of a batch; it gets only the
examples, in a batch of another size.
"""

from __future__ import annotations

from typing import Any

import keras

from keras_tpu_ext._runtime.common.types import Layer, Metric, Model, Tensor
from keras_tpu_ext._runtime.keras3.models import functional_of
from keras_tpu_ext._runtime.training.compile_utils import respects_weights

_METHODS = (
    "train_step",
    "test_step",
    "predict_step",
    "compute_loss",
    "compute_metrics",
    "compute_loss_and_updates",
    "stateless_compute_loss",
)
# Of the operations that a functional model may have between its layers, the elementwise ones.
_ELEMENTWISE = {
    *(
        "Absolute",
        "Add",
        "Cast",
        "Clip",
        "Divide",
        "Exp",
        "Gelu",
        "LeakyRelu",
        "Log",
        "Maximum",
        "Minimum",
        "Multiply",
    ),
    *("Negative", "Power", "Relu", "Relu6", "Sigmoid", "Silu", "Softplus", "Sqrt", "Square", "Subtract", "Tanh"),
    "TrueDivide",
}
_MIXING = (
    "MixUp",
    "CutMix",
    "RandAugment",
    "AugMix",
)  # Keras's layers that mix the examples of a batch; ours handle padded rows


def trains_per_example(model: Model) -> bool:
    """Return whether a built and compiled `model` can tell padded rows from examples."""
    return (
        all(_is_known(getattr(type(model), method)) for method in _METHODS)
        and not model._kte.augments
        and predicts_per_example(model)
        and all(_loss_is_known(flat.loss.loss) for flat in _flat(model._compile_loss, "_flat_losses"))
        and all(_metric_is_known(metric, model) for metric in _flat_metrics(model._compile_metrics))
    )


def predicts_per_example(model: Model) -> bool:
    """Return whether a prediction of `model` is known to depend on its own example only."""
    return not own_layers(model)


def own_layers(model: Model) -> list[str]:
    """Return the names of layers and operations that are not known to process each example independently."""
    functional = functional_of(model._kte.inner)
    if functional is None or not _is_known(type(model).call) or not _is_known(type(model).predict_step):
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


def _is_known(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(("keras.", "keras_tpu_ext."))


def _operation_is_known(operation: keras.Operation) -> bool:
    return type(operation).__name__ in _ELEMENTWISE and _is_known(type(operation))


def _layer_is_known(layer: Layer) -> bool:
    functions = [layer.activity_regularizer, getattr(layer, "activation", None)]
    return (
        _is_known(type(layer))
        and not isinstance(layer, keras.layers.Lambda)
        and not (type(layer).__name__ in _MIXING and type(layer).__module__.startswith("keras."))
        and all(function is None or _is_known(function) for function in functions)
        and 0 not in keras.tree.flatten(getattr(layer, "axis", None))
    )


def _loss_is_known(loss: Tensor) -> bool:
    return _is_known(type(loss)) and _is_known(getattr(loss, "fn", loss))


def _metric_is_known(metric: Metric, model: Model) -> bool:
    outputs = functional_of(model._kte.inner).outputs
    return all(respects_weights(metric, output) for output in outputs)


def _flat(compiled: Any, name: str) -> list[Tensor]:
    return [] if compiled is None else [part for part in getattr(compiled, name) if part is not None]


def _flat_metrics(compiled: Any) -> list[Tensor]:
    lists = [*_flat(compiled, "_flat_metrics"), *_flat(compiled, "_flat_weighted_metrics")]
    return [metric for of_output in lists for metric in of_output.metrics]
