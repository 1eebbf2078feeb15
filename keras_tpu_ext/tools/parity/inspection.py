"""The properties of a model that matter for parity, and the differences that they explain."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.tools.parity.report import ParityRow


@dataclasses.dataclass(frozen=True)
class Facts:
    """Properties of a model."""

    is_exact: bool  # whether it uses the exact step
    compute_dtypes: tuple[str, ...]  # the dtypes that its layers compute in
    # Batch normalisations that train and see only their own replica, by name and path.
    local_normalisations: tuple[str, ...]
    no_dropout: tuple[str, ...]  # layers whose dropout was switched off, by name and path
    random: tuple[str, ...]  # other layers that draw random numbers, by name and path
    framework: str = ""  # name of the framework, such as `"TensorFlow"`
    plain_model: str = ""  # how a plain `keras.Model` on this framework differs from one device


def disable_dropout(model: Any) -> list[Any]:
    """Set the rate of Keras's dropout and noise layers to 0; return the layers whose rate was not 0."""
    return [layer for layer in _runtime.models.flatten_layers(model) if _disable(layer)]


def inspect_model(model: Any, no_dropout: list[Any]) -> Facts:
    """Return the facts about `model`, after `disable_dropout` has returned `no_dropout`."""
    layers = _runtime.models.flatten_layers(model)
    normalisations = [one for one in layers if isinstance(one, _runtime.keras.layers.BatchNormalization)]
    disabled = {id(layer) for layer in no_dropout}
    return Facts(
        is_exact=isinstance(model, _runtime.TrainStep),
        compute_dtypes=tuple(sorted({str(layer.compute_dtype) for layer in (model, *layers)})),
        local_normalisations=tuple(
            _name(one) for one in normalisations if one.trainable and _runtime.batch.has_local_statistics(one)
        ),
        no_dropout=tuple(_name(layer) for layer in no_dropout),
        random=tuple(_name(layer) for layer in layers if id(layer) not in disabled and _is_random(layer)),
        framework=_runtime.message_terms.framework,
        plain_model=_runtime.message_terms.plain_model,
    )


def _disable(layer: Any) -> bool:
    layers = _runtime.keras.layers
    names: tuple[str, ...] = ()
    if isinstance(layer, (layers.Dropout, layers.AlphaDropout, layers.GaussianDropout)):
        names = ("rate",)
    elif isinstance(layer, layers.GaussianNoise):
        names = ("stddev",)
    elif _is_recurrent(layer) and not isinstance(layer, layers.RNN):  # it has them from its cell
        names = ("dropout", "recurrent_dropout")
    active = [name for name in names if getattr(layer, name, 0)]
    for name in active:
        setattr(layer, name, 0.0)
    return bool(active)


def _is_random(layer: Any) -> bool:
    layers = _runtime.keras.layers
    if isinstance(layer, (layers.Dropout, layers.GaussianNoise)) or _is_recurrent(layer):
        return False  # its rate is 0
    return _runtime.models.draws_random_numbers(layer)


def _is_recurrent(layer: Any) -> bool:
    """Whether `layer` is a recurrent cell with its own dropout, or holds one."""
    return hasattr(layer, "get_dropout_mask") or hasattr(layer, "get_dropout_mask_for_cell")  # Keras 2


def _name(layer: Any) -> str:
    path = getattr(layer, "path", None) or layer.name
    return f"{layer.name!r}" if path == layer.name else f"{layer.name!r} ({path})"


def findings(facts: Facts, rows: Sequence[ParityRow]) -> tuple[str, ...]:
    """Return sentences for the report: causes of differences with their cures, and changes made for the check."""
    differs = any(row.ok is False for row in rows)
    found = []
    if differs and not facts.is_exact:
        found.append(
            f"The model is a plain keras.Model: {facts.plain_model}. Write kte.TPUModel(inputs, outputs), or "
            "kte.TPUModel.from_model(model), and compile that; or leave exact=False out."
        )
    found += [_normalization_finding(name, differs) for name in facts.local_normalisations]
    if differs and facts.random:
        found.append(
            f"{_list_layers(facts.random)} draw{'s' if len(facts.random) == 1 else ''} random numbers, and each "
            "replica draws its own, so what depends on them differs. To check the rest, leave it out of the model."
        )
    if facts.no_dropout:
        found.append(
            f"The rate of {_list_layers(facts.no_dropout)} was set to 0 for this check: each replica draws random "
            "numbers of its own, so with dropout no two runs agree."
        )
    return tuple(found)


def _normalization_finding(name: str, differs: bool) -> str:
    text = f"BatchNormalization {name} sees only its replica: mean and variance are those of a part of the batch. "
    if not differs:
        return text + "It made no difference in this check; synchronized=True is the cure if it ever does."
    return text + "Write keras.layers.BatchNormalization(..., synchronized=True)."


def _list_layers(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"the layer {names[0]}"
    return f"the layers {', '.join(names[:-1])} and {names[-1]}"
