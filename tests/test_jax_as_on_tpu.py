"""A vision transformer of 256 patches on the paths of a TPU: Keras's own step, and that of this package."""

import runpy
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.jax import attention
from keras_tpu_ext.testing import as_on_tpu

pytestmark = pytest.mark.runtimes("keras3_jax", reason="Keras takes other paths on a TPU on JAX only")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield runpy.run_path(str(EXAMPLES / "vision_transformer.py"))
    finally:
        sys.path.remove(str(EXAMPLES))


def update_of(example, scope, weights, data, **options):
    """Return what three steps add to the weights."""
    with scope:
        model = example["network"](**options)
        model.compile(keras.optimizers.SGD(0.1), example["loss"]())
    model.set_weights(weights)
    model.fit(*data, batch_size=8, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(a - b) for a, b in zip(model.get_weights(), weights, strict=True)])


@pytest.fixture(scope="module")
def data(example):
    import sklearn.datasets

    digits = sklearn.datasets.load_digits()
    return example["enlarged"](digits.images[:24, ..., None].astype("float32") / 16), digits.target[:24]


@pytest.fixture(scope="module")
def expected(example, data):
    """The weights to start from, and the update on a CPU."""
    keras.utils.set_random_seed(0)
    weights = example["network"]().get_weights()
    return weights, update_of(example, kte.strategy_scope(require="cpu", replicas=1), weights, data)


def off(got, expected):
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.exhaustive
@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_vision_transformer(replicas, example, data, expected, monkeypatch):
    weights, update = expected
    seen, splash = [], attention.splash_attention
    monkeypatch.setattr(
        attention, "splash_attention", lambda *args, **kw: seen.append(args[0].shape) or splash(*args, **kw)
    )
    with as_on_tpu():
        scope = kte.strategy_scope(require="cpu", replicas=replicas)
        got = update_of(example, scope, weights, data, flash_attention=True)
    assert set(seen) == {(8 // replicas, 256, 3, 16)}
    assert off(got, update) < 1e-5


@pytest.mark.exhaustive
@pytest.mark.xfail(strict=True, reason="Keras 3.15.1: docs/upstream/attention_on_tpu.md; mended when this passes")
def test_vision_transformer_of_stock_keras(example, data, expected):
    weights, update = expected
    with as_on_tpu():
        got = update_of(example, kte.strategy_scope(require="cpu", replicas=1, exact=False), weights, data)
    assert off(got, update) < 1e-5


def test_devices_stay():
    import jax

    with as_on_tpu():
        assert jax.devices()[0].platform == "cpu"
        assert keras.distribution.list_devices()[0].startswith("cpu")


def test_it_ends_after_an_error():
    x = np.ones((1, 128, 1, 8), "float32")
    with pytest.raises(ZeroDivisionError), as_on_tpu():
        raise ZeroDivisionError
    row = np.arange(128.0, dtype="float32")[None, :, None, None] * np.ones((1, 128, 1, 8), "float32")
    assert np.allclose(keras.ops.dot_product_attention(x, x, row), 63.5)  # the mean of all, and not of those before


@pytest.mark.xfail(strict=True, reason="Keras 3.15.1: docs/upstream/attention_on_tpu.md; mended when this passes")
def test_stock_attention():
    x = np.ones((1, 128, 1, 8), "float32")
    row = np.arange(128.0, dtype="float32")[None, :, None, None] * np.ones((1, 128, 1, 8), "float32")
    with as_on_tpu():
        assert np.allclose(keras.ops.dot_product_attention(x, x, row), 63.5)
