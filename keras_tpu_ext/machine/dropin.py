"""Choose JAX where the drop-in is being imported: the only place that sets Keras's backend."""

from __future__ import annotations

import os
import sys
from types import FrameType

_DROPIN = "keras_tpu_ext.dropin"


def choose_jax() -> None:
    """Set Keras's backend to JAX if Python imports the drop-in now, and Keras has not been imported."""
    if "keras" in sys.modules or not _is_importing_dropin():
        return
    for name, value in (("KERAS_BACKEND", "jax"), ("TF_USE_LEGACY_KERAS", None)):
        before = os.environ.get(name)
        if before not in (None, value):
            print(f"{_DROPIN}: {name} was {before!r}; the drop-in runs Keras 3 on JAX.", flush=True)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _is_importing_dropin() -> bool:
    """Return whether the import that runs now is of the drop-in: its name is known to the import system only."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load_unlocked":
            name = str(frame.f_locals.get("name", ""))
            if name == _DROPIN or name.startswith(f"{_DROPIN}."):
                return True
        frame = frame.f_back
    return False
