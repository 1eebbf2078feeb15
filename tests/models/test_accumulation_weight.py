"""A window whose batches are weighted by tokens is one batch of the whole, however the tokens are spread."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_ext as kte
import sources
from kind_of_keras import IS_KERAS2

pytestmark = pytest.mark.gate_on("keras3_jax")

SIZE, STEPS = 10, 3  # 103 examples make 4 windows; the last has two batches, of which the second is short
rng = np.random.default_rng(3)
# Of growing length: the examples of the first window have no tokens, and those of every other batch more.
LENGTHS = np.maximum(np.arange(103) - 30, 0) // 10
LENGTHS[29] = int(IS_KERAS2)  # there a masked mean of nothing is NaN
IS_TOKEN = np.arange(7) < LENGTHS[:, None]
WORDS = rng.integers(1, 9, size=(103, 7)) * IS_TOKEN
TARGETS = rng.normal(size=(103, 7, 1)).astype("float32")
WEIGHTS = (rng.uniform(0.1, 3.0, size=(103, 7)) * IS_TOKEN).astype("float32")
CLASSES = np.where(IS_TOKEN, rng.integers(0, 3, size=(103, 7)), -1)


def tagger(model_class, outputs=1, heads=1, mask=True):
    inputs = keras.Input((7,), dtype="int32")
    hidden = keras.layers.Embedding(9, 4, mask_zero=mask)(inputs)
    hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1))(hidden)
    heads = [keras.layers.Dense(outputs, name=f"head_{i}")(hidden) for i in range(heads)]
    return model_class(inputs, heads[0] if len(heads) == 1 else heads)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, a loss and data whose denominator is not proportional to the number of examples."""

    y: Any = dataclasses.field(default_factory=lambda: TARGETS)
    weights: Any = None
    build: Callable[..., Any] = tagger
    loss: Callable[[], Any] = lambda: "mse"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def mean_of_weights():
    return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


def ignoring():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)


CASES = {
    "mask": Case(),
    "mask, loss scale": Case(options={"loss_scale": "dynamic"}),
    "mask and weights": Case(weights=WEIGHTS),
    "ignored classes": Case(CLASSES, build=lambda kind: tagger(kind, outputs=3, mask=False), loss=ignoring),
    "two outputs with one mask": Case(
        (TARGETS, 1 - TARGETS),
        build=lambda kind: tagger(kind, heads=2),
        loss=lambda: ["mse", "mse"],
        options={"loss_weights": [1.0, 0.3]},
    ),
    "weighted mean": Case(weights=WEIGHTS, build=lambda kind: tagger(kind, mask=False), loss=mean_of_weights),
    "weighted mean, mask": Case(weights=WEIGHTS, loss=mean_of_weights),
}
IN_GATE = {
    "mask, loss scale": ("keras3_tf", "keras3_jax", "keras2_tf215"),
    "weighted mean, mask": ("keras3_jax",),
    "add_loss": ("keras3_tf", "keras3_jax"),
    "one number": ("keras3_jax",),
    "two masks": ("keras3_jax",),
}


def trained(case, model_class, scope, batch_size, **options):
    """Return all weights after two epochs, and the number of steps, from the same start."""
    batches = sources.batched((WORDS, case.y) if case.weights is None else (WORDS, case.y, case.weights), batch_size)
    with scope:
        model = case.build(model_class)
        arguments = {name: value for name, value in case.options.items() if options or name != "loss_scale"}
        model.compile(keras.optimizers.SGD(0.5, clipnorm=0.2), case.loss(), **arguments, **options)
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=weights.shape, scale=0.3) for weights in model.get_weights()])
    model.fit(batches, epochs=2, shuffle=False, verbose=0)
    steps = int(ops.convert_to_numpy(model.optimizer.iterations))
    return np.concatenate([weights.ravel() for weights in model.get_weights()]), steps


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.gate_on(*IN_GATE[name]) if name in IN_GATE else pytest.mark.exhaustive)
        for name in CASES
        if not (IS_KERAS2 and name.startswith("weighted mean"))
    ],
)
def test_a_window_of_tokens_is_one_batch(scope3, name):
    """With a regulariser, which counts once per window even where no example has a token, and clipping."""
    case, windows = CASES[name], {"gradient_accumulation_steps": STEPS}
    whole, steps = trained(case, keras.Model, contextlib.nullcontext(), SIZE * STEPS)
    assert steps == 8
    tokens = trained(case, kte.TPUModel, scope3, SIZE, **windows, gradient_accumulation_weight="tokens")
    assert tokens[1] == 8
    np.testing.assert_allclose(tokens[0], whole, atol=1e-5)


@pytest.mark.exhaustive
def test_a_window_of_examples_is_not(scope3):
    whole, _ = trained(CASES["mask"], keras.Model, contextlib.nullcontext(), SIZE * STEPS)
    examples, _ = trained(CASES["mask"], kte.TPUModel, scope3, SIZE, gradient_accumulation_steps=STEPS)
    assert np.abs(examples - whole).max() > 1e-2


class Square(keras.layers.Layer):
    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        return x


def with_layer(layer):
    """Return a maker of a model with `layer`, which adds a loss."""

    def build(model_class):
        inputs = keras.Input((7,))
        return model_class(inputs, keras.layers.Dense(1)(layer()(inputs)))

    return build


OTHER_NUMBERS = "a model whose outputs have losses that are divided by different numbers"
NOT_DIVIDED = "a model with a loss that Keras does not divide by a number of elements or a sum of weights"
OF_LAYERS = r"a model whose layers add losses of the batch \(add_loss, activity_regularizer\)"


def plain_sum():
    return keras.losses.MeanSquaredError(reduction="sum")


def unreduced():
    return keras.losses.MeanSquaredError(reduction="none")


def one_number():
    return lambda true, predicted: ops.sqrt(ops.sum(ops.square(true - predicted)))


def ignoring_and_not():
    return [ignoring(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)]


REFUSED = {
    "sum": (Case(loss=plain_sum), NOT_DIVIDED),
    "unreduced": (
        Case(TARGETS[:, 0], build=with_layer(lambda: keras.layers.Dense(3)), loss=unreduced),
        NOT_DIVIDED,
    ),
    "one number": (Case(build=lambda kind: tagger(kind, mask=False), loss=one_number), NOT_DIVIDED),
    "add_loss": (Case(TARGETS[:, 0], build=with_layer(Square)), OF_LAYERS),
    "activity regularizer": (
        Case(TARGETS[:, 0], build=with_layer(lambda: keras.layers.Dense(3, activity_regularizer="l2"))),
        OF_LAYERS,
    ),
    "a mask of one of two outputs": (
        Case(
            (CLASSES, np.abs(CLASSES)),
            build=lambda kind: tagger(kind, outputs=3, heads=2, mask=False),
            loss=ignoring_and_not,
        ),
        OTHER_NUMBERS,
    ),
    "two masks": (
        Case(
            (CLASSES, CLASSES),
            build=lambda kind: tagger(kind, outputs=3, heads=2, mask=False),
            loss=lambda: [ignoring(), ignoring()],
        ),
        OTHER_NUMBERS,
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.gate_on(*IN_GATE[name]) if name in IN_GATE else pytest.mark.exhaustive)
        for name in REFUSED
    ],
)
def test_what_has_no_common_denominator_is_refused(scope3, name):
    case, of_models = REFUSED[name]
    text = rf'compile: `gradient_accumulation_weight` must be "examples" for {of_models}; got \'tokens\'\. Write '
    with pytest.raises(kte.errors.ArgumentError, match=text):
        trained(case, kte.TPUModel, scope3, 103, gradient_accumulation_steps=2, gradient_accumulation_weight="tokens")


class OwnLoss(kte.TPUModel):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize("weight", ["token", None, 2])
def test_other_weights_are_told(weight):
    text = rf'compile: `gradient_accumulation_weight` must be "examples" or "tokens"; got {weight!r}\. Write '
    with pytest.raises(kte.errors.ArgumentError, match=text):
        tagger(kte.TPUModel).compile("sgd", "mse", gradient_accumulation_weight=weight)


def test_a_compute_loss_of_ones_own_is_refused():
    with pytest.raises(kte.errors.ArgumentError, match=r"for a model with a compute_loss of its own; got 'tokens'"):
        tagger(OwnLoss).compile("sgd", "mse", gradient_accumulation_weight="tokens")


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: has no optimizer that accumulates")
def test_an_optimizer_that_accumulates_is_refused():
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    with pytest.raises(kte.errors.ArgumentError, match="for a model whose optimizer accumulates, with equal weights"):
        tagger(kte.TPUModel).compile(optimizer, "mse", gradient_accumulation_weight="tokens")


@pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf215")
def test_it_is_saved_with_the_model(tmp_path):
    windows = {"gradient_accumulation_steps": 2, "gradient_accumulation_weight": "tokens"}
    for given, weights_by_tokens in ((windows, True), ({}, False)):
        model = tagger(kte.TPUModel)
        model.compile("sgd", "mse", **given)
        model.save(tmp_path / "model.keras")
        assert keras.models.load_model(tmp_path / "model.keras")._kte.weights_by_tokens is weights_by_tokens


class OwnStep(kte.TPUModel):
    def train_step(self, data):
        import tensorflow as tf

        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.global_mean(tf.square(self(x, training=True) - y))
        self.minimize(loss, self.trainable_variables, self.optimizer, tape)
        return {"loss": loss}


@pytest.mark.runtimes("keras3_tf", "keras2_tf", reason="JAX: a step of one's own there calls no minimize")
@pytest.mark.exhaustive
def test_minimize_is_refused(scope3):
    case = Case(build=lambda kind: tagger(OwnStep, mask=False))
    with pytest.raises(kte.errors.ArgumentError, match="for a model with a train_step that calls minimize"):
        trained(case, None, scope3, 103, gradient_accumulation_steps=2, gradient_accumulation_weight="tokens")
