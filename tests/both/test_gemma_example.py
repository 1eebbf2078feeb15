"""The example that fine-tunes a Gemma of keras-hub, as a user runs it: sharded over eight rehearsed devices."""

from __future__ import annotations

import re

import pytest

from example_runs import run, table


@pytest.mark.exhaustive
def test_gemma_learns_sharded_and_writes_before_and_after():
    arguments = ["--epochs", "1", "--length", "128", "--batch-size", "4"]
    found = table(run("examples/gemma_lora.py", *arguments, KERAS_BACKEND="jax", TF_CPP_MIN_LOG_LEVEL="3"))
    assert "sharded over a mesh of data 8" in found["ran on"]
    every, trained = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", found["parameters"]))
    assert 0 < trained < every / 10
    each, whole = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", found["on each device"]))
    assert each < whole / 7
    first, last = (float(number) for number in re.findall(r"[\d.]+", found["loss"]))
    assert last <= first < 6  # of 256 bytes, by chance 5.5
    assert found["before"].startswith("'The for statement is used to")
    assert found["after"].startswith("'The for statement is used to")
