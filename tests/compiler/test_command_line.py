"""The examples from the command line, as a user asks about them: does it compile, does it fit, how fast may it be?"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kind_of_keras import IS_KERAS2

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


MODULE = """
from keras_tpu_ext._runtime import keras

def build():
    inputs = keras.Input((256,))
    x = keras.layers.Dense(256, activation="relu", name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(10, name="head")(x), name="own")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model
"""


def reported(function, folder, tmp_path):
    """Return what the command prints as JSON for a v5e-8 and a batch of 1024, and its picture."""
    command = Path(sys.executable).with_name("keras-tpu-ext")
    picture = tmp_path / "preflight.png"
    arguments = ["preflight", function, "--target", "v5e-8", "--batch-size", "1024", "--json", "--quiet"]
    done = subprocess.run(
        [command, *arguments, "--plot", picture],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["target"], report["global_batch"], report["per_replica_batch"]) == ("v5e-8", 1024, 128)
    assert report["collectives"]["count"] >= 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    return report


@pytest.mark.gate_on("keras3_jax")
def test_a_model_of_ones_own(tmp_path):
    (tmp_path / "own_models.py").write_text(MODULE)
    report = reported("own_models:build", tmp_path, tmp_path)
    assert {"hidden", "head"} <= {layer["layer"] for layer in report["layers"]}


@pytest.mark.skipif(IS_KERAS2, reason="the examples are for Keras 3")
@pytest.mark.exhaustive
@pytest.mark.parametrize("example", ["fashion_mnist", "reuters", "dcgan"])
def test_an_example(example, tmp_path):
    assert reported(f"{example}:for_preflight", EXAMPLES, tmp_path)["samples_per_sec"] > 10_000


def test_a_training_is_planned(tmp_path):
    data = (
        "\nimport numpy\n\ndef data():\n    return numpy.zeros((4096, 256), 'float32'), numpy.zeros(4096, 'int32')\n"
    )
    (tmp_path / "own_training.py").write_text(MODULE + data)
    command = [Path(sys.executable).with_name("keras-tpu-ext"), "plan", "own_training:build"]
    options = ["--data", "own_training:data", "--epochs", "100", "--batch-size", "1024", "--json", "--quiet"]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ok"], found["target"], found["steps_per_epoch"]) == (True, "v5e-8", 4)
    low, high = found["seconds_range"]
    assert 0 < low < found["seconds"] < high
    assert found["buckets"]["training"] > 0 < found["buckets"]["compile"]
