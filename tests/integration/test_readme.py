"""The README's first block, as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kind_of_keras import IS_KERAS2

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(IS_KERAS2, reason="it imports Keras 3"),
    pytest.mark.gate_on("keras3_jax"),
]

CHANGES = {
    "as printed": ("", ""),
    "as a TPUModel": ("keras.Model(inputs", "kte.TPUModel(inputs"),
    "on three replicas": ('precision="auto"', "replicas=3"),
}


def first_block():
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize(
    "change",
    [case if case == "as printed" else pytest.param(case, marks=pytest.mark.exhaustive) for case in CHANGES],
)
def test_the_first_block_runs_and_learns(change, tmp_path):
    before, after = CHANGES[change]
    assert before in first_block()
    program = first_block().replace(before, after, 1) + "\nassert model.history.history['accuracy'][-1] > 0.8\n"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr
    assert " - samples/s: " in done.stdout
    assert "val_loss" in done.stdout
