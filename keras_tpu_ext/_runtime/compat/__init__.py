"""The Keras that this process trains with, and what Keras 2 and Keras 3 name or do differently.

Code that is otherwise the same on both imports it from here: `keras2.py` and `keras3.py` have the same names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from keras_tpu_ext._runtime.common.select import chosen

_names = importlib.import_module(f"{__name__}.{chosen().partition('_')[0]}")

if TYPE_CHECKING:
    from keras_tpu_ext._runtime.compat.keras3 import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        return getattr(_names, name)
