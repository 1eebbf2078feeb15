"""Existing models and layers that cost a TPU less."""

from __future__ import annotations

import collections
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers.batch_normalization import BatchNormalization

layers = _runtime.keras.layers

_LOG = logging.getLogger("keras_tpu_ext")
# Layers that add a bias to their last step, one for each channel.
_WITH_BIAS = (
    *(layers.Dense, layers.Conv1D, layers.Conv2D, layers.Conv3D),
    *(layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose),
    *(layers.SeparableConv1D, layers.SeparableConv2D, layers.DepthwiseConv1D, layers.DepthwiseConv2D),
)
_NORMALIZATIONS = (layers.BatchNormalization, BatchNormalization)  # but no subclasses, which may do anything


def for_tpu(model: Any, *, ghost_batch_size: int | None = None) -> Any:
    """Return a copy of a model, or a layer itself, that computes the same and trains faster on a TPU.

    - Dropout, layer normalization and gelu, in every layer at any depth, are computed with fewer operations. Numbers
      are equal up to rounding, but for those of dropout, which are others than Keras's: N replicas drop exactly what
      one device drops. On Keras 3 only.
    - Every `keras.layers.BatchNormalization` becomes a `keras_tpu_ext.layers.BatchNormalization`, whose gradient
      reads memory less often. On TensorFlow its moments are then also those of the whole batch, not those of each
      replica's part as in Keras; `ghost_batch_size` splits the batch again.
    - A bias right before such a normalisation is removed. In training it has no effect, since the batch's mean is
      subtracted; but its gradient is a sum over all activations. In inference `moving_mean` compensates for it.

    Weights are cloned, pretrained ones and those of LoRA too, and what is frozen stays so: predictions are equal up
    to rounding. `model` does not change. Left as they are: layers with `renorm`, biases with a regulariser or a
    constraint, those of a layer that is used more than once or that has an activation, and those before a
    normalisation that is frozen (`trainable=False`) or called with `training=False`. One log line says what was done.
    What each change gains by the compiler's estimate is in docs/layers.md.

    A layer, or a model with its own `call`, is returned itself: its call then computes as in the first point. For a
    whole program, with its loss, there is `strategy_scope(for_tpu=True)`. What is saved are Keras's own layers.

    Args:
        model: A functional model, or a `Sequential` that knows its input shape; it may contain such models. A
            `TPUModel` of inputs and outputs is accepted too, and a plain model is returned. Or any layer, or a model
            with its own `call`.
        ghost_batch_size: As in `BatchNormalization`. Defaults to `None`, the whole batch.

    Returns:
        A `keras.Model` that is not compiled; `TPUModel.from_model` accepts it. Of a class with its own config, such
        as a backbone of keras-hub, it is one of that class if no layer was replaced. Or the layer.

    Raises:
        ArgumentError: If `model` is no layer, or a `Sequential` that does not know its input shape, or has a layer
            that cannot be made from its config, or `ghost_batch_size` is not an integer of at least 1; on Keras 2 if
            it is not made of inputs and outputs.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
        faster = kte.layers.for_tpu(model)
        images = np.random.default_rng(0).random((2, 64, 64, 3), "float32")
        print(np.abs(model.predict(images) - faster.predict(images)).max())  # equal up to rounding
        faster = kte.TPUModel.from_model(faster)
        faster.compile("adam", "sparse_categorical_crossentropy")
        ```
    """
    ghost_batch_size = check.optional(check.integer, "for_tpu", "ghost_batch_size", ghost_batch_size, example=128)
    is_model = isinstance(model, _runtime.keras.Model)
    if not is_model or _runtime.models.inputs_and_outputs(model) is None:
        if not isinstance(model, layers.Layer) or isinstance(model, _runtime.keras.Sequential):
            needed = "a Keras layer, or a model that knows its inputs"
            got = f"{model.name!r}, which is not built" if is_model else type(model).__name__
            write = "keras.Sequential([keras.Input((28, 28, 1)), ...]), or keras.Model(inputs, outputs)"
            raise check.argument_error("for_tpu", "model", needed, got, write)
        check_keras3("for_tpu of a layer, or of a model with its own `call`,", "kte.layers.BatchNormalization")
        return _computing_for_tpu(model)
    done: collections.Counter[str] = collections.Counter()
    cloned = _clone(model, ghost_batch_size, done)
    _LOG.info("for_tpu: %d BatchNormalization replaced, %d biases left out", done["replaced"], done["left out"])
    return cloned


def _clone(model: Any, ghost_batch_size: int | None, done: collections.Counter[str], *, trains: bool = True) -> Any:
    """Return a clone with the weights of `model`; all biases stay unless it `trains`."""
    biases = {id(layer): normalization for layer, normalization in _redundant_biases(model) if trains}
    infers = {id(call.layer) for call in _runtime.models.calls(model) if call.training is False}
    pairs: list[tuple[Any, Any]] = []

    if (copy := _copy_of_its_class(model, biases)) is not None:
        return copy

    def clone_layer(layer: Any) -> Any:
        if isinstance(layer, _runtime.keras.Model) and _runtime.models.inputs_and_outputs(layer) is not None:
            return _clone(layer, ghost_batch_size, done, trains=trains and id(layer) not in infers)
        if isinstance(layer, layers.Lambda):
            return layer  # it has no weights, and Keras creates it from a config only if told that this is safe
        new_class, config = type(layer), layer.get_config()
        if id(layer) in biases:
            config["use_bias"] = False
        if new_class is layers.BatchNormalization and not getattr(layer, "renorm", False):
            new_class, config["ghost_batch_size"] = BatchNormalization, ghost_batch_size
            done["replaced"] += 1
        new = _made_from(config, new_class, layer)
        pairs.append((layer, _computing_for_tpu(new)))
        return new

    cloned = _runtime.models.clone(model, clone_layer)
    offsets = {id(biases[id(layer)]): _array(layer.bias) for layer, _ in pairs if id(layer) in biases}
    for layer, new in pairs:
        is_bias = {id(layer.bias)} if id(layer) in biases else set()
        _take_over(layer, new, [weight for weight in layer.weights if id(weight) not in is_bias])
        if hasattr(new, "finalize_state"):  # Keras's Normalization turns its weights into constants
            new.finalize_state()
        if id(layer) in offsets:
            mean = new.moving_mean
            mean.assign(_array(mean) - offsets[id(layer)])
    done["left out"] += len(biases)
    return cloned


def _copy_of_its_class(model: Any, biases: Any) -> Any:
    """Return a copy by the config of the whole, if its class has its own and no layer is to be replaced.

    Such as a backbone of keras-hub, whose layers cannot all be made from theirs.
    """
    own = type(model)
    inside = _runtime.models.flatten_layers(model)
    is_generic = own.get_config.__module__.partition(".")[0] in ("keras", "tf_keras", "keras_tpu_ext")
    if is_generic or biases or any(type(layer) in _NORMALIZATIONS for layer in inside):
        return None
    try:
        copy = own.from_config(model.get_config())
        _take_over(model, copy, model.weights)
    except (TypeError, ValueError, AttributeError):  # the config is not all: layer by layer, then
        return None
    for layer in copy.layers:
        _computing_for_tpu(layer)
    return copy


def _take_over(layer: Any, copy: Any, weights: Sequence[Any]) -> None:
    """Give a copy the weights of its original, and let it train the same: a config may not tell of layers inside."""
    inside = (_runtime.models.flatten_layers(one) for one in (layer, copy))
    for one, other in ((layer, copy), *zip(*inside, strict=False)):
        if other.trainable != one.trainable:
            other.trainable = one.trainable
        if getattr(one, "lora_enabled", False) and not other.lora_enabled:
            alpha = {"lora_alpha": one.lora_alpha} if hasattr(one, "lora_alpha") else {}  # from Keras 3.10 on
            other.enable_lora(one.lora_rank, **alpha)
    copy.set_weights([_array(weight) for weight in weights])
    for weight, new in zip(weights, copy.weights, strict=True):
        if new.trainable != weight.trainable:
            new.trainable = weight.trainable


def _made_from(config: Any, new_class: type[Any], layer: Any) -> Any:
    """Return a layer made from the config of another."""
    try:
        return new_class.from_config(config)
    except (TypeError, ValueError, AttributeError) as error:
        needed = "a model of layers that their configs can make again"
        got = f"{layer.name!r}, a {type(layer).__name__}: {str(error).strip().splitlines()[-1]}"
        write = (
            "with kte.strategy_scope(for_tpu=True), which copies nothing, around what makes and compiles the model"
        )
        raise check.argument_error("for_tpu", "model", needed, got, write) from error


def _computing_for_tpu(layer: Any) -> Any:
    """Let a layer compute for a TPU, where that is known; return it."""
    if _runtime.tpu_operations is not None and not isinstance(layer, layers.InputLayer):
        layer.call = ChangedCall(layer, _compute_for_tpu)
    return layer


def check_keras3(what: str, instead: str) -> None:
    """Raise an `ArgumentError` on Keras 2."""
    if _runtime.tpu_operations is None:
        raise ArgumentError(f"{what} needs Keras 3; this is Keras 2. Write: {instead}")


class ChangedCall:
    """The `call` of a layer, with something done around it.

    Args:
        layer: The layer, whose attribute `call` this will be.
        around: Called with the layer, its `call` so far, and the positional and the keyword arguments of a call.
    """

    def __init__(self, layer: Any, around: Callable[..., Any]) -> None:
        # A copy of the layer has a copy of this, which refers to the copy of the layer.
        self._layer, self._around, self._before = layer, around, vars(layer).get("call")
        functools.update_wrapper(self, type(layer).call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        call = self._before or functools.partial(type(self._layer).call, self._layer)
        return self._around(self._layer, call, args, kwargs)


def _compute_for_tpu(layer: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    assert _runtime.tpu_operations is not None, "on Keras 2 no layer gets this"
    with _runtime.tpu_operations():
        return call(*args, **kwargs)


def _array(weight: Any) -> Any:
    return _runtime.ops.convert_to_numpy(weight)


def _redundant_biases(model: Any) -> list[tuple[Any, Any]]:
    """Return pairs of a layer whose bias has no effect in training, and the normalization that cancels it."""
    calls = _runtime.models.calls(model)
    times = collections.Counter(id(call.layer) for call in calls)
    users = collections.Counter(id(tensor) for call in calls for tensor in call.inputs)
    users.update(id(tensor) for tensor in model.outputs)
    makers = {id(tensor): call.layer for call in calls for tensor in call.outputs}
    found = []
    for call in calls:
        if type(call.layer) not in _NORMALIZATIONS or times[id(call.layer)] != 1 or call.training is False:
            continue
        tensor = call.inputs[0]  # a mask may follow
        maker = makers.get(id(tensor))
        is_alone = users[id(tensor)] == 1 and times[id(maker)] == 1
        if is_alone and _has_plain_bias(maker) and _is_canceled(maker, call.layer, len(tensor.shape)):
            found.append((maker, call.layer))
    return found


def _has_plain_bias(layer: Any) -> bool:
    """Whether `layer` adds a bias as its last operation, and nothing else depends on the bias."""
    if type(layer) not in _WITH_BIAS or not layer.use_bias:
        return False
    others = (layer.bias_regularizer, layer.bias_constraint, layer.activity_regularizer)
    return layer.activation in (None, _runtime.keras.activations.linear) and all(other is None for other in others)


def _is_canceled(layer: Any, normalization: Any, rank: int) -> bool:
    """Whether the axis of the bias is that of the normalization, which subtracts the mean of the batch."""
    axis = normalization.axis[0] if isinstance(normalization.axis, (list, tuple)) else normalization.axis
    bias_axis = 1 if getattr(layer, "data_format", "") == "channels_first" else rank - 1
    is_learning = normalization.trainable and not getattr(normalization, "renorm", False)
    return bool(is_learning and axis % rank == bias_axis)
