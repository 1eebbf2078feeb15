"""Where a name of old Keras is today."""

from __future__ import annotations

import dataclasses

from keras_tpu_ext.tools.migrate.tables.keras_names import KERAS_NAMES
from keras_tpu_ext.tools.migrate.tables.old_arguments import OPTIMIZER_MODULES
from keras_tpu_ext.tools.migrate.tables.old_modules import OLD_MODULES, OLD_NAMES, OUT_OF_REACH

_OURS = "keras_tpu_ext."
_MODULES = {*KERAS_NAMES, *(part.rpartition(".")[0] for part in KERAS_NAMES)}
_OPEN = (
    "keras.applications.",
    "keras.datasets.",
    "keras.ops.",
    "keras.utils.legacy.",
    "keras.tree.",
    "keras.distribution.",
)


@dataclasses.dataclass(frozen=True)
class Moved:
    """Where a name is today.

    Attributes:
        name: Its full name in Keras 3; empty if it has none.
        write: What to write instead of what cannot be.
        on_dropin: Whether only the drop-in has it.
        known: Whether it is known at all.
    """

    name: str
    write: str = ""
    on_dropin: bool = False
    known: bool = True


def moved(name: str) -> Moved:
    """Return where a name of Keras, such as `keras.layers.core.Dense`, is today."""
    module, _, last = name.rpartition(".")
    if name in _MODULES or last in KERAS_NAMES.get(module, ()) or (module and f"{module}.".startswith(_OPEN)):
        return Moved(name)
    if name in OLD_NAMES:
        new = OLD_NAMES[name]
        return Moved("", on_dropin=True) if new.startswith(_OURS) else Moved(_public(name, new))
    if name in OUT_OF_REACH:
        why, write = OUT_OF_REACH[name]
        return Moved("", write=f"{write} ({why})")
    modules = {**OLD_MODULES, **OPTIMIZER_MODULES}
    if name in modules:
        return Moved("", on_dropin=True) if modules[name].startswith(_OURS) else Moved(_public(name, modules[name]))
    if module in modules:
        new = f"{modules[module]}.{last}"
        if new.startswith("keras._tf_keras."):
            return Moved(_public(name, new))
        return moved(new) if new != name else Moved("", known=False)
    if module and (above := moved(module)).known and above.name and above.name != module:
        return moved(f"{above.name}.{last}")
    return Moved("", known=False)


def _public(name: str, new: str) -> str:
    """Return a name of today as users write it: what `keras` keeps to itself, `tf.keras` has."""
    if new.startswith("keras._tf_keras.keras."):
        return new.replace("keras._tf_keras.keras.", "tensorflow.keras.", 1)
    if new.startswith("keras.src.legacy.preprocessing."):
        return new.replace("keras.src.legacy.", "tensorflow.keras.", 1)
    return new
