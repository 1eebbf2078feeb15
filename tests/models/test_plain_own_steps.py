"""Steps that others wrote for one device, in a plain model inside a scope, unchanged: the numbers of one device."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from closeness import assert_close
from kind_of_keras import IS_KERAS2

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf", "keras2_tf215")]

EXAMPLES, FEATURES = 43, 6  # 16, 16 and 11 of them: over three replicas 4, 4 and 3, and of 11 once more
WHOLE = pytest.mark.filterwarnings("ignore:.* has a step of its own, so:UserWarning")


def dense(*units):
    layers = [keras.layers.Dense(n, activation="tanh") for n in units[1:-1]]
    return keras.Sequential([keras.layers.InputLayer((units[0],)), *layers, keras.layers.Dense(units[-1])])


class WithoutCall(keras.Model):
    """Has networks and no `call`, as the models of most programs that train two networks."""

    def __init__(self):
        super().__init__()
        self.one, self.other = dense(FEATURES, 4, 1), dense(2, 4, FEATURES)
        self.mean = keras.metrics.Mean(name="mean")
        self.sum = keras.metrics.Sum(name="sum")

    def compile(self):
        super().compile()
        self.optimizers = [keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.1, clipnorm=0.5)]
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.mean, self.sum]


class Adversaries(WithoutCall):
    """Counts in whole numbers, and has a graph of its own."""

    def __init__(self):
        super().__init__()
        self.sum = keras.metrics.Sum(name="sum", dtype="int32")

    @tf.function
    def train_step(self, x):
        rows = tf.shape(x)[0]
        noise = tf.fill([rows, 2], 0.3)
        both = tf.concat([self.other(noise), x], axis=0)
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            first = self.loss_fn(labels, self.one(both))
        self.update(0, tape.gradient(first, self.one.trainable_weights), self.one)
        with tf.GradientTape() as tape:
            second = self.loss_fn(tf.zeros((rows, 1)), self.one(self.other(noise)))
        self.update(1, tape.gradient(second, self.other.trainable_weights), self.other)
        self.mean.update_state(first)
        self.sum.update_state(tf.ones(rows))
        return {"mean": self.mean.result(), "sum": self.sum.result(), "second": second}

    def update(self, number, gradients, network):
        self.optimizers[number].apply_gradients(zip(gradients, network.trainable_weights, strict=True))


class Variational(WithoutCall):
    """Reduces by itself, compares the rows of a batch, and has a penalty on gradients."""

    def train_step(self, x):
        variables = self.one.trainable_weights
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                scores = self.one(x)
            slopes = tf.sqrt(1e-6 + tf.reduce_sum(inner.gradient(scores, x) ** 2, axis=1))
            loss = tf.reduce_mean(tf.reduce_sum((scores - tf.reduce_mean(scores)) ** 2, axis=1))
            loss += tf.reduce_mean((slopes - 1.0) ** 2)
        self.update_all(tape.gradient(loss, variables), variables)
        self.mean.update_state(loss)
        self.sum.update_state(scores)
        return {"loss": self.mean.result(), "raw": loss, "sum": self.sum.result()}

    def update_all(self, gradients, variables):
        self.optimizers[0].apply_gradients(zip(gradients, variables, strict=True))

    def test_step(self, x):
        self.mean.update_state(tf.reduce_max(self.one(x)))
        self.sum.update_state(self.one(x))
        return {metric.name: metric.result() for metric in self.metrics}


class LooksUp(WithoutCall):
    """Has gradients in slices, and an optimizer that squares them."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(3, 4)
        self.table.build((None,))

    def compile(self):
        super().compile()
        self.optimizers = [keras.optimizers.Adam(0.01)]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.table(tf.cast(x > 0.0, tf.int32)) - 0.5) ** 2)
        variables = self.table.trainable_weights
        self.optimizers[0].apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


PLAIN = {"two networks": Adversaries, "its own reductions": Variational, "a table": LooksUp}


def rows(data):
    return tf.data.Dataset.from_tensor_slices(data).batch(16)


def outcome(model, x):
    history = model.fit(rows(x), epochs=2, verbose=0, shuffle=False).history
    weights = np.concatenate([value.ravel() for value in model.get_weights()[: len(model.trainable_weights)]])
    return {**history, "weights": weights}


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(5).normal(size=(EXAMPLES, FEATURES)).astype("float32")


def made(model_class):
    keras.utils.set_random_seed(2)
    model = model_class()
    model.compile()
    return model


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert_close(np.asarray(got[name]), np.asarray(values), message=name)


@WHOLE
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("two networks", marks=pytest.mark.gate_on("keras3_tf")),
        pytest.param("its own reductions", marks=pytest.mark.gate_on("keras2_tf215")),
        pytest.param("a table", marks=pytest.mark.gate_on("keras2_tf215")),
    ],
)
def test_a_step_for_one_device_gives_its_numbers(x, scope3, kind):
    plain = made(PLAIN[kind])
    with scope3:
        ours = made(PLAIN[kind])
    assert_same(outcome(ours, x), outcome(plain, x))


class UpdatesNowAndThen(LooksUp):
    """Takes a step of its optimizer on a condition, as those do that accumulate gradients."""

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.one(x) ** 2)
        variables = self.one.trainable_weights
        pairs = list(zip(tape.gradient(loss, variables), variables, strict=True))

        def update():
            self.optimizers[0].apply_gradients(pairs)
            return 1

        tf.cond(loss > 0.0, update, lambda: 0)
        return {"loss": loss}


@WHOLE
def test_an_update_on_a_condition_is_refused_with_the_cure(x, scope3):
    with scope3:
        model = made(UpdatesNowAndThen)
    with pytest.raises(kte.errors.ArgumentError, match=r"train_step .* gradient_accumulation_steps=4"):
        outcome(model, x)


@pytest.mark.gate_on("keras2_tf215")
@WHOLE
def test_a_test_step_too(x, scope3):
    plain = made(Variational)
    with scope3:
        ours = made(Variational)
    results = [model.evaluate(rows(x), verbose=0, return_dict=True) for model in (ours, plain)]
    assert_same(*results)


@pytest.mark.gate_on("keras3_tf")
def test_it_is_told_once_for_a_model_with_the_cure(x, scope3):
    with scope3:
        ours = made(Adversaries)
    with pytest.warns(kte.errors.CustomStepWarning) as caught:
        ours.fit(rows(x), verbose=0, shuffle=False)
    assert [warning.message.args[0] for warning in caught if warning.category is kte.errors.CustomStepWarning] == [
        f"{ours.name!r} has a step of its own, so each of the 3 replicas runs it on the whole batch: its numbers are "
        "those of one device, and so is its speed. To let each take its part, write its means as "
        "self.global_mean(values) and its updates as self.minimize(loss, variables, optimizer, tape)"
    ]


@pytest.mark.gate_on("keras2_tf215")
def test_that_of_a_tpumodel_which_reduces_its_part_is_told(x, scope3):
    class Reduces(Variational, kte.TPUModel):
        pass

    with scope3:
        ours = made(Reduces)
    with pytest.warns(kte.errors.CustomStepWarning) as caught:
        ours.fit(rows(x), verbose=0, shuffle=False)
    assert [warning.message.args[0] for warning in caught if warning.category is kte.errors.CustomStepWarning] == [
        f"{ours.name!r} has a step of its own, and runs on each replica's part of the batch: a mean that it takes is "
        "that of a part, and the gradients of all parts are added. Write its means as self.global_mean(values) and "
        "its updates as self.minimize(loss, variables, optimizer, tape)"
    ]


class ForReplicas(WithoutCall):
    sizes = ()

    def train_step(self, x):
        type(self).sizes += (x.shape[0],)
        with tf.GradientTape() as tape:
            loss = self.global_mean(tf.reduce_sum(self.one(x) ** 2, axis=1))
        self.minimize(loss, self.one.trainable_weights, self.optimizers[0], tape)
        self.mean.update_state(loss)
        return {"mean": self.mean.result()}


def test_a_step_that_calls_global_mean_gets_its_part_in_silence(x, scope3):
    with scope3:
        ours = made(ForReplicas)
    ours.run_eagerly = True
    with warnings.catch_warnings():
        warnings.simplefilter("error", kte.errors.CustomStepWarning)
        ours.fit(rows(x[:15]), verbose=0, shuffle=False)
    assert set(ForReplicas.sizes) <= {5, None}


class WithCall(keras.Model):
    def __init__(self):
        super().__init__()
        self.network = dense(FEATURES, 4, 1)

    def call(self, x):
        return self.network(x)

    def compile(self):
        super().compile("adam", keras.losses.MeanSquaredError(), metrics=["mae"])


class AroundOurs(WithCall):
    def train_step(self, data):
        x, y = data
        return super().train_step((x * 0.5, y))


class DistillsInComputeLoss(WithCall):
    """Has a compiled loss and one of its own, both of Keras's classes."""

    def __init__(self):
        super().__init__()
        self.teacher, self.divergence = dense(FEATURES, 1), keras.losses.Huber()
        self.teacher.trainable = False

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
        if IS_KERAS2:
            own = self.compiled_loss(y, y_pred)
        else:
            own = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        return 0.3 * own + 0.7 * self.divergence(self.teacher(x), y_pred)


@WHOLE
@pytest.mark.parametrize(
    "model_class",
    [
        pytest.param(AroundOurs, marks=pytest.mark.gate_on("keras2_tf215")),
        pytest.param(DistillsInComputeLoss, marks=pytest.mark.gate_on("keras3_tf")),
    ],
)
def test_what_calls_ours_and_adds_to_it(x, scope3, model_class):
    y = x.sum(axis=1, keepdims=True)
    plain = made(model_class)
    with scope3:
        ours = made(model_class)
    assert_same(outcome(ours, (x, y)), outcome(plain, (x, y)))


class OfAPair(keras.Model):
    """Takes a list where the data are a dictionary."""

    def __init__(self):
        super().__init__()
        self.one, self.other = keras.layers.Dense(2), keras.layers.Dense(1)

    def call(self, inputs, training=False):
        first, second = inputs
        return self.other(self.one(first) + second)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.global_mean((self([x["first"], x["second"]], training=True) - y) ** 2)
        self.minimize(loss, self.trainable_variables, self.optimizer, tape)
        return {"own": loss}


def test_a_step_that_calls_the_model_with_something_else_than_the_data(x, scope3):
    with scope3:
        model = OfAPair()
        model.compile("sgd")
    data = {"first": x[:15, :2], "second": x[:15, 2:4]}
    (own,) = model.fit(data, x[:15, :1], batch_size=15, verbose=0).history["own"]
    assert np.isfinite(own)


class WithANumber(Variational):
    def train_step(self, data):
        x, factor = data
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_mean(self.one(x) ** 2)
        self.update_all(tape.gradient(loss, self.one.trainable_weights), self.one.trainable_weights)
        self.mean.update_state(loss)
        return {"mean": self.mean.result()}


@pytest.mark.exhaustive
@WHOLE
def test_a_number_in_a_batch_is_that_of_every_replica(x, scope3):
    batches = tf.data.Dataset.from_tensor_slices(x).batch(16).map(lambda rows: (rows, tf.constant(0.5)))
    plain = made(WithANumber)
    with scope3:
        ours = made(WithANumber)
    histories = [model.fit(batches, epochs=2, shuffle=False, verbose=0).history["mean"] for model in (ours, plain)]
    assert_close(*map(np.asarray, histories))
