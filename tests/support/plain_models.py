"""A plain `keras.Model` for `check_parity`, which every process of a check imports, and a batch for it."""

from __future__ import annotations

import keras
import numpy as np


def build_plain():
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, activation="tanh")(inputs)))
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse", metrics=["mae"])
    return model


def batch(examples):
    rng = np.random.default_rng(7)
    return rng.integers(0, 12, size=(examples, 5)), rng.normal(size=(examples, 1)).astype("float32")


def rows_by_key(report):
    return {(row.scenario, row.quantity): row for row in report.rows}


def build_attention():
    """Return a plain model with attention of 128 tokens, a length that Keras gives to a kernel on a TPU."""
    inputs = keras.Input((128, 4))
    x = keras.layers.MultiHeadAttention(1, 8, name="attention")(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="out")(x))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def sequences(examples):
    """Return a batch for `build_attention`."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((examples, 128, 4)).astype("float32"), np.ones((examples, 128, 1), "float32")
