"""Which runtime the user's settings lead to, and what is said where this release cannot follow."""

import pytest

from keras_tpu_ext._runtime.common import select
from keras_tpu_ext.errors import KteError, RuntimeNotSupportedError

pytestmark = pytest.mark.gate_on("keras3_jax")


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
        "keras_tpu_ext needs Keras, and this Python has none. Write: pip install 'keras>=3.8' 'tensorflow>=2.18'"
    )
    assert isinstance(caught.value, KteError)
    assert isinstance(caught.value, ImportError)
