"""What preflight lowers is what `fit` compiles, to the letter: no step is like it, each is the same program."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

import keras_tpu_ext as kte
from fit_programs import CPU, TPU, names_of, programs_of_fit, programs_without_fit, rows_of
from keras_tpu_ext._runtime.jax import data_adapter, program

pytestmark = pytest.mark.runtimes("keras3_jax")

BATCH, BATCHES = 16, 4
X = np.random.default_rng(0).normal(size=(BATCH * BATCHES, 8)).astype("float32")
Y = np.arange(len(X), dtype="int64") % 3


def network():
    inputs = keras.Input((8,))
    x = layers.BatchNormalization()(layers.Dense(16, "relu", kernel_regularizer="l2")(inputs))
    return inputs, layers.Dense(3)(layers.Dropout(0.25)(x))


def compiled(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0), loss, metrics=["accuracy"], **options)
    return model


def plain(**options):
    return compiled(keras.Model(*network()), **options)


def exact(**options):
    return compiled(kte.TPUModel(*network()), **options)


def transformer(**options):
    """It is small, and its attention is one that a kernel computes on a TPU."""
    inputs = keras.Input((8,))
    x = layers.Dense(128)(layers.Reshape((8, 1))(inputs))
    for _ in range(2):
        y = layers.MultiHeadAttention(2, 64, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
    x = layers.GlobalAveragePooling1D()(x)
    return compiled(keras.Model(inputs, layers.Dense(3)(x)), **options)


def rematerialized():
    inputs = keras.Input((8,))
    dense = layers.Dense(16, "relu")
    x = dense(inputs)
    kte.layers.remat(dense)
    return compiled(keras.Model(inputs, layers.Dense(3)(x)))


@keras.saving.register_keras_serializable("tests")
class Autoencoder(keras.Model):
    """Its step gets `x` alone, as `fit(x)` gives it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(8)
        self.seeds = keras.random.SeedGenerator(3)
        self.mean_loss = keras.metrics.Mean("loss")

    def call(self, x, training=False):
        if training:
            x = x + keras.random.normal(keras.ops.shape(x), seed=self.seeds)
        return self.inner(x)

    @property
    def metrics(self):
        return [self.mean_loss]

    def loss_of(self, trainable, non_trainable, data):
        outputs, non_trainable = self.stateless_call(trainable, non_trainable, data, training=True)
        return keras.ops.mean((outputs - data) ** 2), non_trainable

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        compute = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, non_trainable), gradients = compute(trainable, non_trainable, data)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        metrics = self.mean_loss.stateless_update_state(metrics, loss)
        return {"loss": loss}, (trainable, non_trainable, optimizer, metrics)


def autoencoder():
    model = Autoencoder()
    model.compile("adam")
    return model


def block(x, **masked):
    """A block of a transformer: attention, and two dense layers."""
    y = layers.LayerNormalization()(x)
    x = x + layers.Dropout(0.1)(layers.MultiHeadAttention(2, 64, dropout=0.1)(y, y, **masked))
    y = layers.Dense(64, "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dropout(0.1)(layers.Dense(128)(y))


def bert():
    inputs = {name: keras.Input((8,), dtype="int32", name=name) for name in ("tokens", "segments")}
    x = layers.Embedding(WORDS, 128, mask_zero=True)(inputs["tokens"]) + layers.Embedding(2, 128)(inputs["segments"])
    x = layers.LayerNormalization()(block(block(x)))
    return compiled(keras.Model(inputs, layers.Dense(3, dtype="float32")(layers.Dense(32, "tanh")(x[:, 0]))))


def gpt():
    """It predicts the next token of each place."""
    inputs = keras.Input((8,), dtype="int32")
    x = block(layers.Embedding(WORDS, 128)(inputs), use_causal_mask=True)
    x = layers.LayerNormalization()(block(x, use_causal_mask=True))
    return compiled(keras.Model(inputs, layers.Dense(WORDS, dtype="float32")(x)))


def vit():
    inputs = keras.Input((16, 16, 3))
    x = layers.Dropout(0.1)(layers.Reshape((16, 128))(layers.Conv2D(128, 4, 4)(inputs)))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(block(block(x))))
    return compiled(keras.Model(inputs, layers.Dense(3, dtype="float32")(x)))


WORDS = 20
TOKENS = np.random.default_rng(1).integers(0, WORDS, (len(X), 8)).astype("int32")
DATA = {
    autoencoder: (X, None),
    bert: ({"tokens": TOKENS, "segments": TOKENS % 2}, Y),
    gpt: (TOKENS, np.roll(TOKENS, -1, axis=1)),
    vit: (np.random.default_rng(2).random((len(X), 16, 16, 3), "float32"), Y),
}
ONE = {"replicas": 1}
TRANSFORMER = {"for_tpu": True, "precision": "mixed_bfloat16"}
CASES = {
    "plain": (plain, {}, {}),
    "TPUModel": (exact, {}, {}),
    "one device": (plain, {}, ONE),
    "accumulated": (plain, {"gradient_accumulation_steps": 3}, {}),
    "scaled": (plain, {"loss_scale": "dynamic", "gradient_accumulation_steps": 3}, {}),
    "3 steps": (plain, {"steps_per_execution": 3}, {}),
    "auto": (exact, {"steps_per_execution": "auto"}, {}),
    "fsdp": (plain, {}, {"shard": "fsdp"}),
    "fsdp 4x2": (transformer, {}, {"shard": "fsdp", "mesh": {"data": 4, "model": 2}}),
    "for_tpu": (transformer, {}, {"for_tpu": True}),
    "own step": (autoencoder, {}, {}),
    "own step on one device": (autoencoder, {}, ONE),
    "remat": (rematerialized, {}, {}),
    "transformer": (transformer, {}, {}),
    "BERT": (bert, {}, TRANSFORMER),
    "GPT": (gpt, {}, TRANSFORMER),
    "ViT": (vit, {}, TRANSFORMER),
    "Keras's own": (plain, {}, {"exact": False}),
    "Keras's own on one device": (plain, {}, {"exact": False, **ONE}),
}
IN_GATE = [("plain", CPU), ("plain", TPU), ("scaled", TPU), ("3 steps", CPU), ("own step", TPU), ("one device", CPU)]
IN_GATE.append(("BERT", TPU))


@pytest.mark.parametrize(
    "rows", [pytest.param(len(X), id="even", marks=pytest.mark.exhaustive), pytest.param(len(X) - 5, id="short")]
)
@pytest.mark.parametrize(
    ("case", "device_kind"),
    [
        pytest.param(case, kind, marks=() if (case, kind) in IN_GATE else pytest.mark.exhaustive)
        for case in CASES
        for kind in (CPU, TPU)
        if not (kind == TPU and case.startswith("Keras"))  # whose loop is not ours to look into
    ],
)
def test_the_programs_of_fit_are_those_that_are_lowered_without_it(case, device_kind, rows, monkeypatch):
    make, options, scope = CASES[case]
    if case == "auto":  # with a file of programs of 8 steps, more than there are batches
        monkeypatch.setattr(program, "offered_steps", lambda: 8)
        monkeypatch.setattr(data_adapter, "offered_steps", lambda: 8)
    x, y = rows_of(DATA.get(make, (X, Y)), slice(rows))
    if scope.get("exact") is False and rows % BATCH:
        pytest.skip("Keras's own loop refuses such a batch")
    texts = programs_of_fit(lambda: make(**options), scope, device_kind, x, y, BATCH)
    batches = [slice(BATCH)]
    if make is autoencoder and rows % BATCH:  # whose batches are not padded: the last one is another
        batches.append(slice(rows % BATCH))
    steps = []
    for each in batches:
        steps += programs_without_fit(lambda: make(**options), scope, device_kind, *rows_of((x, y), each))
    found = {name.split(",")[0] for name in names_of(texts, steps)}
    assert found == {"train", "predict"} | (set() if y is None else {"evaluate"}) | (
        {"end of a window"} if options.get("gradient_accumulation_steps") else set()
    )
