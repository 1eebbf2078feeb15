"""The example of a large batch, as a user runs it: LAMB of TensorFlow Addons on Keras 2, of Keras on Keras 3."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_tpu_ext._runtime.select import chosen

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(chosen() == "keras3_jax", reason="it has run on the same optimizer on TensorFlow")
def test_lamb_at_1024_reaches_what_adam_reaches_at_64(shared_data):
    finished = subprocess.run(
        [sys.executable, "examples/large_batch_lamb.py", "--data", str(shared_data), "--replicas", "2"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    whose = "TensorFlow Addons' LAMB" if chosen() == "keras2_tf" else "Keras's Lamb"
    (row,) = [line for line in finished.stdout.splitlines() if line.startswith(whose)]
    assert "batch 1024" in row
    assert float(row.split()[-1]) > 0.95
