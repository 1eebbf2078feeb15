"""TensorFlow Addons where Keras 2 is, and what takes its place where Keras 3 is.

    from keras_tpu_ext.addons import tfa

On TensorFlow 2.15 `tfa` is TensorFlow Addons as published. On a newer TensorFlow with tf-keras and
`TF_USE_LEGACY_KERAS=1` it is made to work, but for its compiled operations; docs/addons.md lists what works. On
Keras 3 the import is an error that names what Keras 3 has instead of the symbols that the importing code uses.
"""

from __future__ import annotations

from types import ModuleType

from keras_tpu_ext import _runtime
from keras_tpu_ext.addons.equivalents import imported_symbols, in_words
from keras_tpu_ext.errors import NotForThisKerasError, RuntimeNotSupportedError


def __getattr__(name: str) -> ModuleType:
    if name != "tfa":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return _runtime.import_addons()
    except NotForThisKerasError as error:
        raise RuntimeNotSupportedError(f"{error} {in_words(imported_symbols())}") from None
