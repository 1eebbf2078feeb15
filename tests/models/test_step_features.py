"""What the step does besides a plain update: scaling, clipping, averages, accumulation, losses of one's own."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_ext as kte
import sources
from kind_of_keras import IS_KERAS2

ON_JAX = keras.backend.backend() == "jax"
pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf215")


def dense(model_class):
    """Return a small functional model of `model_class`."""
    inputs = keras.Input((6,))
    return model_class(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, activation="tanh")(inputs)))


OPTIMIZERS = {
    "clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.01),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
    "weight decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "moving averages": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5),
    "overwriting averages": lambda: keras.optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5, clipnorm=0.05)),
}


def train(data, batch_size=33, epochs=2):
    """Return what `fit` does on batches that do not divide, with empty replicas at the end."""
    batches = sources.batched((data.x, data.y), batch_size)
    return lambda model: model.fit(batches, epochs=epochs, shuffle=False, verbose=0).history


# Clipping, decay and averages that overwrite are among what tests/parity combines.
ON_TENSORFLOW = {"LossScaleOptimizer": ("keras2_tf215",), "overwriting averages": ("keras3_tf", "keras2_tf215")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.gate_on(*ON_TENSORFLOW[name]) if name in ON_TENSORFLOW else pytest.mark.exhaustive,
        )
        for name in OPTIMIZERS
    ],
)
def test_what_the_optimizer_does_is_done_to_the_whole_gradient(twins, data, name):
    twins(compile_options=lambda: {"optimizer": OPTIMIZERS[name]()}).agree(train(data))


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
@pytest.mark.parametrize(
    "loss_scale",
    [
        pytest.param(1024, marks=pytest.mark.exhaustive),
        "dynamic",
        pytest.param(kte.LossScale(initial=2.0**10), marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_a_scaled_loss_takes_the_same_steps(twins, scope3, data, loss_scale):
    pair = twins(compile_options=lambda: {"optimizer": OPTIMIZERS["clipnorm"]()})
    with scope3:
        pair.ours.compile(OPTIMIZERS["clipnorm"](), "mse", loss_scale=loss_scale)
    pair.agree(train(data))
    assert int(pair.ours._kte.state.good_steps.numpy()) == 8
    assert int(pair.ours._kte.state.skipped_steps.numpy()) == 0


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
def test_the_steps_of_incomplete_windows_are_traced_once(scope3, data):
    traced = []

    class Counting(keras.optimizers.SGD):
        def update_step(self, gradient, variable, *learning_rate):
            traced.append(variable)
            super().update_step(gradient, variable, *learning_rate)

    with scope3:
        model = dense(kte.TPUModel)
        model.compile(Counting(0.1), "mse", gradient_accumulation_steps=2)
    train(data, batch_size=48, epochs=1)(model)
    assert traced
    traced.clear()
    train(data, batch_size=48, epochs=2)(model)
    assert not traced


@pytest.mark.parametrize(
    ("batch_size", "steps"),
    [
        pytest.param(26, 2, marks=pytest.mark.exhaustive),
        (16, 4),
        pytest.param(10, 3, marks=pytest.mark.exhaustive),
    ],
)
def test_accumulated_batches_are_one_batch(scope3, data, batch_size, steps):
    """The last window of the epoch is incomplete, and its last batch is short: each example counts once."""
    start, weights = None, []
    for model_class, scope, size, extra in (
        (keras.Model, kte.strategy_scope(require="cpu"), batch_size * steps, {}),
        (kte.TPUModel, scope3, batch_size, {"gradient_accumulation_steps": steps}),
    ):
        with scope:
            model = dense(model_class)
            model.compile(OPTIMIZERS["clipnorm"](), "mse", **extra)
        start = start or model.get_weights()
        model.set_weights(start)
        train(data, size)(model)
        weights.append(np.concatenate([w.ravel() for w in model.get_weights()]))
        assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 2 * -(-103 // (batch_size * steps))
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-5)


def test_evaluate_leaves_an_open_window_open(scope3, data):
    with scope3:
        model = dense(kte.TPUModel)
        model.compile("sgd", "mse", gradient_accumulation_steps=2)
    model.train_on_batch(data.x[:32], data.y[:32])
    before = model.get_weights()
    model.evaluate(data.x, data.y, verbose=0)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 0


class EvaluatesInTheMiddle(keras.callbacks.Callback):
    """Evaluates after the sixth batch, which is the second of a window of four."""

    def __init__(self, x, y):
        super().__init__()
        self.data = x, y

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            self.model.evaluate(*self.data, verbose=0)


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_evaluating_in_a_callback_takes_no_step(scope3, data, steps):
    weights = []
    for callbacks in ([], [EvaluatesInTheMiddle(data.x[:5], data.y[:5])]):
        keras.utils.set_random_seed(0)
        with scope3:
            model = dense(kte.TPUModel)
            model.compile("sgd", "mse", gradient_accumulation_steps=4, steps_per_execution=steps)
        model.fit(data.x[:90], data.y[:90], batch_size=10, shuffle=False, verbose=0, callbacks=callbacks)
        assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 3  # the last window has one batch
        weights.append(model.get_weights())
    for without, evaluated in zip(*weights, strict=True):
        np.testing.assert_array_equal(evaluated, without)


def test_a_window_that_other_replicas_have_saved_is_the_sum_of_theirs():
    model = dense(kte.TPUModel)
    model.compile("sgd", "mse", gradient_accumulation_steps=2)
    model.train_on_batch(np.ones((2, 6)), np.ones((2, 1)))
    (accumulator,) = model._kte.state.accumulators()
    sums = accumulator.sums
    parts = {f"sum_{i}": np.stack([np.ones(v.shape), np.full(v.shape, 2.0)]) for i, v in enumerate(sums)}
    accumulator.load_own_variables({"position": np.array(1), "weight": np.array(6.0), **parts})
    for total in sums:
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(total), 3.0)


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: has no optimizer that accumulates")
@pytest.mark.parametrize(("given", "by_optimizer"), [(2, 3), (3, 2), (2, 2)])
def test_two_numbers_of_batches_in_a_step_are_refused(given, by_optimizer):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=by_optimizer)
    text = rf"gradient_accumulation_steps={given} was given, and the optimizer says {by_optimizer}\. Leave one"
    with pytest.raises(kte.errors.ArgumentError, match=text):
        dense(kte.TPUModel).compile(optimizer, "mse", gradient_accumulation_steps=given)


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: has no optimizer that accumulates")
@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), marks=pytest.mark.exhaustive),
        lambda: keras.optimizers.AdamW(
            0.01,
            gradient_accumulation_steps=2,
            clipnorm=0.1,
            use_ema=True,
            ema_momentum=0.5,
            ema_overwrite_frequency=3,
        ),
        pytest.param(
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)),
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["SGD", "AdamW with averages", "in a LossScaleOptimizer"],
)
def test_an_optimizer_that_accumulates_does_it_as_in_keras(scope3, data, make):
    """Its windows count batches alike, short or not, and go on over the end of an epoch: here one has 3 batches."""
    start, outcomes = None, []
    for model_class, scope in ((keras.Model, contextlib.nullcontext()), (kte.TPUModel, scope3)):
        with scope:
            model = dense(model_class)
            model.compile(make(), "mse")
        start = start or model.get_weights()
        model.set_weights(start)
        train(data, 48)(model)
        steps = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
        outcomes.append(np.concatenate([[steps], *(w.ravel() for w in model.get_weights())]))
    np.testing.assert_allclose(outcomes[1], outcomes[0], atol=1e-5)


def root_mean_square(y_true, y_pred):
    """Return one number that is no mean over examples."""
    return ops.sqrt(ops.mean((y_true - y_pred) ** 2))


def test_a_loss_of_one_number_gets_the_whole_batch(twins, data):
    twins(compile_options=lambda: {"loss": root_mean_square}).agree(train(data))


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
def test_own_losses_and_regularizers(twins, data):
    # A small rate: with 0.3 the plain model diverges from some initial weights.
    def build(model_class):
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l1")(inputs)
        return model_class(inputs, keras.layers.Dense(1)(keras.layers.ActivityRegularization(l2=0.1)(hidden)))

    twins(build, lambda: {"optimizer": keras.optimizers.SGD(0.02)}).agree(train(data))


class Barrier(keras.layers.Layer):
    """Adds a loss that is infinite for an input of one, which is what a replica without an example sees."""

    def call(self, inputs):
        self.add_loss(-ops.mean(ops.log(1.0 - inputs)))
        return inputs


@pytest.mark.gate_on("keras3_tf", "keras2_tf215")
def test_a_loss_of_a_layer_counts_nothing_where_there_is_no_example(twins, data):
    def build(model_class):
        inputs = keras.Input((6,))
        return model_class(inputs, keras.layers.Dense(1)(Barrier()(inputs)))

    batches = sources.batched((1.0 / (2.0 + data.x**2), data.y), 33)
    pair = twins(build, lambda: {"optimizer": keras.optimizers.SGD(0.1)})
    pair.agree(lambda model: model.fit(batches, epochs=1, shuffle=False, verbose=0).history)


class Pole(keras.layers.Layer):
    """Has an infinite output for an input of one, and NaN for its gradient."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs):
        return self.scale * inputs / (1.0 - inputs)


class Divides(keras.layers.Layer):
    """Divides whole numbers by its inputs; a zero ends the program."""

    def call(self, inputs):
        return ops.cast(12 // ops.cast(inputs, "int32"), "float32")


@pytest.mark.gate_on("keras3_tf", "keras2_tf215")
@pytest.mark.parametrize("layer", [pytest.param(Pole, marks=pytest.mark.exhaustive), Divides])
def test_a_layer_may_do_with_the_row_of_a_replica_without_examples_what_it_likes(twins, data, layer):
    def build(model_class):
        inputs = keras.Input((6,))
        return model_class(inputs, keras.layers.Dense(1)(layer()(inputs)))

    x = 1.0 / (2.0 + data.x**2) if layer is Pole else 1.0 + np.abs(data.x)
    batches = sources.batched((x.astype("float32"), data.y), 33)
    pair = twins(build, lambda: {"optimizer": keras.optimizers.SGD(0.001)})
    pair.agree(lambda model: model.fit(batches, epochs=1, shuffle=False, verbose=0).history)


@pytest.mark.exhaustive
def test_the_number_of_steps_stays_known_where_a_replica_may_have_no_example(twins, data):
    """Keras's `TimeDistributed` takes the number of rows for that of steps it does not know."""

    def build(model_class):
        inputs = keras.Input((7,), dtype="int32")
        hidden = keras.layers.TimeDistributed(keras.layers.Dense(3))(keras.layers.Embedding(5, 4)(inputs))
        return model_class(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))

    words = np.arange(103 * 7, dtype="int32").reshape(103, 7) ** 2 % 5
    batches = sources.batched((words, data.y), 33)
    twins(build).agree(lambda model: model.fit(batches, epochs=1, shuffle=False, verbose=0).history)


class Spread:
    """A `compute_loss` that needs all predictions at once, and the regularisers."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **training):
        loss = super().compute_loss(x, y, y_pred, sample_weight, **training)  # Keras 2 says nothing of training
        return loss + ops.std(y_pred) + 0.1 * sum(self.losses)


class PlainSpread(Spread, keras.Model):
    """On one device."""


class OurSpread(Spread, kte.TPUModel):
    """On the replicas."""


@pytest.mark.gate_on("keras3_tf", "keras2_tf215")  # on JAX tests/parity has it
def test_a_compute_loss_of_ones_own_gets_the_whole_batch(twins, data):
    def build(model_class):
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l1")(inputs)
        return model_class(inputs, keras.layers.Dense(1)(hidden))

    twins(build, lambda: {"optimizer": keras.optimizers.SGD(0.02)}, (PlainSpread, OurSpread)).agree(train(data))


@pytest.mark.parametrize("replica", [pytest.param(0, marks=pytest.mark.exhaustive), 3])
def test_an_overflow_on_one_replica_skips_the_step_on_all(scope3, data, replica):
    """Batch 2 of 3 has an infinity in the rows of one replica: the run ends as one without that batch.

    Keras 2 counts the step, as its `LossScaleOptimizer` does, and Adam goes by the count.
    """
    poisoned = data.x[:96].copy()
    poisoned[32 + 8 * replica, 0] = np.inf
    finals = []
    for x, rows in ((poisoned, range(0, 96, 32)), (data.x[:96], (0, 64))):
        with scope3:
            keras.utils.set_random_seed(3)
            inputs = keras.Input((6,))
            hidden = keras.layers.BatchNormalization()(keras.layers.Dense(5)(inputs))
            model = kte.TPUModel(inputs, keras.layers.Dense(1)(hidden))
            adam = {} if IS_KERAS2 else {"optimizer": keras.optimizers.Adam(0.01, use_ema=True)}
            momentum = keras.optimizers.SGD(0.01, momentum=0.9)
            model.compile(**{"optimizer": momentum} | adam, loss="mse", loss_scale="dynamic")
        for row in rows:
            model.train_on_batch(x[row : row + 32], data.y[row : row + 32])
        slots = [v for v in model.optimizer.variables if not (IS_KERAS2 and v is model.optimizer.iterations)]
        finals.append((model.get_weights(), [v.numpy() for v in slots]))
        skipped = 1 if x is poisoned else 0
        assert int(model._kte.state.skipped_steps.numpy()) == skipped
        assert float(model._kte.state.scale.numpy()) == 2.0 ** (15 - skipped)
    for got, expected in zip(finals[0][0] + finals[0][1], finals[1][0] + finals[1][1], strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.filterwarnings(
    # Keras 3.15 hands its variables to np.array when it saves; numpy 2 wants one more keyword of them.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)
@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
def test_going_on_after_loading_is_going_on(scope3, data, tmp_path):
    """Saved in the middle of a window, with averages and a loss scale: bit for bit the same afterwards."""

    def three_batches(model, first):
        for row in range(first, first + 96, 32):
            model.train_on_batch(data.x[row % 64 : row % 64 + 32], data.y[row % 64 : row % 64 + 32])

    with scope3:
        model = dense(kte.TPUModel)
        model.compile(
            keras.optimizers.Adam(0.01, use_ema=True), "mse", loss_scale="dynamic", gradient_accumulation_steps=2
        )
    three_batches(model, 0)
    model.save(tmp_path / "model.keras")
    with scope3:
        loaded = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        three_batches(one, 0)
    assert int(loaded._kte.state.good_steps.numpy()) == int(model._kte.state.good_steps.numpy()) == 3
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"loss_scale": 0},
            'compile: `loss_scale` must be None, "dynamic", a kte.LossScale or a number above',
        ),
        (
            {"loss_scale": -2.0},
            'compile: `loss_scale` must be None, "dynamic", a kte.LossScale or a number above',
        ),
        ({"loss_scale": "dynamisch"}, "got 'dynamisch'. Write loss_scale=\"dynamic\""),
        ({"gradient_accumulation_steps": 0}, "must be an integer of at least 1; got 0"),
        ({"gradient_accumulation_steps": 2.0}, "must be an integer of at least 1; got 2.0"),
    ],
)
def test_arguments_that_cannot_work_are_told(options, text):
    with pytest.raises(kte.errors.ArgumentError) as told:
        dense(kte.TPUModel).compile("sgd", "mse", **options)
    assert text in str(told.value)


def test_scaling_twice_is_refused():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(kte.errors.ArgumentError, match="the optimizer scales the loss too"):
        dense(kte.TPUModel).compile(optimizer, "mse", loss_scale="dynamic")
