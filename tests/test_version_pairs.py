"""Versions that cannot work together: what is said before anything is imported."""

import pytest

from keras_tpu_ext._version_pairs import Versions, check_pairs
from keras_tpu_ext.errors import RuntimeNotSupportedError

pytestmark = pytest.mark.gate_on("keras3_jax")

GOOD = [
    (Versions("2.15.1", "2.15.1", "2.15.0"), False),
    (Versions("2.15.1", None, "2.15.0", "2.15.0"), True),
    (Versions("2.21.0", "2.21.0", "3.15.1"), False),
    (Versions("2.21.0", None, "3.15.1", "2.21.0"), True),
    (Versions("2.21.0", None, "3.15.1", "2.16.0"), True),  # tried: an older tf-keras trains all the same
    (Versions("2.20.0", None, "3.15.1", None, "2.20.0", "0.0.31"), False),
    (Versions("2.21.0", None, "3.15.1", None, None, "0.0.51"), False),  # libtpu is JAX's
    (Versions(None, None, "3.15.1"), False),
]
BAD = [
    (
        Versions("2.15.1", "2.15.1", "3.15.1"),
        False,
        "keras 3.15.1 does not work with tensorflow 2.15.1: Keras 3 needs TensorFlow 2.16 or newer. Write: "
        "pip install 'keras==2.15.*', or: pip install 'tensorflow>=2.16'",
    ),
    (
        Versions("2.21.0", None, "2.15.0"),
        False,
        "keras 2.15.0 does not work with tensorflow 2.21.0, which needs Keras 3. Write: pip install 'keras>=3'; for "
        "Keras 2 on this TensorFlow write: pip install --no-deps 'tf-keras==2.21.*', and set TF_USE_LEGACY_KERAS=1",
    ),
    (
        Versions("2.21.0", None, "3.15.1"),
        True,
        "TF_USE_LEGACY_KERAS is set, and the package tf-keras, which is Keras 2 for tensorflow 2.21.0, is not "
        "installed. Write: pip install --no-deps 'tf-keras==2.21.*'; or unset TF_USE_LEGACY_KERAS to use Keras 3.",
    ),
    (
        Versions("2.20.0", None, "3.15.1", None, "2.20.0", "0.0.32"),
        False,
        "tensorflow-tpu 2.20.0 ends the process when it is imported with libtpu 0.0.32; it works with libtpu up to "
        "0.0.31. Write: pip install 'libtpu==0.0.31'",
    ),
    (
        Versions("2.21.0", "2.20.0", "3.15.1", "2.21.0"),
        True,
        "tensorflow 2.21.0 and tensorflow-cpu 2.20.0 are both installed, and their files are in one folder (tf-keras "
        "asks for tensorflow). Write: pip uninstall -y tensorflow tensorflow-cpu, and then: pip install "
        "tensorflow-cpu==2.20.0; install tf-keras with --no-deps.",
    ),
]


@pytest.mark.parametrize(("versions", "legacy"), GOOD)
def test_what_works_together_passes(versions, legacy):
    check_pairs(versions, legacy=legacy)


@pytest.mark.parametrize(("versions", "legacy", "text"), BAD)
def test_what_does_not_is_named_with_the_pair_that_does(versions, legacy, text):
    with pytest.raises(RuntimeNotSupportedError) as caught:
        check_pairs(versions, legacy=legacy)
    assert str(caught.value) == text


def test_without_tensorflow_the_legacy_setting_is_told():
    with pytest.raises(RuntimeNotSupportedError, match="is set, and this Python has no TensorFlow"):
        check_pairs(Versions(keras="3.15.1"), legacy=True)
