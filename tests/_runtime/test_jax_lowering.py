"""What preflight lowers is what `fit` compiles, to the letter: no step is like it, each is the same program."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

import keras_tpu_ext as kte
from fit_programs import CPU, TPU, compiled_programs, names_of
from keras_tpu_ext._runtime import devices, probes

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


ONE = {"replicas": 1}
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
    "Keras's own": (plain, {}, {"exact": False}),
}
IN_GATE = [("plain", CPU), ("plain", TPU), ("scaled", TPU), ("3 steps", CPU), ("own step", TPU), ("one device", CPU)]


def lowered(make, options, scope, device_kind, *batch):
    """Return the programs of a model whose variables have no values, for devices that are not there."""
    scope = dict(scope)
    count, shard, mesh = scope.pop("replicas", 8), scope.pop("shard", None), scope.pop("mesh", {"data": 8})
    opened = devices.abstract_strategy(count)
    if shard:
        opened = devices.shard(opened, shard, tuple(mesh.items()))
    with kte.strategy_scope(require="cpu", replicas=1, **scope):
        model = probes.call_abstractly(lambda: make(**options))
    batch = keras.utils.pack_x_y_sample_weight(*batch)
    return probes.lower_programs(model, batch, opened, device_kind, num_batches=BATCHES, validation_batches=BATCHES)


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
def test_the_programs_of_fit_are_those_that_are_lowered_without_it(case, device_kind, rows):
    make, options, scope = CASES[case]
    x, y = X[:rows], None if make is autoencoder else Y[:rows]
    if scope.get("exact") is False and rows % BATCH:
        pytest.skip("Keras's own loop refuses such a batch")
    opened = kte.strategy_scope(require="cpu", **{"replicas": None if "mesh" in scope else 8, **scope})
    with opened:
        model = make(**options)
    with compiled_programs(device_kind) as texts:
        checked = {} if y is None else {"validation_data": (x, y)}
        model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, **checked)
        model.predict(x, batch_size=BATCH, verbose=0)
    batches = [slice(BATCH)]
    if make is autoencoder and rows % BATCH:  # whose batches are not padded: the last one is another
        batches.append(slice(rows % BATCH))
    steps = []
    for each in batches:
        steps += lowered(make, options, scope, device_kind, x[each], *([] if y is None else [y[each]]))
    found = {name.split(",")[0] for name in names_of(texts, steps)}
    assert found == {"train", "predict"} | ({"evaluate"} if checked else set()) | (
        {"end of a window"} if options.get("gradient_accumulation_steps") else set()
    )
