"""What is Keras 3's own about `OneHotEmbedding`: LoRA and quantisation."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras3_jax"), pytest.mark.gate_on("keras3_jax")]

IDS = np.array([[0, 3, 9]])


def test_the_table_may_be_given():
    table = np.arange(40.0).reshape(10, 4)
    np.testing.assert_array_equal(kte.layers.OneHotEmbedding(10, 4, weights=table)(IDS)[0], table[IDS[0]])


def test_lora_is_that_of_keras():
    layers = [kind(10, 4, lora_rank=2) for kind in (keras.layers.Embedding, kte.layers.OneHotEmbedding)]
    for layer in layers:
        layer.build((None, 3))
        layer.set_weights([np.random.default_rng(i).normal(size=w.shape) for i, w in enumerate(layer.weights)])
    assert [weight.name for weight in layers[1].trainable_weights] == ["lora_embeddings_a", "lora_embeddings_b"]
    np.testing.assert_array_equal(*[keras.ops.convert_to_numpy(layer(IDS)) for layer in layers])


def test_lora_trains():
    inputs = keras.Input((3,), dtype="int32")
    layer = kte.layers.OneHotEmbedding(10, 4, lora_rank=2)
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    table, _, before = (weight.numpy() for weight in layer.weights)
    model.fit(IDS, np.ones((1, 3, 4)), verbose=0)
    np.testing.assert_array_equal(layer.weights[0].numpy(), table)
    assert np.abs(layer.lora_embeddings_b.numpy() - before).max() > 0


def test_quantisation_is_refused():
    layer = kte.layers.OneHotEmbedding(10, 4)
    layer.build((None, 3))
    with pytest.raises(NotImplementedError, match="OneHotEmbedding"):
        layer.quantize("int8")
