"""Which runtime the user's settings lead to, and what is said where this release cannot follow."""

import importlib
import importlib.metadata

import keras
import pytest

from keras_tpu_ext._runtime import select
from keras_tpu_ext.errors import KteError, RuntimeNotSupportedError

CHOOSE = "import os; os.environ['KERAS_BACKEND'] = 'tensorflow'; os.environ.pop('TF_USE_LEGACY_KERAS', None)"
WORKS = "This release of keras_tpu_ext works on Keras 3 on TensorFlow (KERAS_BACKEND=tensorflow"


@pytest.mark.parametrize(
    ("environ", "version", "backend", "expected"),
    [
        ({}, "3.15.1", "tensorflow", "keras3_tf"),
        ({}, "3.15.1", "jax", "keras3_jax"),
        ({}, "3.15.1", "torch", "keras3_torch"),
        ({}, "10.0.0", "tensorflow", "keras3_tf"),
        ({}, "3.0.0rc1", "tensorflow", "keras3_tf"),
        ({}, "2.15.0", None, "keras2_tf"),
        ({"KERAS_BACKEND": "jax"}, "2.15.0", None, "keras2_tf"),
        ({"TF_USE_LEGACY_KERAS": "1"}, "3.15.1", None, "keras2_tf"),
        ({"TF_USE_LEGACY_KERAS": "True"}, "3.15.1", None, "keras2_tf"),
        ({"TF_USE_LEGACY_KERAS": "true"}, "3.15.1", "jax", "keras2_tf"),
        ({"TF_USE_LEGACY_KERAS": "1"}, None, None, "keras2_tf"),
        ({"TF_USE_LEGACY_KERAS": "0"}, "3.15.1", "tensorflow", "keras3_tf"),
        ({"TF_USE_LEGACY_KERAS": ""}, "3.15.1", "tensorflow", "keras3_tf"),
        ({"TF_USE_LEGACY_KERAS": "false"}, "3.15.1", "jax", "keras3_jax"),
    ],
)
def test_the_runtime_follows_from_the_users_settings(environ, version, backend, expected):
    before = dict(environ)
    assert select.runtime_name(environ, version, backend) == expected
    assert environ == before  # the choice is read, never made


def test_without_keras_the_error_says_what_to_install():
    with pytest.raises(RuntimeNotSupportedError) as caught:
        select.runtime_name({}, None, None)
    assert str(caught.value) == (
        "keras_tpu_ext needs Keras, and this Python has none. Write: pip install 'keras-tpu-ext[tensorflow]'"
    )
    assert isinstance(caught.value, KteError)
    assert isinstance(caught.value, ImportError)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


def test_this_process_is_on_keras_3_with_the_backend_that_keras_chose():
    name = {"tensorflow": "keras3_tf", "jax": "keras3_jax"}[keras.backend.backend()]
    assert select.load().__name__ == f"keras_tpu_ext._runtime.{name}"


@pytest.mark.parametrize("backend", ["torch", "openvino", "numpy"])
def test_another_backend_is_refused_with_what_works_and_what_to_write(monkeypatch, backend):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(RuntimeNotSupportedError) as caught:
        select.load()
    text = str(caught.value)
    assert text.startswith(WORKS)
    assert f"This process is on keras3_{backend} (keras {keras.__version__}, KERAS_BACKEND={backend})." in text
    assert text.endswith(f"Before the first import of keras, write: {CHOOSE}")


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_legacy_keras_is_refused_without_importing_keras_3(monkeypatch, value):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", value)
    monkeypatch.setattr(keras.backend, "backend", lambda: pytest.fail("Keras 3 was asked, but is not in use"))
    with pytest.raises(RuntimeNotSupportedError) as caught:
        select.load()
    text = str(caught.value)
    assert text.startswith(WORKS)
    assert f"This process is on keras2_tf (keras {keras.__version__}, TF_USE_LEGACY_KERAS is set)." in text
    assert text.endswith(CHOOSE)


def test_keras_2_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "2.15.0")
    with pytest.raises(RuntimeNotSupportedError) as caught:
        select.load()
    text = str(caught.value)
    assert "This process is on keras2_tf (keras 2.15.0)." in text
    assert text.endswith(f"{CHOOSE}; and run: pip install 'keras>=3' 'tensorflow>=2.16'")


def test_no_keras_at_all(monkeypatch):
    def missing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(RuntimeNotSupportedError, match="needs Keras, and this Python has none"):
        select.load()
