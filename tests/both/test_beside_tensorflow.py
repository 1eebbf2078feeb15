"""Both frameworks in one Python: TensorFlow leaves the accelerators alone, and parity is checked across them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_tpu_ext as kte

pytest.importorskip("tensorflow")


def run(backend, *command):
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


BEFORE = """
import tensorflow as tf
from keras_tpu_ext._runtime.jax.devices import hide_accelerators

told, original = [], tf.config.set_visible_devices
tf.config.set_visible_devices = lambda devices, kind: (told.append((devices, kind)), original(devices, kind))
hide_accelerators()  # as the scope of a TPU or of GPUs does
print(told, {device.device_type for device in tf.config.list_logical_devices()})
"""
AFTER = """
import sys
from keras_tpu_ext._runtime.jax.devices import hide_accelerators

hide_accelerators()
waiting = [one for one in sys.meta_path if type(one).__name__ == "_HideOnImport"]
import tensorflow as tf

tf.data.Dataset.range(2)
left = [one for one in sys.meta_path if type(one).__name__ == "_HideOnImport"]
print(len(waiting), len(left))
"""


# There is no accelerator here to be hidden: what a real TensorFlow is told is noted, and that it takes it.
@pytest.mark.parametrize(("program", "printed"), [(BEFORE, "[([], 'TPU'), ([], 'GPU')] {'CPU'}"), (AFTER, "1 0")])
def test_tensorflow_is_told_to_use_no_tpu_and_no_gpu(program, printed):
    finished = run("jax", "-c", program)
    assert finished.stdout.strip() == printed, finished.stderr[-2000:]


def classifier():
    inputs = keras.Input((8, 8, 1))
    hidden = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
    hidden = keras.layers.Dense(16, activation="gelu")(keras.layers.Flatten()(hidden))
    model = kte.TPUModel(inputs, keras.layers.Dense(10)(keras.layers.BatchNormalization(name="norm")(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


def digits(examples=75):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images[:examples] / 16).reshape(-1, 8, 8, 1).astype("float32"), labels[:examples]


@pytest.mark.exhaustive
def test_one_device_on_jax_and_replicas_on_tensorflow_agree_but_for_a_normalisation_of_its_replica():
    report = kte.check_parity(classifier, digits(), replicas=2, backend="tensorflow")
    assert report.frameworks == ("JAX", "TensorFlow")
    assert report.tolerance == 1e-4
    assert str(report).startswith("2 replicas on TensorFlow do not equal one device on JAX: ")
    (finding,) = report.findings
    assert finding.startswith("BatchNormalization 'norm' sees only its replica")


def test_one_device_on_tensorflow_and_replicas_on_jax_agree():
    # Also with a normalisation: on JAX it sees the whole batch.
    named = f"{Path(__file__).stem}:classifier_and_digits"
    finished = run(
        "tensorflow", "-m", "keras_tpu_ext", "parity", named, "--backend", "jax", "--replicas", "2", "--json"
    )
    report = json.loads(finished.stdout)
    assert finished.returncode == 0, report
    assert report["frameworks"] == ["TensorFlow", "JAX"]
    three = [row for row in report["rows"] if row["scenario"] == "3 steps"]
    assert {row["quantity"] for row in three} >= {"loss", "accuracy", "weights"}
    for row in three:
        assert row["off"] < 1e-4, row


def classifier_and_digits():
    return classifier, digits()
