"""What `check_parity` finds in models that are not exact on TensorFlow."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte


def batch(examples, weighted=False):
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, 12, size=(examples, 5))
    targets = rng.normal(size=(examples, 1)).astype("float32")
    weights = rng.uniform(0.1, 3.0, size=examples).astype("float32")
    return (tokens, targets, weights) if weighted else (tokens, targets)


def stock():
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, activation="tanh")(inputs)))
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse", metrics=["mae"])
    return model


def local():
    inputs = keras.Input((5,))
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dense(6)(inputs))
    model = kte.TPUModel(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.fixture(scope="module")
def stock_report():
    return kte.check_parity(stock, batch(32), replicas=2, steps=1)


@pytest.fixture(scope="module")
def local_report():
    return kte.check_parity(local, batch(32), replicas=2, steps=1)


def rows_by_key(report):
    return {(row.scenario, row.quantity): row for row in report.rows}


@pytest.mark.slow
def test_a_plain_model_is_caught_on_the_tail_and_on_the_inf(stock_report):
    rows = rows_by_key(stock_report)
    assert not stock_report.ok
    assert str(stock_report).startswith("2 replicas do not equal one device: ")
    assert rows["one step", "loss"].ok
    assert rows["one step", "gradients"].ok
    assert rows["uneven tail, fit", "gradients"].ok is False
    assert rows["uneven tail, fit", "gradients"].off > 0.01
    assert "most in dense" in rows["uneven tail, fit", "gradients"].note
    skipped = rows["an inf in one replica", "skipped step"]
    assert skipped.ok is False
    assert skipped.note == "one device: the step is skipped; 2 replicas: inf or NaN reaches the weights"
    (finding,) = stock_report.findings
    assert finding.startswith("The model is a plain keras.Model")
    assert "Write kte.TPUModel(inputs, outputs), or kte.TPUModel.from_model(model)" in finding


@pytest.mark.slow
def test_a_normalisation_that_sees_its_replica_only_is_named_with_the_cure(local_report):
    assert not local_report.ok
    assert rows_by_key(local_report)["one step", "gradients"].off > 1e-3
    (finding,) = local_report.findings
    assert finding.startswith("BatchNormalization 'norm' ")
    assert "sees only its replica" in finding
    assert finding.endswith("Write keras.layers.BatchNormalization(..., synchronized=True).")
