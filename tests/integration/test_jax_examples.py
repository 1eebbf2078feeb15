"""The examples on JAX, by setting `KERAS_BACKEND=jax` alone, in an environment without TensorFlow."""

from __future__ import annotations

import importlib.util

import pytest

import example_runs

pytestmark = pytest.mark.runtimes("keras3_jax")


def table(*arguments: str) -> dict[str, str]:
    """Run an example on JAX and return the rows of its table by name."""
    return example_runs.table(example_runs.run(*arguments, KERAS_BACKEND="jax"))


def test_tensorflow_is_not_there():
    assert importlib.util.find_spec("tensorflow") is None


@pytest.mark.exhaustive
@pytest.mark.slow
def test_digits(tmp_path):
    rows = table("examples/fashion_mnist.py", "--epochs", "4", "--output", str(tmp_path))
    assert rows["ran on"].startswith("8 replicas on CPU")
    assert float(rows["test accuracy"]) > 0.8  # chance is 0.1
    assert rows["parity"].endswith("equal to float tolerance")
    assert (tmp_path / "fashion_mnist.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_reuters(tmp_path, shared_data):
    rows = table("examples/reuters.py", "--data", str(shared_data), "--epochs", "2", "--output", str(tmp_path))
    assert float(rows["best val"].split()[0]) > 0.45  # the most frequent topic is 0.36
    assert rows["parity"].endswith("equal to float tolerance")


@pytest.mark.exhaustive  # test_keras3_tf_examples.py has it on TensorFlow
@pytest.mark.slow
def test_dcgan(tmp_path):
    rows = table("examples/dcgan.py", "--epochs", "1", "--output", str(tmp_path))
    assert rows["parity"].endswith("equal to float tolerance")
    assert (tmp_path / "dcgan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_vision_transformer(tmp_path):
    rows = table("examples/vision_transformer.py", "--epochs", "1", "--output", str(tmp_path))
    for name in ("parity", "as on 1 chip", "as on 2 chips", "as on 8 chips"):
        assert rows[name].endswith("equal to float tolerance")
