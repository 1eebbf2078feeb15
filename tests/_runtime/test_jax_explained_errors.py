"""Errors of Keras and JAX in a compiled step that would not say which object they are about."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax")
ops = keras.ops


class MetricInCall(keras.layers.Layer):
    def __init__(self):
        super().__init__(name="counting")
        self.metric = keras.metrics.Mean(name="inner")

    def call(self, x):
        self.metric.update_state(x)
        return x


class SeedInBranch(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return ops.cond(ops.sum(x) > 0, lambda: x + keras.random.normal(ops.shape(x), seed=self.seeds), lambda: x)


def recomputed():
    with keras.RematScope("full"):
        attention = keras.layers.MultiHeadAttention(2, 3, name="attention")
    return lambda x: attention(x, x, use_causal_mask=True)


@pytest.mark.parametrize(
    ("layer", "parts"),
    [
        (MetricInCall, ("layer `counting` updates the metric `inner`", "another output of the model")),
        (SeedInBranch, ("SeedGenerator", "test_jax_explained_errors.py", "traced for cond", "Draw before")),
        (recomputed, ("keras.RematScope (attention)", "use_causal_mask", 'mode="activations"')),
    ],
)
def test_the_object_and_the_cure_are_named(layer, parts):
    with kte.strategy_scope(require="cpu", replicas=2):
        inputs = keras.Input((4, 6))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer()(inputs))))
        model.compile("sgd", "mse")
    x = np.ones((8, 4, 6), "float32")
    with pytest.raises(kte.errors.ArgumentError) as error:
        model.fit(x, x[:, 0, :1], batch_size=4, verbose=0)
    assert all(part in str(error.value) for part in parts)
    assert error.value.__cause__ is not None


def test_other_errors_stay_as_they_are():
    class Fails(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                raise ZeroDivisionError("mine")
            return x

    with kte.strategy_scope(require="cpu", replicas=2):
        model = keras.Sequential([keras.Input((6,)), Fails(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ZeroDivisionError, match="mine"):
        model.fit(np.ones((6, 6)), np.ones((6, 1)), batch_size=4, verbose=0)
