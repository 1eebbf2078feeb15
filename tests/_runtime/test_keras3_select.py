"""What is said on Keras 3 where this release cannot follow the user's settings."""

import importlib
import importlib.metadata

import keras
import pytest

from keras_tpu_ext._runtime.common import select
from keras_tpu_ext.errors import RuntimeNotSupportedError

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax")

CHOOSE = "import os; os.environ['KERAS_BACKEND'] = 'tensorflow'; os.environ.pop('TF_USE_LEGACY_KERAS', None)"
WORKS = "This release of keras_tpu_ext works on Keras 3 on TensorFlow (KERAS_BACKEND=tensorflow"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


def test_this_process_is_on_keras_3_with_the_backend_that_keras_chose():
    name = {"tensorflow": "keras3_tf", "jax": "keras3_jax"}[keras.backend.backend()]
    assert select.choose() == name
    assert select.load().TrainStep.__module__.startswith(f"keras_tpu_ext._runtime.{select._PACKAGES[name]}.")


@pytest.mark.parametrize("backend", ["torch", "openvino", "numpy"])
def test_another_backend_is_refused_with_what_works_and_what_to_write(monkeypatch, backend):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(RuntimeNotSupportedError) as caught:
        select.choose()
    text = str(caught.value)
    assert text.startswith(WORKS)
    assert f"This process is on keras3_{backend} (keras {keras.__version__}, KERAS_BACKEND={backend})." in text
    assert text.endswith(f"Before the first import of keras, write: {CHOOSE}")


def test_no_keras_at_all(monkeypatch):
    def missing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(RuntimeNotSupportedError, match="needs Keras, and this Python has none"):
        select.choose()
