"""Determine the runtime of this process from the user's choice; nothing is chosen here."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from keras_tpu_ext.errors import RuntimeNotSupportedError, UntestedVersionWarning
from keras_tpu_ext.machine.versions import check_versions, find_versions, install_command, newer_than_tested

WORKING = {
    "keras3_tf": "Keras 3 on TensorFlow (KERAS_BACKEND=tensorflow, which is Keras's default)",
    "keras3_jax": "Keras 3 on JAX (KERAS_BACKEND=jax)",
    "keras2_tf": "Keras 2 on TensorFlow (TensorFlow 2.15, or TF_USE_LEGACY_KERAS=1 with tf-keras on newer ones)",
}

_PACKAGES = {"keras3_tf": "keras3_tf", "keras3_jax": "jax", "keras2_tf": "keras2"}  # of `_runtime`

_CHOOSE_TENSORFLOW = (
    "Before the first import of keras, write: "
    "import os; os.environ['KERAS_BACKEND'] = 'tensorflow'; os.environ.pop('TF_USE_LEGACY_KERAS', None)"
)
_INSTALL_TENSORFLOW = f"Write: {install_command('keras', 'tensorflow')}"
_TRUE = {"1", "true", "yes"}  # what TensorFlow itself accepts for TF_USE_LEGACY_KERAS


def runtime_name(environ: Mapping[str, str], keras_version: str | None, backend: str | None) -> str:
    """Return the name of the runtime for the user's settings, such as `"keras3_torch"`, even if it does not work."""
    if _is_legacy(environ):
        return "keras2_tf"
    if keras_version is None:
        raise RuntimeNotSupportedError("keras_tpu_ext needs Keras, and this Python has none. " + _INSTALL_TENSORFLOW)
    if int(keras_version.split(".")[0]) < 3:
        return "keras2_tf"
    return "keras3_tf" if backend == "tensorflow" else f"keras3_{backend}"


def choose() -> str:
    """Return the name of the runtime for this process."""
    versions = find_versions()
    imported = "tensorflow" in sys.modules
    check_versions(versions, legacy=_is_legacy(os.environ), backend=_backend_to_be(), tensorflow_is_imported=imported)
    version = versions.keras
    backend = _keras3_backend(version)
    name = runtime_name(os.environ, version, backend)
    if name not in WORKING:
        raise RuntimeNotSupportedError(
            f"{_works()} This process is on {name} (keras {version}"
            + (f", KERAS_BACKEND={backend}" if backend else "")
            + f"). {_CHOOSE_TENSORFLOW}"
        )
    return name


chosen = functools.cache(choose)


def load() -> Any:
    """Return the `Runtime` of this process."""
    name = _PACKAGES[chosen()]
    backend = "jax" if name == "jax" else "tensorflow"
    note = newer_than_tested(find_versions(), legacy=name == "keras2", backend=backend)
    if note and multiprocessing.parent_process() is None:  # not again in each process that loads data
        warnings.warn_explicit(note, UntestedVersionWarning, "keras_tpu_ext", 1)  # without a line of this file
    return importlib.import_module(f"keras_tpu_ext._runtime.{name}").runtime


def _is_legacy(environ: Mapping[str, str]) -> bool:
    return environ.get("TF_USE_LEGACY_KERAS", "").lower() in _TRUE


def _works() -> str:
    return f"This release of keras_tpu_ext works on {'; '.join(WORKING.values())}."


def _backend_to_be() -> str:
    """Return the backend that Keras 3 has, or will take when it is imported, without asking Keras itself."""
    return os.environ.get("KERAS_BACKEND") or _backend_in_file() or "tensorflow"


def _backend_in_file() -> str | None:
    """Return the backend that Keras's configuration file names, as Keras reads it."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        with open(os.path.join(home, "keras.json"), encoding="utf-8") as file:
            backend = json.load(file).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
    return str(backend) if backend else None


def _keras3_backend(version: str | None) -> str | None:
    """Ask Keras 3 itself for its backend, since it reads an environment variable and a config file."""
    if version is None or int(version.split(".")[0]) < 3 or _is_legacy(os.environ):
        return None
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("tensorflow", "jax", "torch"):
            raise RuntimeNotSupportedError(
                f"{_works()} Keras {version} is set to a backend whose framework, {error.name}, is not installed. "
                + (_CHOOSE_TENSORFLOW if importlib.util.find_spec("tensorflow") else _INSTALL_TENSORFLOW)
            ) from error
        raise
    return str(keras.backend.backend())
