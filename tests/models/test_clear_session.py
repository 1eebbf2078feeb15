"""`keras.backend.clear_session()` inside the block of a scope, as cross-validation uses it."""

import dataclasses

import keras
import numpy as np
import pytest
from keras.backend import clear_session  # before any block

import keras_tpu_ext as kte
from closeness import assert_close

pytestmark = [pytest.mark.gate_on("keras3_tf", "keras3_jax"), pytest.mark.usefixtures("garbage_of_this_test_only")]
X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
Y = X[:, :1] * 0.5


@pytest.fixture
def scope3():
    return kte.strategy_scope(require="cpu", replicas=3)


def made():
    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(3, activation="tanh")(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def of_two_folds(scope):
    """Return the last of two models that are made, each after a `clear_session()`, and trained."""
    with scope:
        for _ in range(2):
            keras.backend.clear_session()
            model = made()
            model.fit(X, Y, batch_size=6, shuffle=False, verbose=0)
    return model


@pytest.mark.exhaustive
def test_models_of_each_fold_are_exact(scope3):
    one = of_two_folds(kte.strategy_scope(require="cpu", replicas=1))
    assert_close(of_two_folds(scope3).predict(X, verbose=0), one.predict(X, verbose=0))
    assert "keras_tpu_ext" not in str(type(made()).__mro__), "the block was left"


@pytest.mark.gate_on("keras3_jax")
def test_the_precision_of_the_block_stays(scope3):
    model = of_two_folds(dataclasses.replace(scope3, precision="mixed_bfloat16"))
    assert model.layers[-1].compute_dtype == "bfloat16"
    assert made().layers[-1].compute_dtype == "float32"


@pytest.mark.gate_on("keras3_jax")
def test_in_nested_blocks_by_a_name_imported_before(scope3):
    with scope3:
        with scope3:
            clear_session()
        model = made()
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"]).all()
    clear_session()
    assert not isinstance(made(), type(model))


@pytest.mark.gate_on("keras3_jax")
def test_in_a_callback(scope3):
    """As notebooks do against memory that grows."""
    with scope3:
        model = made()
    clear = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: keras.backend.clear_session())
    losses = model.fit(X, Y, epochs=2, verbose=0, callbacks=[clear]).history["loss"]
    assert losses[1] < losses[0]
