"""Which symbols of TensorFlow Addons the code that imports them uses, as its source says."""

from __future__ import annotations

import linecache
import re
import sys
from types import FrameType

_USE = re.compile(r"\b(?:tfa|tensorflow_addons)\.([a-z_0-9]+)\.([A-Za-z_0-9]+)")
_IMPORT = re.compile(r"from\s+(?:keras_tpu_ext\.addons\.tfa|tensorflow_addons)\.([a-z_0-9]+)\s+import\s+([\w, ]+)")
_OURS = "keras_tpu_ext.addons"


def symbols_asked_for() -> list[str]:
    """Return names such as `"optimizers.LAMB"`, in the order of their first use; `[]` where no source can be seen."""
    source = _source_of_importer()
    found = [f"{module}.{name}" for module, name in _USE.findall(source)]
    for module, names in _IMPORT.findall(source):
        found += [f"{module}.{name.split()[0]}" for name in names.split(",") if name.strip()]
    return list(dict.fromkeys(found))


def _source_of_importer() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_on_the_way(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if frame is None:
        return ""
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    return "".join(lines) or " ".join(sys.orig_argv)  # `python -c` has its program there


def _is_on_the_way(module: str) -> bool:
    return module.startswith((_OURS, "importlib"))
