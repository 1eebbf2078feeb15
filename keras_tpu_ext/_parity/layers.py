"""What a model's layers have to do with parity: dropout, other random numbers, and batch normalisation."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._parity.job import Facts


def silence_dropout(model: Any) -> list[Any]:
    """Set the rate of Keras's dropout and noise layers to 0; return the layers whose rate was not 0."""
    return [layer for layer in _runtime.models.flatten_layers(model) if _silence(layer)]


def look(model: Any, silenced: list[Any]) -> Facts:
    """Return what the layers of `model` tell, after `silence_dropout`."""
    layers = _runtime.models.flatten_layers(model)
    quiet = {id(layer) for layer in silenced}
    return Facts(
        is_exact=isinstance(model, _runtime.TrainStep),
        compute_dtypes=tuple(sorted({str(layer.compute_dtype) for layer in (model, *layers)})),
        local_normalisations=tuple(_name(layer) for layer in layers if _is_local_normalisation(layer)),
        silenced=tuple(_name(layer) for layer in silenced),
        random=tuple(_name(layer) for layer in layers if id(layer) not in quiet and _is_random(layer)),
        framework=_runtime.message_terms.framework,
        plain_model=_runtime.message_terms.plain_model,
    )


def _silence(layer: Any) -> bool:
    layers = _runtime.keras.layers
    names: tuple[str, ...] = ()
    if isinstance(layer, (layers.Dropout, layers.AlphaDropout, layers.GaussianDropout)):
        names = ("rate",)
    elif isinstance(layer, layers.GaussianNoise):
        names = ("stddev",)
    elif _is_recurrent(layer) and not isinstance(layer, layers.RNN):  # which has them of its cell
        names = ("dropout", "recurrent_dropout")
    loud = [name for name in names if getattr(layer, name, 0)]
    for name in loud:
        setattr(layer, name, 0.0)
    return bool(loud)


def _is_local_normalisation(layer: Any) -> bool:
    if not isinstance(layer, _runtime.keras.layers.BatchNormalization):
        return False
    return bool(layer.trainable) and _runtime.batch.has_local_statistics(layer)


def _is_random(layer: Any) -> bool:
    layers = _runtime.keras.layers
    if isinstance(layer, (layers.Dropout, layers.GaussianNoise)) or _is_recurrent(layer):
        return False  # its rate is 0
    return _runtime.models.draws_random_numbers(layer)


def _is_recurrent(layer: Any) -> bool:
    """Return whether `layer` is a recurrent cell that drops out by itself, or holds one."""
    return hasattr(layer, "get_dropout_mask") or hasattr(layer, "get_dropout_mask_for_cell")  # Keras 2


def _name(layer: Any) -> str:
    path = getattr(layer, "path", None) or layer.name
    return f"{layer.name!r}" if path == layer.name else f"{layer.name!r} ({path})"
