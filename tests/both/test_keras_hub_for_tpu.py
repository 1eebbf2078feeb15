"""Backbones of keras-hub after `layers.for_tpu`: their predictions, and the kernel where it suits their attention."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.jax import attention
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext.testing import as_on_tpu

pytestmark = pytest.mark.runtimes("keras3_jax")

hub = pytest.importorskip("keras_hub")

TOKENS = 16
WORDS = np.random.default_rng(0).integers(1, 50, (2, TOKENS)).astype("int32")
PADDING = (np.arange(TOKENS)[None] < np.array([[TOKENS], [9]])).astype("int32")
TEXT = {"token_ids": WORDS, "padding_mask": PADDING}
IMAGES = np.random.default_rng(1).random((2, 32, 32, 3)).astype("float32")
DECODER = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 64,
    "intermediate_dim": 96,
}


def bert():
    return hub.models.BertBackbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=128, intermediate_dim=96, max_sequence_length=TOKENS
    )


def vit():
    return hub.models.ViTBackbone(
        image_shape=(32, 32, 3), patch_size=8, num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=96, dropout_rate=0.1
    )


def gemma():
    return hub.models.GemmaBackbone(
        **DECODER | {"hidden_dim": 64, "intermediate_dim": 192}, head_dim=32, attention_logit_soft_cap=50.0
    )


BACKBONES = {
    "BERT": (bert, {**TEXT, "segment_ids": np.zeros_like(WORDS)}),
    "ViT": (vit, IMAGES),
    "Gemma": (gemma, TEXT),
    "Llama": (lambda: hub.models.LlamaBackbone(**DECODER), TEXT),
    "Qwen": (lambda: hub.models.QwenBackbone(**DECODER), TEXT),
}


def arrays(outputs):
    return [np.asarray(one, "float32") for one in keras.tree.flatten(outputs)]


@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbone_predicts_the_same(name):
    make, inputs = BACKBONES[name]
    model = make()
    before, after = arrays(model(inputs)), arrays(kte.layers.for_tpu(model)(inputs))
    for one, other in zip(after, before, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "takes"), [("BERT", True), ("ViT", True), ("Gemma", False), ("Llama", False)])
def test_the_kernel_computes_what_suits_it(name, takes, monkeypatch):
    """Decoders see only what is before, and share keys among heads: theirs is JAX's kernel, from 512 keys on."""
    make, inputs = BACKBONES[name]
    model, calls, kernel = make(), [], attention.attention_kernel
    monkeypatch.setattr(attention, "attention_kernel", lambda *arguments: calls.append(1) or kernel(*arguments))
    expected = arrays(model(inputs))
    with as_on_tpu(), exact_operations(TracedDevices()):
        found = arrays(kte.layers.for_tpu(model)(inputs))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert bool(calls) == takes


def trained(model, inputs, options):
    with kte.strategy_scope(require="cpu", for_tpu=True, **options):
        backbone = model()
        outputs = backbone.output["pooled_output"] if isinstance(backbone.output, dict) else backbone.output[:, 0]
        classifier = keras.Model(backbone.input, keras.layers.Dense(2)(outputs))
        classifier.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    classifier.set_weights([np.cos(np.arange(w.size)).reshape(w.shape) / 9 for w in classifier.get_weights()])
    for layer in classifier._flatten_layers():
        if getattr(layer, "seed_generator", None) is not None:
            layer.seed_generator.state.assign([7, 0])
    history = classifier.fit(inputs, np.array([0, 1]), batch_size=2, epochs=2, verbose=0)
    return history.history["loss"]


@pytest.mark.parametrize("name", ["BERT", pytest.param("ViT", marks=pytest.mark.exhaustive)])
def test_two_replicas_train_a_backbone_as_one_does(name):
    make, inputs = BACKBONES[name]
    alone, together = (trained(make, inputs, {"replicas": count}) for count in (1, 2))
    np.testing.assert_allclose(together, alone, rtol=1e-4)
