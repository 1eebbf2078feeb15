"""TensorFlow Addons, imported on whatever Keras 2 there is."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

import tensorflow as tf


def addons() -> Any:
    """Return the module `tensorflow_addons`."""
    if tf.__version__.startswith("2.15."):
        return importlib.import_module("tensorflow_addons")
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "keras"}
    for name in ("", ".src", ".src.engine", ".src.engine.keras_tensor", ".src.utils", ".src.utils.tf_utils"):
        sys.modules["keras" + name] = importlib.import_module("tf_keras" + name)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="\\s*Tensorflow Addons supports using Python ops")
            warnings.filterwarnings("ignore", message="\\s*TensorFlow Addons .TFA. has ended")
            return importlib.import_module("tensorflow_addons")
    finally:
        sys.modules.update(before)


tfa = addons()
