"""Code that looks beyond its row, on replicas of TensorFlow: the numbers of one device, and told."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from closeness import assert_close
from kind_of_keras import IS_KERAS2

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]
TOLD = pytest.mark.filterwarnings("ignore:.* at the examples of a batch together:UserWarning")
exhaustive = pytest.mark.exhaustive

X = np.array([[0.0], [2.0], [4.0], [10.0], [3.0]], "float32")
Y = np.array([[0.0], [0.0], [1.0], [0.0], [1.0]], "float32")
KERNEL = np.ones((3, 3, 1, 1), "float32")


class CentersInTraining(keras.layers.Layer):
    def call(self, x, training=False):
        return x - tf.reduce_mean(x, 0) if training else x


class CentersHalves(keras.layers.Layer):
    """Cannot take a single row."""

    def call(self, x):
        halves = tf.reshape(x, (2, -1))
        return tf.reshape(halves - tf.reduce_mean(halves, 1, keepdims=True), (-1, 1))


class Keeps(keras.layers.Layer):
    def build(self, shape):
        self.kept = self.add_weight(name="kept", shape=(), initializer="zeros", trainable=False)
        self.built = True

    def call(self, x, training=False):
        if training:
            self.kept.assign(self.next(x))
        return x + 0.0 * self.kept


class KeepsMean(Keeps):
    def next(self, x):
        return 0.5 * self.kept + tf.reduce_mean(x)


class CountsRows(Keeps):
    def next(self, x):
        return self.kept + tf.cast(tf.shape(x)[0], tf.float32)


class KeepsFirst(Keeps):
    """Initialises itself from the first batch, as ActNorm does."""

    def next(self, x):
        return tf.cond(tf.equal(self.kept + 0.0, 0.0), lambda: tf.reduce_mean(x), lambda: self.kept + 0.0)


class CentersByMeanOfShares(keras.layers.Layer):
    """Asks for a mean, but of what looks beyond its row already."""

    def call(self, x):
        return x - kte.batch_mean(x / (1.0 + tf.reduce_max(x)))


def centers_by_segments():
    """Return a layer of Keras with an activation of the user's, of an operation that has no rule."""

    def activation(x):
        return x - tf.math.unsorted_segment_mean(x, tf.zeros_like(x[:, 0], tf.int32), 1)

    return keras.layers.Activation(activation)


class DividesByVariance(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_mean((y_true - y_pred) ** 2, -1) / (1.0 + tf.math.reduce_variance(y_true - y_pred))


class SelectsAClass(keras.losses.Loss):
    def call(self, y_true, y_pred):
        chosen = tf.cast(tf.equal(y_true, 1.0), tf.float32)
        return tf.reduce_sum(chosen * (y_true - y_pred) ** 2) / (tf.reduce_sum(chosen) + 1.0) + 0.0 * y_pred[:, 0]


class Remembers(keras.losses.Loss):
    """Keeps a maximum and counts its calls, in variables and in an attribute."""

    def __init__(self):
        super().__init__()
        mean = tf.VariableAggregation.MEAN
        self.largest, self.calls = tf.Variable(0.0, aggregation=mean), tf.Variable(0.0, aggregation=mean)

    def call(self, y_true, y_pred):
        self.calls.assign_add(1.0)
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(tf.abs(y_pred))))
        return tf.reduce_mean((y_true - y_pred) ** 2, -1) / (1.0 + self.largest + self.calls)


def outcome(scope, layer=keras.layers.ReLU, loss=keras.losses.MeanSquaredError, rows=4, weights=None):
    keras.utils.set_random_seed(0)
    with scope:
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(layer()(inputs)))
        model.compile(keras.optimizers.SGD(0.01), loss())
    history = model.fit(X[:rows], Y[:rows], 4, 2, sample_weight=weights, shuffle=False, verbose=0).history
    return {
        **history,
        "evaluated": model.evaluate(X[:4], Y[:4], verbose=0),
        "weights": np.hstack([np.ravel(value) for value in model.get_weights()]),
    }


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert_close(np.asarray(got[name]), np.asarray(values), message=name)


@TOLD
@pytest.mark.parametrize(
    ("layer", "rows"),
    [
        (CentersInTraining, 4),
        (CountsRows, 5),
        *(
            pytest.param(*each, marks=exhaustive)
            for each in (
                (CentersByMeanOfShares, 4),
                (CentersHalves, 4),
                (KeepsMean, 5),
                (KeepsFirst, 5),
                (centers_by_segments, 4),
            )
        ),
    ],
)
def test_a_layer_that_looks_beyond_its_row(scope3, layer, rows):
    assert_same(outcome(scope3, layer, rows=rows), outcome(contextlib.nullcontext(), layer, rows=rows))


def selects_a_class_unreduced():
    return SelectsAClass(reduction="none")


@pytest.mark.parametrize(
    "loss",
    [
        selects_a_class_unreduced,
        *(pytest.param(each, marks=exhaustive) for each in (SelectsAClass, DividesByVariance, Remembers)),
    ],
)
def test_a_loss_that_looks_beyond_its_row(scope3, loss):
    assert_same(outcome(scope3, loss=loss), outcome(contextlib.nullcontext(), loss=loss))


@pytest.mark.skipif(IS_KERAS2, reason="of Keras 3")
def test_a_loss_of_keras_that_returns_one_number_with_weights(scope3):
    options = {"loss": keras.losses.Dice, "weights": np.arange(4.0)}
    assert_same(outcome(scope3, **options), outcome(contextlib.nullcontext(), **options))


def test_a_trial_changes_nothing_that_a_loss_keeps(scope3):
    with scope3:
        loss = Remembers()
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", loss)
    model.fit(X[:3], Y[:3], batch_size=3, verbose=0)
    assert float(loss.calls.numpy()) == 1.0


class Keeping(keras.Model):
    """Keeps what a layer has made of the batch, for its loss or its metrics."""

    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)
        self.spreads = keras.metrics.Mean(name="spread")

    def call(self, x):
        self.hidden = self.first(x)
        return self.last(self.hidden)

    def spread(self):
        return tf.math.reduce_std(self.hidden)


class InItsLoss(Keeping):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **training):
        return super().compute_loss(x, y, y_pred, sample_weight, **training) + self.spread()


class InItsMetrics(Keeping):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        self.spreads.update_state(self.spread())
        return {**logs, "spread": self.spreads.result()}


def trained(scope, model_class, reads=None):
    keras.utils.set_random_seed(0)
    with scope:
        model = model_class()

        def function(y_true, y_pred):
            return tf.reduce_mean((y_true - y_pred) ** 2, -1) + model.spread()

        loss, metrics = function if reads == "loss" else "mse", [function] if reads == "metrics" else None
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics)
    history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return {**history, "weights": np.hstack([np.ravel(value) for value in model.get_weights()])}


@TOLD
@pytest.mark.parametrize(
    ("model_class", "reads"),
    [
        pytest.param(InItsLoss, None, marks=exhaustive),
        (InItsMetrics, None),
        (Keeping, "loss"),
        pytest.param(Keeping, "metrics", marks=exhaustive),
    ],
)
def test_a_loss_that_reads_what_a_layer_keeps(scope3, model_class, reads):
    assert_same(trained(scope3, model_class, reads), trained(contextlib.nullcontext(), model_class, reads))


class Smallest(Keeping):
    """Updates a metric with one number for the batch, and returns another."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        self.spreads.update_state(tf.reduce_min(y_pred))
        return {**logs, "spread": self.spreads.result(), "largest": tf.reduce_max(y_pred)}


def test_own_compute_metrics_get_the_whole_batch(scope3):
    assert_same(trained(scope3, Smallest), trained(contextlib.nullcontext(), Smallest))


class AddsWeights(keras.layers.Layer):
    """Adds its weights to the loss, one by one."""

    def build(self, shape):
        self.weight = self.add_weight(name="weight", shape=(2,), initializer="ones")

    def call(self, x):
        self.add_loss(0.1 * self.weight**2)
        return x * self.weight[0]


@TOLD
@pytest.mark.skipif(IS_KERAS2, reason="Keras 2 adds numbers only")
def test_an_array_of_weights_that_a_layer_adds_to_the_loss(scope3):
    assert_same(outcome(scope3, AddsWeights), outcome(contextlib.nullcontext(), AddsWeights))


class Pools(keras.losses.Loss):
    """Pools images, which TensorFlow's kernels cannot do without a row."""

    def call(self, y_true, y_pred):
        images = [tf.reshape(tf.repeat(y, 16, axis=1), [-1, 4, 4, 1]) for y in (y_true, y_pred)]
        pools = [tf.nn.max_pool2d(tf.nn.conv2d(each, KERNEL, 1, "SAME"), 2, 2, "SAME") for each in images]
        return tf.reduce_mean((pools[0] - pools[1]) ** 2, axis=[1, 2, 3])


def test_a_loss_gets_a_row_where_a_replica_has_none(scope3):
    assert_same(outcome(scope3, loss=Pools, rows=5), outcome(contextlib.nullcontext(), loss=Pools, rows=5))


@pytest.mark.skipif(IS_KERAS2, reason="Keras 2 has no such loss")
def test_ctc_where_a_replica_has_no_row(scope3):
    x = np.random.default_rng(0).normal(size=(7, 5, 3)).astype("float32")
    y = np.arange(14).reshape(7, 2) % 2 + 1

    def losses(scope):
        keras.utils.set_random_seed(0)
        with scope:
            model = keras.Sequential([keras.Input((5, 3)), keras.layers.Dense(4)])
            model.compile("sgd", keras.losses.CTC())
        return model.fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0).history["loss"]

    assert_close(np.asarray(losses(scope3)), np.asarray(losses(contextlib.nullcontext())))


class CentersByMeanOfAll(keras.layers.Layer):
    parts = ()

    def call(self, x, training=False):
        type(self).parts += (x.shape[0],)
        return x - kte.batch_mean(x) if training else x


@pytest.mark.parametrize("rows", [4, pytest.param(5, marks=exhaustive)])
def test_a_mean_that_is_asked_for_needs_no_whole_batch(scope3, rows):
    expected = outcome(contextlib.nullcontext(), CentersInTraining, rows=rows)
    CentersByMeanOfAll.parts = ()
    assert_same(outcome(scope3, CentersByMeanOfAll, rows=rows), expected)  # in silence: warnings are errors here
    assert 4 not in CentersByMeanOfAll.parts


class AlwaysCenters(keras.layers.Layer):
    def call(self, x):
        return x - kte.batch_mean(x)


def test_a_mean_of_all_in_predict_leaves_out_rows_that_are_none(scope3):
    with scope3:
        model = keras.Sequential([keras.Input((1,)), AlwaysCenters()])
        model.compile("sgd", "mse")
    assert_close(model.predict(X[2:4], batch_size=4, verbose=0), X[2:4] - 7.0)  # a replica has no row


class LooksUp(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.table = keras.layers.Embedding(5, 1, embeddings_initializer="ones")
        self.table.build((None,))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
        return tf.reduce_mean((y_pred - self.table(tf.cast(y[:, 0], tf.int32))) ** 2)


@pytest.mark.skipif(IS_KERAS2, reason="Keras 2 wants a loss in `compile`")
@TOLD
def test_a_table_looked_up_in_compute_loss(scope3):
    def losses(scope):
        keras.utils.set_random_seed(0)
        with scope:
            inputs = keras.Input((1,))
            model = LooksUp(inputs, keras.layers.Dense(1)(inputs))
            model.compile(keras.optimizers.Adam(0.1))
        return model.fit(X, Y, batch_size=5, epochs=3, shuffle=False, verbose=0).history["loss"]

    assert_close(np.asarray(losses(scope3)), np.asarray(losses(contextlib.nullcontext())))


@pytest.mark.skipif(IS_KERAS2, reason="of Keras 3")
@TOLD
def test_layers_with_float8(scope3):
    def losses(scope):
        keras.utils.set_random_seed(0)
        with scope:
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3), keras.layers.Dense(1)])
            for layer in model.layers:
                layer.quantize("float8")
            model.compile(keras.optimizers.SGD(0.01), "mse")
        return model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]

    assert_close(np.asarray(losses(scope3)), np.asarray(losses(contextlib.nullcontext())))


@pytest.mark.skipif(IS_KERAS2, reason="Keras 2 refuses such a layer on replicas")
@TOLD
def test_a_stateful_layer(scope3):
    x = np.random.default_rng(0).normal(size=(12, 4, 2)).astype("float32")

    def results(scope):
        keras.utils.set_random_seed(0)
        with scope:
            inputs = keras.Input(batch_shape=(6, 4, 2))
            model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(3, stateful=True)(inputs)))
            model.compile("sgd", "mse")
        loss = model.fit(x, x[:, 0, :1], batch_size=6, epochs=2, shuffle=False, verbose=0).history["loss"]
        return np.hstack([loss, model.predict(x, batch_size=6, verbose=0).ravel()])

    assert_close(results(scope3), results(contextlib.nullcontext()))


def of_unknown_length():
    """Yield batches of sequences whose length only the data know; the last has fewer rows than replicas."""
    rng = np.random.default_rng(0)
    for rows, length in ((6, 5), (2, 7)):
        yield rng.normal(size=(rows, length, 2)).astype("float32"), rng.normal(size=(rows, 1)).astype("float32")


def test_a_replica_without_rows_gets_one_of_the_length_of_the_others(scope3):
    def losses(scope):
        keras.utils.set_random_seed(0)
        with scope:
            inputs = keras.Input((None, 2))
            model = keras.Model(inputs, keras.layers.GRU(2)(keras.layers.Conv1D(2, 3)(inputs)))
            model.compile("sgd", "mse")
        specs = (tf.TensorSpec([None, None, 2]), tf.TensorSpec([None, 1]))
        data = tf.data.Dataset.from_generator(of_unknown_length, output_signature=specs)
        data = data.apply(tf.data.experimental.assert_cardinality(2))
        return model.fit(data, epochs=1, shuffle=False, verbose=0).history["loss"]

    assert_close(np.asarray(losses(scope3)), np.asarray(losses(contextlib.nullcontext())))


@TOLD
def test_texts_are_padded_to_the_longest_of_the_batch(scope3):
    texts = tf.data.Dataset.from_tensor_slices([["a"], ["b a"], ["c"], ["b c b c c"]]).batch(4)

    def predicted(scope):
        keras.utils.set_random_seed(0)
        with scope:
            inputs = keras.Input((1,), dtype="string")
            numbers = keras.layers.TextVectorization(vocabulary=["a", "b", "c"])(inputs)
            means = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(5, 2)(numbers))
            model = keras.Model(inputs, means)
            model.compile("sgd", "mse")
        return model.predict(texts, verbose=0)

    assert_close(predicted(scope3), predicted(contextlib.nullcontext()))


@pytest.mark.skipif(IS_KERAS2 or not hasattr(keras.layers, "MelSpectrogram"), reason="of Keras 3")
@TOLD
def test_spectrograms_are_cut_off_below_the_loudest_of_the_batch(scope3):
    series = np.random.default_rng(0).normal(size=(4, 32)).astype("float32") * np.float32([[1e-6], [1], [1], [1]])

    def predicted(scope):
        with scope:
            layer = keras.layers.MelSpectrogram(fft_length=16, sequence_stride=4)
            model = keras.Sequential([keras.Input((32,)), layer])
            model.compile("sgd", "mse")
        return model.predict(series, batch_size=4, verbose=0)

    assert_close(predicted(scope3), predicted(contextlib.nullcontext()))


class Predicts(keras.Model):
    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        tf.debugging.assert_positive(tf.shape(x)[0], "an empty batch, which its code is not made for")
        return tf.image.resize(self(x, training=False), [6, 6])


def test_a_predict_step_of_ones_own_meets_no_empty_batch(scope3):
    x = np.random.default_rng(0).normal(size=(5, 4, 4, 1)).astype("float32")  # the last batch has one row

    def predicted(scope):
        keras.utils.set_random_seed(0)
        with scope:
            inputs = keras.Input((4, 4, 1))
            model = Predicts(inputs, keras.layers.Conv2D(2, 2)(inputs))
            model.compile("sgd", "mse")
        return model.predict(x, batch_size=4, verbose=0)

    assert_close(predicted(scope3), predicted(contextlib.nullcontext()))


class Mistaken(keras.Model):
    """Says that it is for replicas, and takes a mean of its own beside."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.global_mean((self(x, training=True) - y) ** 2)
        self.seen.assign(tf.reduce_mean(x))
        self.minimize(loss, self.trainable_variables, self.optimizer, tape)
        return {"loss": loss}


def test_a_step_with_global_mean_and_a_mean_of_its_own_gets_the_whole_batch(scope3):
    with scope3:
        inputs = keras.Input((1,))
        model = Mistaken(inputs, keras.layers.Dense(1)(inputs))
        model.seen = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
        model.compile("sgd", "mse")
    told = r"has a step of its own, which is not written for replicas \(Mean in line [0-9]+ of test_separability.py"
    with pytest.warns(kte.errors.CustomStepWarning, match=told):
        model.fit(X, Y, batch_size=5, verbose=0)
    assert_close(np.asarray(model.seen.numpy()), np.mean(X))


class Relative(keras.Model):
    """Takes a global mean, but of what looks beyond its row already."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            squares = (self(x, training=True) - y) ** 2
            loss = self.global_mean(squares / tf.stop_gradient(tf.reduce_max(squares)))
        self.minimize(loss, self.trainable_variables, self.optimizer, tape)
        return {"loss": loss}


@pytest.mark.filterwarnings("ignore:.* has a step of its own, which:UserWarning")
def test_a_global_mean_of_what_looks_beyond_its_row(scope3):
    def outcome(scope):
        keras.utils.set_random_seed(0)
        with scope:
            inputs = keras.Input((1,))
            model = Relative(inputs, keras.layers.Dense(1)(inputs))
            model.compile(keras.optimizers.SGD(0.1), "mse")
        return model.fit(X, Y, batch_size=5, epochs=3, shuffle=False, verbose=0).history["loss"]

    expected = outcome(kte.strategy_scope(require="cpu", replicas=1))
    assert_close(np.asarray(outcome(scope3)), np.asarray(expected))
