"""Losses and metrics added to a model or a layer, with the numbers that Keras 2 gave."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.keras import backend as K  # noqa: N812, the name that programs give it

from keras_tpu_ext import strategy_scope
from keras_tpu_ext.dropin import OutOfReachError

pytestmark = pytest.mark.runtimes("keras3_jax")
layers = tf.keras.layers

X = np.arange(1.0, 13.0, dtype="float32").reshape(6, 2) / 12
W = np.array([[0.5], [-0.25]], "float32")


def trained(add, exact):
    """Train one step of SGD at the rate 0.1; return history's loss and the kernel."""
    with strategy_scope(require="cpu", exact=exact):
        x = layers.Input((2,))
        dense = layers.Dense(1, use_bias=False, weights=[W])
        model = tf.keras.Model(x, dense(x))
        add(model, dense, x)
        model.compile(tf.keras.optimizers.SGD(0.1))
    history = model.fit(X, batch_size=6, verbose=0)
    return history.history["loss"][0], dense.get_weights()[0]


@pytest.mark.parametrize("exact", [False, True])
def test_tensors_of_a_functional_model(exact):
    def add(model, dense, x):
        model.add_loss(K.mean(K.square(model.output - 1)))
        model.add_loss(2 * tf.reduce_mean(dense(x)))

    loss, kernel = trained(add, exact)
    out = X @ W
    assert loss == pytest.approx(np.mean((out - 1) ** 2) + 2 * out.mean(), rel=1e-5)
    gradient = X.T @ (2 * (out - 1) + 2) / len(X)
    np.testing.assert_allclose(kernel, W - 0.1 * gradient, rtol=1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_a_loss_of_each_example_shows_its_mean_and_trains_on_its_sum(exact):
    loss, kernel = trained(lambda model, dense, x: model.add_loss(tf.square(model.output)), exact)
    out = X @ W
    assert loss == pytest.approx(np.mean(out**2), rel=1e-5)
    np.testing.assert_allclose(kernel, W - 0.1 * X.T @ (2 * out), rtol=1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_functions_of_weights_are_asked_in_each_step(exact):
    loss, kernel = trained(
        lambda model, dense, x: dense.add_loss(lambda: tf.keras.regularizers.l2(0.3)(dense.kernel)), exact
    )
    assert loss == pytest.approx(0.3 * np.sum(W**2), rel=1e-5)
    np.testing.assert_allclose(kernel, W - 0.1 * 0.6 * W, rtol=1e-5)


class Center(layers.Layer):
    """Shows the mean of what goes through it."""

    def call(self, x):
        """Add it."""
        self.add_metric(tf.reduce_mean(x), name="center", aggregation="mean")
        return x


class Outer(layers.Layer):
    """Has a layer with a metric."""

    def __init__(self):
        super().__init__()
        self.center = Center()

    def call(self, x):
        """Call it."""
        return self.center(x)


@pytest.mark.parametrize("exact", [False, True])
def test_metrics_of_calls_and_of_tensors(exact):
    with strategy_scope(require="cpu", exact=exact):
        x = layers.Input((2,))
        model = tf.keras.Model(x, layers.Dense(1, use_bias=False, weights=[W])(Outer()(x)))
        model.add_metric(tf.square(model.output), name="squares", aggregation="mean")
        model.compile(tf.keras.optimizers.SGD(0.0), "mse")
    weights = model.get_weights()
    history = model.fit(
        X, np.zeros(6), batch_size=4, shuffle=False, validation_data=(X, np.zeros(6)), verbose=0
    ).history
    assert [*history] == ["loss", "center", "squares", "val_loss", "val_center", "val_squares"]
    assert history["center"] == pytest.approx([(X[:4].mean() + X[4:].mean()) / 2])
    for name in ("squares", "val_squares", "loss"):
        assert history[name] == pytest.approx([np.mean((X @ W) ** 2)], rel=1e-5)
    model.predict(X, verbose=0)
    np.testing.assert_array_equal(model.get_weights(), weights)


def test_a_metric_that_a_layer_calls_is_out_of_reach():
    layer = Center()
    layer.own = keras.metrics.Mean()
    with pytest.raises(
        OutOfReachError, match=r"Center\.add_metric of a keras\.metrics\.Metric.*of a tensor, which has"
    ):
        layer(X)


def test_a_saved_model_has_the_outputs(tmp_path):
    x = layers.Input((2,))
    model = tf.keras.Model(x, layers.Dense(1)(x))
    model.add_loss(tf.reduce_mean(model.output))
    model.save(tmp_path / "model.h5")
    loaded = tf.keras.models.load_model(tmp_path / "model.h5", compile=False)
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6)


def test_a_tensor_of_another_model_is_out_of_reach():
    x = layers.Input((2,))

    class Own(keras.Model):
        """A subclassed model."""

    with pytest.raises(OutOfReachError, match=r"Own\.add_loss of a tensor of a functional model.*a layer through"):
        Own().add_loss(tf.reduce_mean(layers.Dense(1)(x)))
