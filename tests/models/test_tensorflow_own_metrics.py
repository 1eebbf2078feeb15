"""Metrics of the user's own on replicas of TensorFlow, which reads the sum over replicas of what they keep."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from kind_of_keras import IS_KERAS2

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]

X = np.random.default_rng(0).normal(size=(103, 3)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5]], "float32")
WEIGHTS = np.linspace(0.5, 1.5, len(X)).astype("float32")


class Largest(keras.metrics.Metric):
    """Keeps the largest error and how many times it grew: no sums of examples, and one of them a whole number."""

    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.largest = self.add_weight(name="error", initializer=keras.initializers.Constant(-np.inf))
        self.batches = self.add_weight(name="batches", initializer="zeros", dtype="int32")

    def update_state(self, y_true, y_pred, sample_weight=None):
        errors = tf.abs(tf.cast(y_true, "float32") - y_pred)
        if sample_weight is not None:
            errors *= tf.reshape(tf.cast(sample_weight, "float32"), [-1, 1])
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(errors)))
        self.batches.assign(self.batches + 1)

    def reset_state(self):
        self.largest.assign(-np.inf)
        self.batches.assign(0)

    def result(self):
        return self.largest + 1000.0 * tf.cast(self.batches, "float32")


class Summed(Largest):
    """Says that it keeps sums, which is not so."""

    keeps_sums = True


class OwnMean(keras.metrics.Mean):
    """Inherits how it updates, and so keeps sums."""


def evaluated(model_class, scope, metric, **given):
    keras.utils.set_random_seed(0)
    with scope:
        model = model_class(inputs := keras.Input((3,)), keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", metrics=[metric()], weighted_metrics=[metric("weighted")])
    return model.evaluate(X, Y, sample_weight=WEIGHTS, verbose=0, return_dict=True, **given), model


@pytest.mark.parametrize("model_class", [kte.TPUModel, pytest.param(keras.Model, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("rows", [pytest.param(96, marks=pytest.mark.exhaustive), 40])
def test_what_is_no_sum_is_that_of_the_whole_batch(scope3, model_class, rows):
    expected, _ = evaluated(keras.Model, tf.device("CPU:0"), Largest, batch_size=rows)
    got, model = evaluated(model_class, scope3, Largest, batch_size=rows)
    assert expected["largest"] > 1000
    np.testing.assert_allclose([got[name] for name in expected], list(expected.values()), rtol=1e-5)
    history = model.fit(X, Y, batch_size=rows, sample_weight=WEIGHTS, epochs=2, shuffle=False, verbose=0).history
    assert [value // 1000 for value in history["largest"]] == [-(-len(X) // rows)] * 2


@pytest.mark.exhaustive
def test_a_metric_that_says_it_keeps_sums_is_taken_at_its_word(scope8):
    got, _ = evaluated(kte.TPUModel, scope8, Summed, batch_size=103)
    assert got["largest"] // 1000 == 8


@pytest.mark.exhaustive
def test_padded_rows_count_in_none(scope8):
    expected, model = evaluated(kte.TPUModel, scope8, Largest, batch_size=103)
    batches = tf.data.Dataset.from_tensor_slices((X, Y, WEIGHTS)).batch(103)
    got = model.evaluate(kte.data.pad_batches(batches, 128), verbose=0, return_dict=True)
    np.testing.assert_allclose([got[name] for name in expected], list(expected.values()), rtol=1e-5)


class Decays(Largest):
    """Begins with ones."""

    def __init__(self, name="decays", **kwargs):
        keras.metrics.Metric.__init__(self, name=name, **kwargs)
        self.mean = self.add_weight(name="mean", initializer="ones")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(y_pred))

    def reset_state(self):
        self.mean.assign(1.0)

    def result(self):
        return tf.identity(self.mean)


@pytest.mark.exhaustive
def test_what_a_metric_begins_with_is_the_same_on_any_number_of_replicas(scope3):
    ours, plain = (evaluated(keras.Model, scope, Decays)[0] for scope in (scope3, contextlib.nullcontext()))
    assert ours == pytest.approx(plain, rel=1e-5)


class Late(keras.metrics.Metric):
    """Makes its variable when it is updated."""

    total = None

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.total is None:
            self.total = self.add_weight(name="total", initializer="zeros")
        self.total.assign_add(tf.reduce_sum(tf.cast(y_true, "float32")))

    def reset_state(self):
        if self.total is not None:
            self.total.assign(0.0)

    def result(self):
        return 0.0 if self.total is None else self.total + 0.0


@pytest.mark.exhaustive
@pytest.mark.runtimes("keras2_tf")  # Keras 3 makes no variable while it traces
def test_a_metric_that_makes_its_variables_late_keeps_sums(scope8):
    got, _ = evaluated(kte.TPUModel, scope8, Late, batch_size=40)
    np.testing.assert_allclose(got["late"], np.sum(Y), rtol=1e-4)


class Total(Largest):
    """Adds up errors by whole rows, and counts them, without saying that it keeps sums."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        errors = tf.abs(tf.cast(y_true, "float32") - y_pred)
        self.largest.assign_add(tf.reduce_sum(errors))
        self.batches.assign_add(tf.shape(errors)[0])


@pytest.mark.skipif(IS_KERAS2, reason="Keras 2 calls an untyped mean otherwise")
def test_which_metrics_need_the_whole_batch(scope3):
    from keras_tpu_ext._runtime.tensorflow import batch
    from keras_tpu_ext._runtime.training.compile_utils import needs_whole_batch

    rows = tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1])
    with scope3:
        kinds = [OwnMean, keras.metrics.AUC, Largest, Summed, Total]
        assert [needs_whole_batch(kind(), batch, *rows) for kind in kinds] == [False, False, True, False, False]


class OfRelativeWeights(Largest):
    """Keeps a sum of errors, with weights that it divides by their mean, if there are any."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        errors = tf.abs(tf.cast(y_true, "float32") - y_pred)
        if sample_weight is not None:
            weights = tf.reshape(tf.cast(sample_weight, "float32"), [-1, 1])
            errors *= weights / tf.reduce_mean(weights)
        self.largest.assign_add(tf.reduce_sum(errors))


@pytest.mark.skipif(IS_KERAS2, reason="Keras 2 calls an untyped mean otherwise")
def test_a_metric_may_keep_sums_without_weights_only(scope3):
    from keras_tpu_ext._runtime.tensorflow import batch
    from keras_tpu_ext._runtime.training.compile_utils import needs_whole_batch

    rows = tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1])
    with scope3:
        metric = OfRelativeWeights()
        assert [needs_whole_batch(metric, batch, *rows, weights) for weights in (None, rows[0])] == [False, True]
