"""Backbones of keras-hub after `layers.for_tpu`: their predictions, and the kernel where it suits their attention."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from fit_programs import CPU, TPU, names_of, programs_of_fit, programs_without_fit, rows_of
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
    "hidden_dim": 128,
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


def gpt2():
    return hub.models.GPT2Backbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=128, intermediate_dim=96, max_sequence_length=TOKENS
    )


def gemma():
    """A small Gemma-2, with all that it has."""
    return hub.models.GemmaBackbone(
        **DECODER | {"hidden_dim": 64, "intermediate_dim": 192},
        head_dim=128,
        attention_logit_soft_cap=2.0,
        final_logit_soft_cap=3.0,
        use_post_ffw_norm=True,
        use_post_attention_norm=True,
        use_sliding_window_attention=True,
        sliding_window_size=8,  # with less, what comes after 9 words would see nothing
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


@pytest.mark.parametrize("name", BACKBONES)
def test_the_kernel_computes_their_attention(name, monkeypatch):
    """Also that of decoders, which share keys among heads, say by a mask of pairs what is seen, and cap logits."""
    make, inputs = BACKBONES[name]
    model, calls, kernel = make(), [], attention.attention_kernel
    monkeypatch.setattr(attention, "attention_kernel", lambda *arguments: calls.append(1) or kernel(*arguments))
    expected = arrays(model(inputs))
    with as_on_tpu(), exact_operations(TracedDevices()):
        found = arrays(kte.layers.for_tpu(model)(inputs))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert calls


def with_lora(model):
    """Enable LoRA with weights that change the predictions."""
    model.enable_lora(4)
    for i, weight in enumerate(model.trainable_weights):
        weight.assign(np.cos(np.arange(i, i + np.prod(weight.shape))).reshape(weight.shape) / 9)
    return model


def tuned(backbone, for_tpu):
    """The losses, the predictions and the weights of a Gemma that is trained by LoRA, with its path for a TPU."""
    with as_on_tpu(), kte.strategy_scope(require="cpu", for_tpu=for_tpu):
        model = hub.models.GemmaCausalLM(backbone)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=[])
        following = np.roll(WORDS, -1, axis=1)
        losses = model.fit(TEXT, following, batch_size=2, epochs=3, shuffle=False, verbose=0).history["loss"]
        return model, [*losses, *arrays(model.predict(TEXT, verbose=0)), *arrays(model.trainable_weights)]


@pytest.mark.parametrize("first", ["LoRA", "for_tpu"])
def test_lora_trains_the_same_before_and_after(first, tmp_path):
    plain = gemma()
    copied = gemma()
    copied.set_weights(plain.get_weights())
    ours = kte.layers.for_tpu(with_lora(copied)) if first == "LoRA" else with_lora(kte.layers.for_tpu(copied))
    stock = with_lora(plain)
    assert [one.shape for one in ours.trainable_weights] == [one.shape for one in stock.trainable_weights]
    np.testing.assert_allclose(arrays(ours(TEXT))[0], arrays(stock(TEXT))[0], atol=1e-5)
    trained, found = tuned(ours, for_tpu=True)
    _, expected = tuned(stock, for_tpu=False)
    assert found[0] > found[2]
    for one, another in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-4, atol=1e-5)
    trained.save_weights(tmp_path / "found.weights.h5")
    loaded = hub.models.GemmaCausalLM(gemma())  # Keras saves what LoRA has learned as part of the kernels
    loaded.load_weights(tmp_path / "found.weights.h5")
    np.testing.assert_allclose(arrays(loaded(TEXT))[0], arrays(trained(TEXT))[0], atol=1e-5)


def test_what_is_frozen_inside_a_layer_stays_so():
    model = gemma()
    model.get_layer("decoder_block_0").attention.query_dense.trainable = False
    copy = kte.layers.for_tpu(model)
    assert [one.path for one in copy.trainable_weights] == [one.path for one in model.trainable_weights]
    assert len(copy.trainable_weights) == len(copy.weights) - 1


def classifier_of(backbone):
    outputs = backbone.output["pooled_output"] if isinstance(backbone.output, dict) else backbone.output[:, 0]
    classifier = keras.Model(backbone.input, keras.layers.Dense(2, dtype="float32")(outputs))
    classifier.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return classifier


def trained(model, inputs, options):
    with kte.strategy_scope(require="cpu", for_tpu=True, **options):
        classifier = classifier_of(model())
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("device_kind", [CPU, TPU])
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "ViT"])
def test_the_programs_of_fit_are_those_that_are_lowered_without_it(name, device_kind):
    make, inputs = {**BACKBONES, "GPT-2": (gpt2, TEXT)}[name]
    x, y = rows_of((inputs, np.arange(2)), np.arange(30) % 2)  # whose last batch is short
    case = lambda: classifier_of(make()), {"for_tpu": True, "precision": "mixed_bfloat16"}, device_kind
    texts = programs_of_fit(*case, x, y, 16)
    found = names_of(texts, programs_without_fit(*case, *rows_of((x, y), slice(16))))
    assert {one.split(",")[0] for one in found} == {"train", "evaluate", "predict"}
