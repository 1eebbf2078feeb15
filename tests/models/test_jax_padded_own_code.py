"""Own layers and losses in batches that do not divide evenly: padded where that changes nothing, else as they are."""

import logging

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from closeness import assert_close as close
from keras_tpu_ext._runtime.jax.batch import BATCH
from keras_tpu_ext._runtime.jax.jaxpr_axis import SIZES

pytestmark = pytest.mark.runtimes("keras3_jax")
ops = keras.ops
LATER = pytest.mark.exhaustive
SEEN = []  # numbers of rows


def note(x):
    """Note the number of rows in a step: Keras builds a model with the first batch, which is as it is."""
    if x.shape[0] not in SIZES and (BATCH.valid is not None or x.shape[0] == 4):
        SEEN.append(x.shape[0])


class Layer(keras.layers.Layer):
    """A layer that tells how many rows it gets."""

    def call(self, x, training=False):
        note(x)
        return self.of(x, training)


class Doubles(Layer):
    def of(self, x, training):
        return 2.0 * x


class Centers(Layer):
    def of(self, x, training):
        return x - ops.mean(x, axis=0)


class CentersInTraining(Layer):
    def of(self, x, training):
        return x - ops.mean(x, axis=0) if training else x


class Normalizes(Layer):
    """A normalisation by hand, which also keeps a mean."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def of(self, x, training):
        if not training:
            return x - self.mean
        mean = kte.batch_mean(x)
        self.mean.assign(0.5 * self.mean + 0.5 * mean)
        return (x - mean) / ops.sqrt(kte.batch_mean(ops.square(x - mean)) + 1e-3)


class KeepsAMean(Layer):
    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def of(self, x, training):
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * ops.mean(x, axis=0))
        return x - self.mean


class CountsRows(Layer):
    def build(self, shape):
        self.rows = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def of(self, x, training):
        self.rows.assign_add(ops.shape(x)[0])
        return x


class AddsLoss(Layer):
    def of(self, x, training):
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


class HasPenalty(Layer):
    """A regulariser that is no sum: a row of zeros would change it."""

    def __init__(self):
        super().__init__(activity_regularizer=lambda x: 0.1 * ops.mean(ops.square(x)))

    def of(self, x, training):
        return x


class AddsBatchMean(Layer):
    def of(self, x, training):
        self.add_loss(0.1 * ops.mean(kte.batch_mean(ops.square(x))))
        return x


class SoftmaxOverRows(Layer):
    """A layer of Keras whose axis, seen from the end, is that of the batch."""

    def of(self, x, training):
        return keras.layers.Softmax(axis=-2)(x)


class Fourth(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.mean(ops.power(y_true - y_pred, 4), axis=-1)


class Hardest(keras.losses.Loss):
    """Weighs each example by the largest error of all."""

    def call(self, y_true, y_pred):
        off = ops.mean(ops.square(y_true - y_pred), axis=-1)
        return off / (1.0 + ops.max(off))


def assert_close(got, expected):
    for one, other in zip(keras.tree.flatten(got), keras.tree.flatten(expected), strict=True):
        close(np.asarray(one), np.asarray(other))


def outcome(data, layer, loss, replicas):
    """Return what a model is after training, and the numbers of rows that its layer got in training."""
    keras.utils.set_random_seed(3)
    with kte.strategy_scope(require="cpu", replicas=replicas):
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(4, activation="tanh")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(layer()(hidden)))
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["mae"])
    options = {"batch_size": 20, "verbose": 0}
    x, y = data.x[:44], data.y[:44]
    del SEEN[:]
    history = model.fit(x, y, epochs=2, shuffle=False, **options).history
    seen = set(SEEN)
    evaluated = model.evaluate(x, y, return_dict=True, **options)
    return (history, evaluated, model.predict(x, **options), model.get_weights()), seen


def check(data, layer, loss, seen):
    expected, _ = outcome(data, layer, loss, 1)
    got, rows = outcome(data, layer, loss, 8)
    assert_close(got, expected)
    assert rows == seen


@pytest.mark.parametrize(
    ("layer", "loss"),
    [
        (Doubles, Fourth),
        pytest.param(Doubles, lambda y_true, y_pred: ops.mean(ops.abs(y_true - y_pred), -1), marks=LATER),
        pytest.param(Normalizes, Fourth, marks=LATER),
        pytest.param(AddsBatchMean, Fourth, marks=LATER),
    ],
    ids=["layer", "function", "normalisation", "add_loss"],
)
def test_a_batch_is_padded_where_rows_stay_rows(data, layer, loss):
    check(data, layer, loss() if isinstance(loss, type) else loss, {24})


@pytest.mark.parametrize(
    ("layer", "loss"),
    [
        pytest.param(Centers, "mse", marks=LATER),
        pytest.param(CentersInTraining, "mse", marks=LATER),
        pytest.param(KeepsAMean, "mse", marks=LATER),
        (CountsRows, "mse"),
        pytest.param(AddsLoss, "mse", marks=LATER),
        pytest.param(SoftmaxOverRows, "mse", marks=LATER),
        pytest.param(HasPenalty, "mse", marks=LATER),
        (Doubles, Hardest),
    ],
)
def test_a_batch_is_not_padded_where_rows_count_together(data, layer, loss):
    check(data, layer, loss if isinstance(loss, str) else loss(), {4})


def reason(model, x, y=None, caplog=None):
    """Return why batches of a model are not padded."""
    with caplog.at_level(logging.INFO, logger="keras_tpu_ext"):
        if y is None:
            model.predict(x, batch_size=20, verbose=0)
        else:
            model.fit(x, y, batch_size=20, verbose=0)
    return "".join(record.message for record in caplog.records if "not padded" in record.message)


def test_the_reason_is_logged_once(data, caplog):
    model = keras.Sequential([keras.Input((6,)), Centers(name="centers")])
    with kte.strategy_scope(require="cpu", replicas=8):
        text = reason(model, data.x[:44], caplog=caplog)
    assert text.startswith("Batches of sequential")
    assert "in predict: an output depends on rows together, by reduce_sum in `" in text
    assert "test_jax_padded_own_code.py" in text
    caplog.clear()
    model.predict(data.x[:44], batch_size=20, verbose=0)
    assert "not padded" not in caplog.text


@LATER
def test_a_step_of_ones_own_gets_the_examples(data, caplog):
    class Own(keras.Model):
        def train_step(self, state, batch):
            assert batch[0].shape[0] in (20, 4)
            return super().train_step(state, batch)

    with kte.strategy_scope(require="cpu", replicas=8):
        inputs = keras.Input((6,))
        model = Own(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    assert reason(model, data.x[:44], data.y[:44], caplog).endswith("`train_step` is your own.")


@LATER
def test_what_cannot_be_traced_is_not_padded(data, caplog):
    class OfHalves(keras.layers.Layer):
        def call(self, x):
            return ops.reshape(ops.reshape(x, (2, -1, 6)), (-1, 6))

        def compute_output_shape(self, shape):
            return shape

    model = keras.Sequential([keras.Input((6,)), OfHalves()])
    with kte.strategy_scope(require="cpu", replicas=8):
        assert "cannot be traced for another number of rows" in reason(model, data.x[:44], caplog=caplog)


@LATER
def test_own_compute_loss_is_looked_into(data):
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            note(x)
            return self.mean(ops.square(y - y_pred))

    class Padded(Own):
        def mean(self, values):
            return ops.mean(kte.batch_mean(values))

    class Whole(Own):
        def mean(self, values):
            return ops.mean(values)

    losses = {}
    for cls in (Padded, Whole):
        for replicas in (1, 8):
            keras.utils.set_random_seed(3)
            with kte.strategy_scope(require="cpu", replicas=replicas):
                inputs = keras.Input((6,))
                model = cls(inputs, keras.layers.Dense(1)(inputs))
                model.compile(keras.optimizers.SGD(0.1))
            del SEEN[:]
            history = model.fit(data.x[:44], data.y[:44], batch_size=20, epochs=2, shuffle=False, verbose=0).history
            losses[cls, replicas] = history["loss"], set(SEEN)
    assert_close(losses[Padded, 8][0], losses[Padded, 1][0])
    assert_close(losses[Whole, 8][0], losses[Padded, 1][0])
    assert (losses[Padded, 8][1], losses[Whole, 8][1]) == ({24}, {4})


def test_a_stateful_layer_keeps_a_row_for_each_example(caplog):
    """A batch of twenty on eight replicas: padded, it would not fit the state."""
    x = np.random.default_rng(0).normal(size=(40, 5, 3)).astype("float32")
    results = []
    caplog.set_level(logging.INFO, logger="keras_tpu_ext")
    for replicas in (1, 8):
        keras.utils.set_random_seed(3)
        with kte.strategy_scope(require="cpu", replicas=replicas):
            inputs = keras.Input(batch_shape=(20, 5, 3))
            hidden = keras.layers.GRU(4, stateful=True, name="recurrent")(inputs)
            model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
            model.compile(keras.optimizers.SGD(0.1), "mse")
        history = model.fit(x, x[:, 0, :1], batch_size=20, epochs=2, shuffle=False, verbose=0).history
        results.append((history, model.predict(x, batch_size=20, verbose=0), model.get_weights()))
    assert_close(results[1], results[0])
    assert "`recurrent` is stateful" in caplog.text


@pytest.mark.parametrize("replicas", [1, 8])
def test_statistics_of_a_batch_without_a_step(replicas):
    with kte.strategy_scope(require="cpu", replicas=replicas):
        x = np.array([[1.0, 2.0], [3.0, 6.0]], "float32")
        np.testing.assert_allclose(kte.batch_sum(x), [4, 8])
        np.testing.assert_allclose(kte.batch_mean(x), [2, 4])
        assert kte.batch_mean(ops.cast(x, "bfloat16")).dtype == "bfloat16"


class Keeping(keras.Model):
    """Keeps what a layer has made of the batch, which its loss reads."""

    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)

    def call(self, x):
        self.hidden = self.first(x)
        return self.last(self.hidden)

    def error(self, y_true, y_pred):
        return ops.mean((y_true - y_pred) ** 2, -1) + ops.std(self.hidden)


def test_a_loss_that_reads_what_a_layer_keeps(data):
    def trained(replicas):
        keras.utils.set_random_seed(0)
        with kte.strategy_scope(require="cpu", replicas=replicas):
            model = Keeping()
            model.compile(keras.optimizers.SGD(0.1), model.error)
        history = model.fit(data.x[:11], data.y[:11], batch_size=5, epochs=2, shuffle=False, verbose=0).history
        return history["loss"], model.get_weights()

    assert_close(trained(3), trained(1))


def test_a_metric_of_steps_in_time_gets_their_mask_in_evaluation_only(data):
    """In training no mask outlives the gradient, and without one the metric cannot tell padded rows."""

    def trained(replicas):
        keras.utils.set_random_seed(0)
        with kte.strategy_scope(require="cpu", replicas=replicas):
            layers = [keras.Input((3, 2)), keras.layers.Masking(), keras.layers.Dense(1, activation="sigmoid")]
            model = keras.Sequential(layers)
            model.compile("sgd", "mse", metrics=["Precision"])
        x = data.x[:11].reshape(-1, 3, 2) * [[[1], [1], [0]]]
        y = (x[..., :1] > 0).astype("float32")
        history = model.fit(x, y, batch_size=5, shuffle=False, verbose=0).history
        return history, model.evaluate(x, y, batch_size=5, verbose=0, return_dict=True)

    assert_close(trained(3), trained(1))
