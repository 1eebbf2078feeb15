"""The example of a large batch, as a user runs it: LAMB of TensorFlow Addons on Keras 2, of Keras on Keras 3."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_tpu_ext._runtime.common.select import chosen

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.runtimes("keras3_tf", "keras2_tf", reason="on JAX it is the same optimizer"),
    pytest.mark.gate_on("keras2_tf215"),
]


def run(shared_data, *arguments):
    return subprocess.run(
        [sys.executable, "examples/large_batch_lamb.py", "--data", str(shared_data), "--replicas", "2", *arguments],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def accuracy_of_lamb(finished):
    whose = "TensorFlow Addons' LAMB" if chosen() == "keras2_tf" else "Keras's Lamb"
    (row,) = [line for line in finished.stdout.splitlines() if line.startswith(whose)]
    assert "batch 1024" in row
    return float(row.split()[-1])


@pytest.mark.exhaustive
def test_a_few_epochs_are_not_enough_and_it_says_so(shared_data):
    finished = run(shared_data, "--epochs", "2")
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert 0.2 < accuracy_of_lamb(finished) < 0.9  # chance is 0.1; Adam has 0.9 and more by then
    assert "difference   -" in finished.stdout


@pytest.mark.slow
@pytest.mark.exhaustive
def test_lamb_at_1024_reaches_what_adam_reaches_at_64(shared_data):
    finished = run(shared_data)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert accuracy_of_lamb(finished) > 0.95
