"""Losses added to a model or a layer, with the numbers that Keras 2 gave."""

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
