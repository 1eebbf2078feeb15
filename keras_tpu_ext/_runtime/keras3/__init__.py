"""Keras 3, whatever its backend is."""

from typing import NoReturn

import keras

from keras_tpu_ext.errors import NotForThisKerasError


def import_addons() -> NoReturn:
    """Refuse to import TensorFlow Addons."""
    raise NotForThisKerasError(
        f"TensorFlow Addons needs Keras 2, and this process is on Keras {keras.__version__}. To use it, install "
        "TensorFlow 2.15 and tensorflow-addons 0.23, or on a newer TensorFlow tf-keras and set "
        "TF_USE_LEGACY_KERAS=1 before the first import of TensorFlow."
    )
