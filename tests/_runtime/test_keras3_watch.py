"""What reaches the optimizer's update: compared with the gradient that the framework gives on one device."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax")

TOKENS = np.array([[1, 1, 2], [3, 1, 0], [2, 2, 2]])  # rows that come more than once, and one (4) that never does
TARGETS = np.array([[1.0], [-2.0], [0.5]], "float32")


def words(model_class=keras.Model, **options):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,), dtype="int32")
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(5, 4)(inputs))
    model = model_class(inputs, keras.layers.Dense(1)(hidden))
    model.compile(**{"optimizer": keras.optimizers.Adam(), "loss": "mse"} | options)
    return model


def by_framework(model):
    """Return the gradients that the framework gives for the whole batch on one device."""
    if keras.backend.backend() == "jax":
        import jax

        def loss_of(trainable):
            outputs, _ = model.stateless_call(trainable, [v.value for v in model.non_trainable_variables], TOKENS)
            return keras.ops.mean(keras.ops.square(outputs - TARGETS))

        return [np.asarray(g) for g in jax.grad(loss_of)([v.value for v in model.trainable_variables])]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(TOKENS) - TARGETS))
    return [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, model.trainable_variables)]


def recorded(model, **kwargs):
    read = _runtime.models.record_gradients(model)
    model.fit(TOKENS, TARGETS, batch_size=3, verbose=0, **kwargs)
    return read()


@pytest.mark.parametrize("scaled", [False, True])
def test_recorded_is_the_gradient_and_the_weights_stay(scaled):
    optimizer = keras.optimizers.Adam()
    model = words(optimizer=keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)
    before = model.get_weights()
    for expected, got in zip(by_framework(model), recorded(model, epochs=2), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)
        assert expected.any()
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "clipping",
    [
        {"global_clipnorm": 0.1},
        pytest.param({"clipvalue": 0.05}, marks=pytest.mark.exhaustive),
        pytest.param({}, marks=pytest.mark.exhaustive),
    ],
)
def test_recorded_on_replicas_is_summed_and_clipped_as_on_one_device(scope3, clipping):
    def optimizer():
        return keras.optimizers.SGD(**clipping)

    expected = recorded(words(optimizer=optimizer()))
    with scope3:
        got = recorded(words(kte.TPUModel, optimizer=optimizer()))
    for one, many in zip(expected, got, strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-7)
    untouched = [np.allclose(one, whole) for one, whole in zip(expected, by_framework(words()), strict=True)]
    assert all(untouched) is not bool(clipping)


def test_nothing_is_recorded_before_a_step_or_of_a_skipped_one():
    model = words(kte.TPUModel, loss_scale="dynamic")
    read = _runtime.models.record_gradients(model)
    assert read() is None
    model.fit(TOKENS, TARGETS, sample_weight=np.full(3, np.inf, "float32"), verbose=0)
    assert read() is None
    assert _runtime.progress.loss_scale(model) == 2.0**14


def test_a_loss_scale_is_told_where_there_is_one():
    assert _runtime.progress.loss_scale(words()) is None
    assert _runtime.progress.loss_scale(words(kte.TPUModel, loss_scale=256)) == 256.0
    model = words(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=64.0))
    model.fit(TOKENS, TARGETS, verbose=0)
    assert _runtime.progress.loss_scale(model) == 64.0
