"""`remat`: the same numbers, those of dropout too, and activations that are not kept."""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError

pytestmark = [pytest.mark.runtimes("keras3_jax"), pytest.mark.gate_on("keras3_jax")]
LATER = pytest.mark.exhaustive

X = np.random.default_rng(0).normal(size=(20, 6, 16)).astype("float32")


class Block(keras.layers.Layer):
    """A layer of layers, with dropout and a running mean."""

    def build(self, shape):
        self.attention = keras.layers.MultiHeadAttention(2, 8, dropout=0.2, seed=1)
        self.dropout, self.norm = keras.layers.Dropout(0.2, seed=2), keras.layers.BatchNormalization()
        self.dense = keras.layers.Dense(16, "gelu")
        self.attention.build(shape, shape)
        self.norm.build(shape)
        self.dense.build(shape)

    def call(self, x, training=None):
        x = x + self.dropout(self.attention(x, x, training=training), training=training)
        return x + self.dense(self.norm(x, training=training))


def model(blocks=2):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 16))
    x = inputs
    for _ in range(blocks):
        x = Block()(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x[:, 0]))


def trained(one, batch_size=8):
    one.compile(keras.optimizers.SGD(1e-4), "mse")
    one.fit(X, X[:, 0, :1], batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return one.get_weights()


@pytest.mark.parametrize(
    "policy",
    [
        "dots_saveable",
        *(pytest.param(one, marks=LATER) for one in ("nothing_saveable", "dots_with_no_batch_dims_saveable")),
    ],
)
def test_training_is_the_same(policy):
    for weight, other in zip(trained(kte.layers.remat(model(), policy=policy)), trained(model()), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-5)


def test_training_on_replicas_is_the_same():
    with kte.strategy_scope(require="cpu", replicas=8, for_tpu=True):
        together = trained(kte.layers.remat(model()))
    alone = trained(kte.layers.for_tpu(model()))
    for weight, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-3, atol=1e-5)


def kept(one):
    """Return the sizes of what the forward pass of a model keeps for the backward pass."""

    def loss(trainable):
        outputs, _ = one.stateless_call(trainable, [v.value for v in one.non_trainable_variables], X, training=True)
        return outputs.sum()

    values = [v.value for v in one.trainable_variables]
    pullback = jax.eval_shape(lambda values: jax.vjp(loss, values)[1], values)
    return sum(leaf.size for leaf in jax.tree.leaves(pullback))


def test_activations_are_not_kept():
    whole, products, nothing = (
        kept(model()),
        kept(kte.layers.remat(model(), policy="dots_saveable")),
        kept(kte.layers.remat(model())),
    )
    assert nothing < products < whole


def test_a_layer_is_a_block_of_its_own():
    dense = keras.layers.Dense(3)
    dense.build((None, 16))
    assert kte.layers.remat(dense) is dense
    np.testing.assert_allclose(dense(X[0]), X[0] @ dense.kernel + dense.bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: 3, "remat: `model` must be a Keras model or layer that is built; got int"),
        (lambda: keras.layers.Dense(3), "which is not built. Write model.build"),
        (lambda: model(1), "must be a model with blocks: layers of layers, whose class occurs several times"),
    ],
)
def test_what_has_no_blocks_is_refused(make, text):
    with pytest.raises(ArgumentError, match=text):
        kte.layers.remat(make())


def test_a_policy_that_is_none_is_refused():
    with pytest.raises(ArgumentError, match="remat: `policy` must be"):
        kte.layers.remat(model(), policy="full")


def test_a_loss_that_would_be_lost_is_an_error():
    dense = keras.layers.Dense(3, activity_regularizer="l2")
    inputs = keras.Input((16,))
    outer = keras.Sequential([dense])
    outputs = outer(inputs)
    kte.layers.remat(outer.layers[0])

    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x))
            return x

    layer = Adds()
    layer.build((None, 3))
    kte.layers.remat(layer)
    one = keras.Model(inputs, layer(outputs))
    one.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match="calls add_loss"):
        one.fit(X[:, 0], X[:, 0, :3], verbose=0)
