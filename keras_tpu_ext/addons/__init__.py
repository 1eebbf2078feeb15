"""TensorFlow Addons on Keras 2, and its equivalents on Keras 3.

    from keras_tpu_ext.addons import tfa

On TensorFlow 2.15 `tfa` is TensorFlow Addons as published. On a newer TensorFlow with tf-keras and
`TF_USE_LEGACY_KERAS=1` it is made to work, except for its compiled operations; docs/addons.md lists what works. On
Keras 3 the import raises an error that names the Keras 3 equivalents of the symbols that the importing code uses.
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
