"""Whether Keras runs on JAX; nothing of a framework is imported here."""

from __future__ import annotations

import importlib.util
import sys

from keras_tpu_ext.errors import MissingExtraError, RuntimeNotSupportedError

_LINE = "import keras_tpu_ext.dropin"


def check_backend() -> None:
    """Check that the drop-in can be installed.

    Raises:
        MissingExtraError: If TensorFlow or JAX is not installed.
        RuntimeNotSupportedError: If Keras runs on another backend, because it was imported before.
    """
    for module in ("tensorflow", "jax"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(
                f"keras_tpu_ext.dropin runs programs written for TensorFlow on JAX, and needs both; {module} is not "
                f"installed. Run: pip install {'tensorflow-cpu' if module == 'tensorflow' else 'jax[tpu]'}"
            )
    keras = sys.modules["keras"]  # this package has imported it
    if int(keras.__version__.split(".")[0]) < 3:
        raise RuntimeNotSupportedError(
            f"keras_tpu_ext.dropin needs Keras 3; this is Keras {keras.__version__}, on which the program runs as it "
            f"is. Leave out `{_LINE}`, or: pip install --upgrade keras"
        )
    if keras.config.backend() != "jax":
        raise RuntimeNotSupportedError(
            f"keras_tpu_ext.dropin needs Keras on JAX, but Keras was imported before, on {keras.config.backend()}. "
            f"Make `{_LINE}` the first line of the program, written just so, and restart: in a notebook, the kernel."
        )
