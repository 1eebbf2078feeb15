"""Where a name of old Keras is today."""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.keras_names import KERAS_NAMES
from keras_tpu_ext.tools.migrate.tables.old_modules import OLD_MODULES, OLD_NAMES, OUT_OF_REACH

_MODULES = {*KERAS_NAMES, *(part.rpartition(".")[0] for part in KERAS_NAMES)}
_OPEN = tuple(
    f"keras.{part}." for part in ("applications", "datasets", "ops", "utils.legacy", "tree", "distribution")
)


DROPIN = "what it meant, by the drop-in"
UNKNOWN = "Keras 3 has no such name that is known here"


def moved(name: str) -> tuple[str, str]:
    """Return where a name of Keras, such as `keras.layers.core.Dense`, is today; if nowhere, an empty text, and why.

    The second text is `DROPIN`, `UNKNOWN`, or what to write instead.
    """
    module, _, last = name.rpartition(".")
    if name in _MODULES or last in KERAS_NAMES.get(module, ()) or (module and f"{module}.".startswith(_OPEN)):
        return name, ""
    if name in OUT_OF_REACH and name not in OLD_NAMES:
        why, write = OUT_OF_REACH[name]
        return "", f"{write} ({why})"
    if name == "keras.optimizers.legacy.RMSprop":
        return "", DROPIN
    modules = {**OLD_MODULES, "keras.optimizers.legacy": "keras.optimizers"}  # which Keras 3 has, with errors
    if new := OLD_NAMES.get(name) or modules.get(name):
        return ("", DROPIN) if new.startswith("keras_tpu_ext.") else (_public(new), "")
    if module in modules:
        new = f"{modules[module]}.{last}"
        if new.startswith("keras._tf_keras."):
            return _public(new), ""
        return moved(new) if new != name else ("", UNKNOWN)
    above = moved(module)[0] if module else ""
    return moved(f"{above}.{last}") if above and above != module else ("", UNKNOWN)


def _public(new: str) -> str:
    """Return a name of today as users write it: what `keras` keeps to itself, `tf.keras` has."""
    if new.startswith("keras._tf_keras.keras."):
        return new.replace("keras._tf_keras.keras.", "tensorflow.keras.", 1)
    if new.startswith("keras.src.legacy.preprocessing."):
        return new.replace("keras.src.legacy.", "tensorflow.keras.", 1)
    return new
