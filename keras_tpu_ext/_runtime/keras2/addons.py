"""TensorFlow Addons 0.23, its last release, on Keras 2: as published, and on newer versions of TensorFlow.

It imports modules of Keras as `keras.src...`. On TensorFlow 2.16 and later that is Keras 3; here it is tf-keras while
the import runs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

import tensorflow as tf

from keras_tpu_ext._runtime.common.user_frame import warn
from keras_tpu_ext._runtime.compat.keras2 import PACKAGE, private
from keras_tpu_ext.errors import AddonsWarning, MissingExtraError

_ALIASED = (
    "",
    ".src",
    ".src.backend",
    ".src.engine",
    ".src.engine.keras_tensor",
    ".src.utils",
    ".src.utils.tf_utils",
)


@functools.cache
def import_addons() -> ModuleType:
    """Import TensorFlow Addons."""
    if importlib.util.find_spec("tensorflow_addons") is None:
        raise MissingExtraError(f"TensorFlow Addons is not installed. Write: {_install()}")
    if PACKAGE == "keras":
        return importlib.import_module("tensorflow_addons")
    with _alias_keras_modules(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*TensorFlow Addons \(TFA\) has ended", UserWarning)
        warnings.filterwarnings("ignore", "Tensorflow Addons supports using Python ops", UserWarning)
        addons = importlib.import_module("tensorflow_addons")
    addons.options.disable_custom_kernel()  # use the Python implementations
    warn(
        f"TensorFlow Addons {addons.__version__} was made for TensorFlow 2.15. On {tf.__version__} its Python parts "
        "work here and its compiled operations do not; docs/addons.md lists both.",
        AddonsWarning,
    )
    return addons


@contextlib.contextmanager
def _alias_keras_modules() -> Iterator[None]:
    """Alias the modules of Keras that TensorFlow Addons imports to those of tf-keras, within the block."""
    private("engine.keras_tensor"), private("utils.tf_utils"), private("backend")
    before = {f"keras{name}": sys.modules.get(f"keras{name}") for name in _ALIASED}
    for name in _ALIASED:
        sys.modules[f"keras{name}"] = sys.modules[f"{PACKAGE}{name}"]
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _install() -> str:
    if PACKAGE == "keras":
        return "pip install tensorflow-addons==0.23.0"
    # Without their dependencies: TensorFlow Addons requires an old typeguard, and otherwise nothing new.
    return "pip install --no-deps tensorflow-addons==0.23.0 typeguard==2.13.3"
