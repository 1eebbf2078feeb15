"""Versions that are too old or cannot work together: what is said before anything is imported."""

import pytest

from keras_tpu_ext.errors import RuntimeNotSupportedError
from keras_tpu_ext.machine import versions
from keras_tpu_ext.machine.versions import (
    NEWEST_TESTED,
    Versions,
    check_versions,
    find_versions,
    how_to_get_tested_versions,
    newer_than_tested,
)

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
    (Versions("2.18.0", None, "3.8.0"), False),
    (Versions("2.23.0.dev20261026", None, "3.16.0.dev2026102704"), False),
    (Versions("2.17.1"), False),  # there is no Keras, and `select` says so
]
BAD = [
    (
        Versions("2.15.1", "2.15.1", "3.15.1", tensorflow_package="tensorflow-cpu"),
        False,
        "keras 3.15.1 does not work with tensorflow 2.15.1: Keras 3 needs TensorFlow 2.18 or newer. Write: "
        "pip install 'keras==2.15.*', or: pip install --upgrade 'tensorflow-cpu>=2.18'",
    ),
    (
        Versions("2.21.0", None, "2.15.0"),
        False,
        "keras 2.15.0 does not work with tensorflow 2.21.0, which needs Keras 3. Write: pip install --upgrade "
        "'keras>=3.8' 'tensorflow>=2.18'; for Keras 2 write: pip install --no-deps tf-keras of the same version as "
        "TensorFlow, and set TF_USE_LEGACY_KERAS=1",
    ),
    (
        Versions("2.14.1", None, "2.14.0"),
        False,
        "With Keras 2 this release of keras_tpu_ext works with TensorFlow 2.15, and with tf-keras on TensorFlow 2.18 "
        "and newer ones; this is 2.14.1. Write: pip install 'tensorflow==2.15.*' 'keras==2.15.*'",
    ),
    (
        Versions("2.17.1", None, "3.5.0", "2.17.0"),
        True,
        "With Keras 2 this release of keras_tpu_ext works with TensorFlow 2.15, and with tf-keras on TensorFlow 2.18 "
        "and newer ones; this is 2.17.1. Write: pip install 'tensorflow==2.15.*' 'keras==2.15.*'",
    ),
    (
        Versions("2.21.0", None, "3.15.1"),
        True,
        "TF_USE_LEGACY_KERAS is set, and the package tf-keras, which is Keras 2 for tensorflow 2.21.0, is not "
        "installed. Write: pip install --no-deps 'tf-keras==2.21.*'; or unset TF_USE_LEGACY_KERAS.",
    ),
    (
        Versions("2.15.1", None, "2.15.0"),
        True,
        "TF_USE_LEGACY_KERAS is set, and the package tf-keras, which is Keras 2 for tensorflow 2.15.1, is not "
        "installed. Write: pip install --no-deps 'tf-keras==2.15.*'; or unset TF_USE_LEGACY_KERAS.",
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
    check_versions(versions, legacy=legacy)


@pytest.mark.parametrize(("versions", "legacy", "text"), BAD)
def test_what_does_not_is_named_with_the_pair_that_does(versions, legacy, text):
    with pytest.raises(RuntimeNotSupportedError) as caught:
        check_versions(versions, legacy=legacy)
    assert str(caught.value) == text


def test_without_tensorflow_the_legacy_setting_is_told():
    with pytest.raises(RuntimeNotSupportedError, match="is set, and this Python has no TensorFlow"):
        check_versions(Versions(keras="3.15.1"), legacy=True)


JAX = [
    (Versions(keras="3.15.1", jax="0.10.2"), ""),
    (Versions(keras="3.8.0", jax="0.5.2"), ""),
    (Versions(keras="3.8.0", jax="0.6.0"), ""),
    (Versions(keras="3.10.0", jax="0.10.2"), ""),
    (Versions(keras="3.15.1", jax="0.11.0.dev20261101"), ""),
    (Versions("2.16.1", None, "3.15.1", jax="0.10.2"), ""),  # TensorFlow is for tf.data only
    (
        Versions(keras="3.5.0", jax="0.5.2"),
        "keras 3.5.0 is too old: this release of keras_tpu_ext works with keras 3.8 and jax 0.5.2, and newer ones. "
        "Write: pip install --upgrade 'keras>=3.8'",
    ),
    (
        Versions(keras="3.5.0", jax="0.4.33"),
        "keras 3.5.0 and jax 0.4.33 are too old: this release of keras_tpu_ext works with keras 3.8 and jax 0.5.2, "
        "and newer ones. Write: pip install --upgrade 'keras>=3.8' 'jax>=0.5.2'",
    ),
    (
        Versions(keras="3.9.2", jax="0.7.2"),
        "keras 3.9.2 does not work with jax 0.7.2: Keras before 3.10 needs JAX up to 0.6.0. Write: pip install "
        "--upgrade 'keras>=3.10'",
    ),
]
OLD = [
    (
        Versions("2.17.1", None, "3.8.0"),
        "tensorflow 2.17.1 is too old: this release of keras_tpu_ext works with keras 3.8 and tensorflow 2.18, and "
        "newer ones. Write: pip install --upgrade 'tensorflow>=2.18'",
    ),
    (
        Versions("2.17.1", "2.17.1", "3.5.0", tensorflow_package="tensorflow-cpu"),
        "keras 3.5.0 and tensorflow 2.17.1 are too old: this release of keras_tpu_ext works with keras 3.8 and "
        "tensorflow 2.18, and newer ones. Write: pip install --upgrade 'keras>=3.8' 'tensorflow-cpu>=2.18'",
    ),
]


@pytest.mark.parametrize(("versions", "text"), JAX)
def test_on_jax_too(versions, text):
    if not text:
        check_versions(versions, backend="jax")
        return
    with pytest.raises(RuntimeNotSupportedError) as caught:
        check_versions(versions, backend="jax")
    assert str(caught.value) == text


@pytest.mark.parametrize(("versions", "text"), OLD)
def test_what_is_too_old_is_told_with_the_line_to_write(versions, text):
    with pytest.raises(RuntimeNotSupportedError) as caught:
        check_versions(versions)
    assert str(caught.value) == text


def test_packages_that_are_imported_already_work_together():
    both = Versions("2.21.0", "2.20.0", "3.15.1")
    check_versions(both, tensorflow_is_imported=True)
    with pytest.raises(RuntimeNotSupportedError, match="are both installed"):
        check_versions(both)


@pytest.mark.parametrize(
    ("versions", "options", "newer", "tested"),
    [
        (Versions("2.21.0", None, "3.15.1"), {}, "", ""),
        (Versions("2.21.9", None, "3.15.9"), {}, "", ""),  # of the same minor version
        (Versions("2.30.0", None, "3.15.1"), {"backend": "jax"}, "", ""),
        (Versions(keras="3.99.0", jax="0.10.2"), {"backend": "jax"}, "keras 3.99.0 is newer", "keras 3.15.1"),
        (
            Versions(keras="3.99.0", jax="0.99.0"),
            {"backend": "jax"},
            "keras 3.99.0 and jax 0.99.0 are newer",
            "keras 3.15.1 and jax 0.10.2",
        ),
        (
            Versions("2.99.0", None, "3.99.0", "2.99.0"),
            {"legacy": True},
            "tensorflow 2.99.0 and tf_keras 2.99.0 are",
            "tensorflow 2.21.0 and tf_keras 2.21.0",
        ),
        (Versions(keras="3.15.1"), {"backend": "torch"}, "", ""),
    ],
)
def test_what_is_newer_than_tested_is_one_line_without_advice(versions, options, newer, tested):
    check_versions(versions, **options)
    note = newer_than_tested(versions, **options)
    assert note.startswith(newer)
    assert bool(note) == bool(newer)
    assert note.endswith(f"than what keras_tpu_ext was tested with: {tested}" if newer else "")


def test_the_tested_versions_are_not_installed_beside_the_libtpu_of_an_image():
    assert how_to_get_tested_versions(Versions(keras="3.99.0", jax="0.99.0")) == (
        f"write: pip install keras=={NEWEST_TESTED['keras']} jax=={NEWEST_TESTED['jax']}"
    )
    assert "pip" not in how_to_get_tested_versions(Versions(keras="3.99.0", jax="0.99.0", libtpu="0.0.99"))


def test_other_backends_are_not_judged_by_jax():
    check_versions(Versions(keras="3.5.0", jax="0.4.30"), backend="torch")


def test_a_package_of_another_name_is_found(monkeypatch):
    there = {"tf-nightly-cpu": "2.22.0.dev20260905", "keras-nightly": "3.16.0.dev2026102704"}
    monkeypatch.setattr(versions, "installed_version", there.get)
    found = find_versions()
    assert (found.tensorflow, found.keras, found.jax) == (there["tf-nightly-cpu"], there["keras-nightly"], None)
    assert found.tensorflow_package == "tf-nightly-cpu"
