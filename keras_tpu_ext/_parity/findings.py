"""What explains a difference, with the line to write; and what was changed for the check."""

from __future__ import annotations

from collections.abc import Sequence

from keras_tpu_ext._parity.job import Facts
from keras_tpu_ext._parity.report import ParityRow


def findings(facts: Facts, rows: Sequence[ParityRow]) -> tuple[str, ...]:
    """Return sentences on the model that `facts` describe on the replicas, in the light of what was compared."""
    differs = any(row.ok is False for row in rows)
    found = []
    if differs and not facts.is_exact:
        found.append(
            f"The model is a plain keras.Model: {facts.plain_model}. Write kte.TPUModel(inputs, outputs), or "
            "kte.TPUModel.from_model(model), and compile that."
        )
    found += [_normalisation(name, differs) for name in facts.local_normalisations]
    if differs and facts.random:
        found.append(
            f"{_layers(facts.random)} draw{'s' if len(facts.random) == 1 else ''} random numbers, and each replica "
            "draws its own, so what depends on them differs. To check the rest, leave it out of the model."
        )
    if facts.silenced:
        found.append(
            f"The rate of {_layers(facts.silenced)} was set to 0 for this check: each replica draws random "
            "numbers of its own, so with dropout no two runs agree."
        )
    return tuple(found)


def _normalisation(name: str, differs: bool) -> str:
    text = f"BatchNormalization {name} sees only its replica: mean and variance are those of a part of the batch. "
    if not differs:
        return text + "It made no difference in this check; synchronized=True is the cure if it ever does."
    return text + "Write keras.layers.BatchNormalization(..., synchronized=True)."


def _layers(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"the layer {names[0]}"
    return f"the layers {', '.join(names[:-1])} and {names[-1]}"
