"""Existing models with layers that cost a TPU less."""

from __future__ import annotations

import logging
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._arguments import whole_number
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers._biases import needless_biases
from keras_tpu_ext.layers.batch_normalization import BatchNormalization

_LOG = logging.getLogger("keras_tpu_ext")
_Stock = _runtime.keras.layers.BatchNormalization


def for_tpu(model: Any, *, ghost_batch_size: int | None = None) -> Any:
    """Return a copy of a model that predicts the same and takes less time to train on a TPU.

    - Every `keras.layers.BatchNormalization` becomes a `keras_tpu_ext.layers.BatchNormalization`, whose gradient
      reads memory less often. On TensorFlow its moments are then those of the whole batch too, where Keras's are
      those of each replica's part; `ghost_batch_size` makes parts again.
    - A bias right before such a normalisation goes. In training the batch's mean takes it away, so that it learns
      nothing; but its gradient is a sum over all activations. In inference `moving_mean` makes up for it.

    Weights are copied, pretrained ones too: predictions are equal up to rounding. `model` stays as it is. What is
    left as it is: layers with `renorm`, biases with a regulariser or a constraint, those of a layer that is used more
    than once or that has an activation, and those before a normalisation that is frozen (`trainable=False`) or called
    with `training=False`.
    What was done is logged in one line. What each brings by the compiler's estimate is in docs/layers.md.

    Args:
        model: A functional model, or a `Sequential` that knows its input shape; also with such models inside. A
            `TPUModel` of inputs and outputs may come, and a plain one is returned.
        ghost_batch_size: As in `BatchNormalization`. Defaults to `None`, the whole batch.

    Returns:
        A `keras.Model`, to be compiled; `TPUModel.from_model` takes it.

    Raises:
        ArgumentError: If `model` is not made of inputs and outputs, or `ghost_batch_size` is not a whole number of
            at least 1.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte

        model = keras.applications.ResNet50(weights=None)
        model = kte.TPUModel.from_model(kte.layers.for_tpu(model))
        ```
    """
    if ghost_batch_size is not None:
        ghost_batch_size = whole_number("for_tpu", "ghost_batch_size", ghost_batch_size, least=1, write=128)
    if not isinstance(model, _runtime.keras.Model) or _runtime.models.inputs_and_outputs(model) is None:
        raise ArgumentError(
            "for_tpu needs a Keras model that is made of inputs and outputs, so that it can tell what follows what; "
            f"got {type(model).__name__}. Write: for_tpu(keras.Model(inputs, outputs)), or use "
            "keras_tpu_ext.layers.BatchNormalization in your own layers"
        )
    work = _Copying(ghost_batch_size)
    copied = work.copy(model)
    _LOG.info("for_tpu: %d BatchNormalization replaced, %d biases left out", work.replaced, work.left_out)
    return copied


class _Copying:
    """Copies a model, with other layers in some places.

    Attributes:
        replaced: Number of normalisations that became ours.
        left_out: Number of biases that are not there any more.
    """

    def __init__(self, ghost_batch_size: int | None) -> None:
        self.replaced = self.left_out = 0
        self._ghost_batch_size = ghost_batch_size

    def copy(self, model: Any, *, learns: bool = True) -> Any:
        """Return the copy of a model with its weights; unless it `learns`, no batch's mean takes a bias away."""
        biases = {id(layer): normalisation for layer, normalisation in needless_biases(model) if learns}
        infers = {id(call.layer) for call in _runtime.models.calls(model) if call.training is False}
        pairs: list[tuple[Any, Any]] = []

        def copy_of(layer: Any) -> Any:
            if isinstance(layer, _runtime.keras.Model) and _runtime.models.inputs_and_outputs(layer) is not None:
                return self.copy(layer, learns=learns and id(layer) not in infers)
            pairs.append((layer, self._like(layer, without_bias=id(layer) in biases)))
            return pairs[-1][1]

        copied = _runtime.models.clone(model, copy_of)
        offsets = {id(biases[id(layer)]): _array(layer.bias) for layer, _ in pairs if id(layer) in biases}
        for layer, new in pairs:
            is_bias = {id(layer.bias)} if id(layer) in biases else set()
            new.set_weights([_array(weight) for weight in layer.weights if id(weight) not in is_bias])
            if hasattr(new, "finalize_state"):  # a Normalization of Keras makes constants of its weights
                new.finalize_state()
            if id(layer) in offsets:
                mean = new.moving_mean
                mean.assign(_array(mean) - offsets[id(layer)])
        self.left_out += len(biases)
        return copied

    def _like(self, layer: Any, *, without_bias: bool) -> Any:
        """Return a layer like another one, with weights of its own."""
        if isinstance(layer, _runtime.keras.layers.Lambda):
            return layer  # it has no weights, and Keras makes none from a config without being told that it is safe
        config = layer.get_config()
        if without_bias:
            config["use_bias"] = False
        if type(layer) is not _Stock or getattr(layer, "renorm", False):
            return type(layer).from_config(config)
        self.replaced += 1
        return BatchNormalization.from_config({**config, "ghost_batch_size": self._ghost_batch_size})


def _array(weight: Any) -> Any:
    return _runtime.ops.convert_to_numpy(weight)
