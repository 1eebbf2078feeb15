"""The example that fine-tunes a Gemma of keras-hub, as a user runs it: sharded over eight rehearsed devices."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_gemma_learns_sharded_and_writes_before_and_after():
    arguments = ["--epochs", "1", "--length", "128", "--batch-size", "4"]
    finished = subprocess.run(
        [sys.executable, "examples/gemma_lora.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = finished.stdout.split("\nResult\n------\n")[1].strip().splitlines()
    found = dict(re.split(r" {3,}", row, maxsplit=1) for row in rows)
    assert "sharded over a mesh of data 8" in found["ran on"]
    every, trained = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", found["parameters"]))
    assert 0 < trained < every / 10
    each, whole = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", found["on each device"]))
    assert each < whole / 7
    first, last = (float(number) for number in re.findall(r"[\d.]+", found["loss"]))
    assert last <= first < 6  # of 256 bytes, by chance 5.5
    assert found["before"].startswith("'The for statement is used to")
    assert found["after"].startswith("'The for statement is used to")
