"""Inspect Keras models: the graph, where softmaxes, losses and metrics are computed, and the gradients of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime import compat
from keras_tpu_ext._runtime.common.types import Array, Layer, Model, Tensor, Variable
from keras_tpu_ext._runtime.compat import (
    Functional,
    LossScaleOptimizer,
    functional_of,
    keras,
    ops,
    record_gradient,
    scaling_as,
    tree,
)
from keras_tpu_ext._runtime.compat import calls as calls
from keras_tpu_ext._runtime.compat import clone as clone
from keras_tpu_ext._runtime.compat import draws_random_numbers as draws_random_numbers
from keras_tpu_ext._runtime.compat import inputs_and_outputs as inputs_and_outputs
from keras_tpu_ext._runtime.compat import path_of as path_of
from keras_tpu_ext._runtime.compat import save_as as save_as
from keras_tpu_ext._runtime.training.clear_session import reopened_by_clear_session as reopened_by_clear_session
from keras_tpu_ext._runtime.training.compile_options import activation, layer_of, loss_of
from keras_tpu_ext._runtime.training.exact_models import exact_models as exact_models
from keras_tpu_ext._runtime.training.exact_models import named_as_builtin as named_as_builtin
from keras_tpu_ext._runtime.training.exact_models import plain_model as plain_model

_SETTINGS = ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")


class GradientRecorder(keras.optimizers.SGD):
    """An optimizer that records the last gradient of each variable as its momentum, and updates no variable."""

    def update_step(self: Any, gradient: Tensor, variable: Variable, *learning_rate: Tensor) -> None:
        """Record `gradient`; slices of the same row add up."""
        record_gradient(self, gradient, variable)


def record_gradients(model: Model) -> Callable[[], list[Array] | None]:
    """Replace the optimizer of a compiled model, before its first step, by one that only records gradients.

    The result is a function that returns the last ones, reduced, unscaled and clipped as before, as arrays in the
    order of the trainable variables; `None` if there are none yet.
    """
    own = model.optimizer
    inner = getattr(own, "inner_optimizer", own)
    settings = {name: getattr(inner, name) for name in _SETTINGS if hasattr(inner, name)}
    recorder: Any = GradientRecorder(1.0, momentum=0.5, name="gradient_recorder", **settings)
    model.optimizer = scaling_as(own, recorder) if isinstance(own, LossScaleOptimizer) else recorder

    def recorded() -> list[Array] | None:
        if not int(ops.convert_to_numpy(recorder.iterations)):
            return None
        return [ops.convert_to_numpy(value) for value in recorder.momentums]

    return recorded


_PLAIN = (bool, int, float, str, type(None))
_SOFTMAX_NAMES = ("softmax", "log_softmax", "softmax_v2", "log_softmax_v2")  # v2: as `tf.nn.softmax` calls itself


def is_compiled(model: Model) -> bool:
    """Return True if `compile` was called."""
    return compat.compiled_with(model) is not None


def flatten_layers(model: Model) -> list[Layer]:
    """Return all layers of `model` at any depth, in order of creation, without the model itself."""
    return list(model._flatten_layers(include_self=False))


def constants_of(model: Model) -> dict[str, object]:
    """Return the numbers, strings and tuples that the layers of `model` have as attributes, as `layer.attribute`.

    A step is traced with their values of that moment.
    """
    owners = {layer.name: layer for layer in model._flatten_layers()}
    return {
        f"{owner}.{name}": value
        for owner, layer in owners.items()
        for name, value in {**vars(layer), "trainable": layer.trainable}.items()
        if not name.startswith(("_", "stop_")) and name != "built" and _is_plain(value)
    }


def repeated_blocks(model: Model) -> list[str]:
    """Return the names of composite layers whose class occurs several times, such as the blocks of a decoder."""
    if not hasattr(keras, "RematScope"):  # Keras 2 has no scope in which layers compute their activations twice
        return []
    names: list[str] = []
    pending = [model]
    while pending:
        inside = list(pending.pop(0)._flatten_layers(include_self=False, recursive=False))
        composed = [layer for layer in inside if any(layer._flatten_layers(include_self=False, recursive=False))]
        kinds = Counter(type(layer) for layer in composed if not isinstance(layer, keras.Model))
        names += [layer.name for layer in composed if kinds[type(layer)] > 1]
        pending += [layer for layer in composed if kinds[type(layer)] <= 1]
    return names


def softmaxes(model: Model) -> list[tuple[str, str, str]]:
    """Return `(layer name, class name, dtype)` of each softmax in `model`, at any depth.

    An operation such as `keras.ops.softmax` is found only in models made from inputs and outputs.
    """
    layers = flatten_layers(model)
    # These create their own Softmax, whose dtype the user cannot set.
    owned = {id(getattr(layer, "_softmax", None)) for layer in layers if isinstance(layer, compat.MULTI_HEAD)}
    found = [layer for layer in layers if id(layer) not in owned and _computes_softmax(layer)]
    described = [(layer.name, _class_name(layer), compat.compute_dtype(layer)) for layer in found]
    functionals = [part for part in (model, *layers) if isinstance(part, Functional)]
    operations = [one for part in functionals for one in getattr(part, "operations", ())]  # Keras 2 has layers only
    softmaxes = [one for one in operations if _class_name(one) in ("Softmax", "LogSoftmax") and one not in layers]
    return described + [(one.name, _class_name(one), str(one.output.dtype)) for one in softmaxes]


def losses(model: Model) -> list[tuple[str, str, str, str]]:
    """Return `(layer name, its dtype, loss class name, loss dtype)` of each output that a compiled loss reads.

    The output layers of a subclassed model are unknown: the name of the loss stands for the layer. On Keras 2, where
    a loss computes in the dtype of the output, such a model has no list.
    """
    if not is_compiled(model) or not model.loss:
        return []
    functional = functional_of(model)
    if functional is None:
        flat = [loss for loss in tree.flatten(model.loss) if isinstance(loss, keras.losses.Loss)]
        dtypes = [compat.loss_dtype(loss, None) for loss in flat]
        return [(one.name, "", type(one).__name__, dtype) for one, dtype in zip(flat, dtypes, strict=True) if dtype]
    found = []
    for position, (name, tensor) in enumerate(zip(functional.output_names, functional.outputs, strict=True)):
        loss = loss_of(model.loss, name, position)
        if loss is not None:
            dtype = compat.dtype_of(tensor)
            found.append((layer_of(tensor).name, dtype, type(loss).__name__, compat.loss_dtype(loss, tensor)))
    return found


def metrics(model: Model) -> list[tuple[str, str, str]]:
    """Return `(metric name, class name, dtype)` of each metric of the model."""
    compiled = compat.compiled_metrics_of(model) if is_compiled(model) else None
    found = [metric for metric in model.metrics if metric is not compiled]
    if compiled is not None:  # until the first batch it has only what the user gave
        users = tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
        found += compiled.metrics or [metric for metric in users if isinstance(metric, keras.metrics.Metric)]
    once = {id(metric): metric for metric in found}.values()
    return [(metric.name, type(metric).__name__, str(metric.dtype)) for metric in once]


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)


def _class_name(layer: Layer) -> str:
    return type(layer).__name__.replace("GroupedQuery", "GroupQuery")  # as Keras exports it


def _computes_softmax(layer: Layer) -> bool:
    if isinstance(layer, compat.MULTI_HEAD):
        return not compat.fuses_attention(layer)
    if isinstance(layer, (keras.layers.Softmax, keras.layers.Attention)):
        return True
    function = getattr(layer, "function", None)  # of the layer around an operation of TensorFlow, on Keras 2
    return activation(layer) in _SOFTMAX_NAMES or getattr(function, "__name__", "") in _SOFTMAX_NAMES
