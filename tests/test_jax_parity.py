"""What `check_parity` finds in a plain model on JAX: its numbers are right, where it can be trained at all."""

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


def rows_by_key(report):
    return {(row.scenario, row.quantity): row for row in report.rows}


@pytest.mark.slow
def test_a_plain_model_is_right_where_the_batch_divides_and_fails_where_it_does_not():
    report = kte.check_parity(stock, batch(32), replicas=2, steps=1)
    rows = rows_by_key(report)
    assert not report.ok
    assert [rows["one step", name].ok for name in ("loss", "mae", "weights")] == [True] * 3
    assert rows["an inf in one replica", "skipped step"].ok
    for tail in (
        ("uneven tail, evaluate", "all"),
        ("uneven tail, predict", "predictions"),
        ("uneven tail, fit", "all"),
    ):
        assert rows[tail].ok is False
        assert rows[tail].note.startswith("fails on 2 replicas: IndivisibleError")
