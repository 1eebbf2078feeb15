"""In a scope a step is compiled once, whatever a `fit` does between steps."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = [pytest.mark.runtimes("keras3_jax"), pytest.mark.gate_on("keras3_jax")]

X, Y = np.random.default_rng(0).normal(size=(68, 4)).astype("float32"), np.zeros((68, 1), "float32")


def model_in(scope, **compiled):
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
        model.add(keras.layers.Dropout(0.2))
        model.add(keras.layers.Dense(1))
        model.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"]} | compiled)
    return model


def compiled_again(model, *callbacks, fits=1, **options):
    recompilations = kte.callbacks.Recompilations(on_recompile="ignore")
    given = {"batch_size": 8, "epochs": 3, "verbose": 0, "validation_data": (X, Y)} | options
    for _ in range(fits):
        model.fit(X, Y, callbacks=[*callbacks, recompilations], **given)
    return [str(one) for one in recompilations.report().compilations if one.reason]


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.exhaustive), 2], ids=["one device", "two devices"])
def scope(request):
    if request.param == 1:
        return kte.strategy_scope(require="cpu")
    return kte.strategy_scope(replicas=request.param)


@pytest.mark.parametrize(
    "compiled",
    [
        {},
        {"steps_per_execution": 3},
        {"loss_scale": "dynamic"},
        {"gradient_accumulation_steps": 2},
        {"optimizer": keras.optimizers.SGD(momentum=0.9, use_ema=True, ema_overwrite_frequency=3)},
    ],
    ids=lambda compiled: ", ".join(compiled) or "plain",
)
def test_a_step_is_compiled_once(scope, compiled):
    if "optimizer" in compiled:
        compiled = {"optimizer": type(compiled["optimizer"]).from_config(compiled["optimizer"].get_config())}
    assert compiled_again(model_in(scope, **compiled)) == []


def test_a_second_fit_compiles_nothing(scope):
    assert compiled_again(model_in(scope), fits=2) == []


def test_callbacks_that_assign_weights_and_rates_compile_nothing(scope):
    best = keras.callbacks.EarlyStopping(patience=0, restore_best_weights=True)
    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch))
    assert compiled_again(model_in(scope), best, rate, keras.callbacks.ReduceLROnPlateau(patience=0)) == []


def test_weights_that_are_loaded_compile_nothing(scope, tmp_path):
    model = model_in(scope)
    model.save_weights(tmp_path / "a.weights.h5")
    model.load_weights(tmp_path / "a.weights.h5")
    model.set_weights(model.get_weights())
    assert compiled_again(model, keras.callbacks.ModelCheckpoint(tmp_path / "b.keras")) == []
