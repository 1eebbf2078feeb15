"""Variables that share an array: JAX deletes what a step donates, and the trained weights would be lost with it."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.jax import loop

pytestmark = pytest.mark.runtimes("keras3_jax")
X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = X[:, :1]
AVERAGING = {"use_ema": True, "ema_momentum": 0.5}


def model(optimizer=None, **options):
    keras.utils.set_random_seed(1)
    with kte.strategy_scope(require="cpu", replicas=2):
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.1, **AVERAGING) if optimizer is None else optimizer, "mse", **options)
    return made


def fit(made, **options):
    return made.fit(X, Y, batch_size=4, verbose=0, shuffle=False, **options).history["loss"]


BETWEEN = {
    "evaluate": lambda made: made.evaluate(X, Y, batch_size=4, verbose=0),
    "predict": lambda made: made.predict(X, batch_size=4, verbose=0),
    "evaluate and predict": lambda made: (BETWEEN["evaluate"](made), BETWEEN["predict"](made)),
    "train_on_batch": lambda made: made.train_on_batch(X, Y),
}


@pytest.mark.parametrize("then", ["fit", "save"])
@pytest.mark.parametrize("between", BETWEEN)
def test_what_was_averaged_is_not_lost(between, then, tmp_path):
    made = model()
    fit(made)
    BETWEEN[between](made)
    weights = made.get_weights()
    if then == "fit":
        assert np.isfinite(fit(made)).all()
    else:
        made.save(tmp_path / "model.keras")
        np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras").get_weights()[0], weights[0])


def test_averages_that_are_swapped_in_for_validation():
    made = model()
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    fit(made, epochs=2, callbacks=[swap], validation_data=(X, Y), validation_batch_size=4)
    made.evaluate(X, Y, batch_size=4, verbose=0)
    assert np.isfinite(fit(made)).all()


@pytest.mark.parametrize("when", ["before fit", "in fit"])
def test_the_weights_of_another_model_are_not_taken_away(when):
    """As the target network of DQN, SAC or BYOL gets those of the one that trains."""
    online, target = model(), model()

    def copy():
        for one, other in zip(target.variables, online.variables, strict=True):
            one.assign(other)

    class Copying(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert self.model is online  # which lets Keras put the values into the variables
            copy()

    copy()
    fit(online, callbacks=[Copying()] if when == "in fit" else [])
    assert np.isfinite(target.predict(X, verbose=0)).all()
    assert np.isfinite(fit(target)).all()
    assert np.isfinite(fit(online)).all()


def test_an_array_that_the_user_holds_is_not_deleted():
    made = model("sgd")
    held = made.trainable_variables[0].value
    before = np.array(held)
    fit(made)
    np.testing.assert_array_equal(held, before)


@pytest.mark.parametrize(
    "callbacks", [[], [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)]]
)
def test_nothing_is_copied_that_is_not_shared(callbacks, monkeypatch):
    copies = []
    original = loop.unshare

    def counting(variables, running=()):
        before = [id(variable.value) for variable in variables]
        original(variables, running)
        copies.extend(id(variable.value) != was for variable, was in zip(variables, before, strict=True))

    monkeypatch.setattr("keras_tpu_ext._runtime.jax.program.unshare", counting)
    made = model("adam", loss_scale=8.0, gradient_accumulation_steps=2)
    fit(made, epochs=2, callbacks=callbacks, validation_data=(X, Y))
    made.evaluate(X, Y, verbose=0)
    made.predict(X, verbose=0)
    fit(made)
    assert len(copies) > 50
    assert not any(copies)
