"""One GPU, on a machine that has one: what rehearsals on CPUs cannot show. Elsewhere all of it is skipped."""

import contextlib

import jax
import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime

pytestmark = [
    pytest.mark.runtimes("keras3_jax"),
    pytest.mark.skipif(not _runtime.devices.count_gpus(), reason="this machine has no GPU that JAX can use"),
]
TOLERANCE = 1e-4  # of matrix products in float32, which are not to be those of TF32


@pytest.fixture(autouse=True)
def whole_float32():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype("float32").reshape(-1, 8, 8, 1), labels.astype("int32")


def network(model_class, dropout=0.0):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(16, 3, activation="relu")(inputs)
    x = keras.layers.Flatten()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Dropout(dropout)(keras.layers.Dense(32, activation="relu")(x))
    return model_class(inputs, keras.layers.Dense(10, dtype="float32")(x))


def compile_(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(options.pop("optimizer", "adam"), loss, metrics=["accuracy"], **options)
    return model


def on_gpu(model_class=kte.TPUModel, precision=None, dropout=0.0, **options):
    with kte.strategy_scope(require="gpu", replicas=1, precision=precision):
        return compile_(network(model_class, dropout), **options)


@contextlib.contextmanager
def on_cpu():
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    with jax.default_device(jax.devices("cpu")[0]):
        yield
    keras.distribution.set_distribution(before)


def fit(model, data, **options):
    return model.fit(*data, batch_size=100, verbose=0, **{"shuffle": False, "epochs": 2, **options}).history


def test_the_scope_takes_the_gpu():
    scope = kte.strategy_scope()
    assert scope.hardware.kind == "gpu"
    assert scope.num_replicas == jax.local_device_count("gpu")
    model = on_gpu()
    assert {device.platform for weight in model.weights for device in weight.value.devices()} == {"gpu"}


@pytest.mark.parametrize("model_class", [kte.TPUModel, keras.Model])
def test_it_trains_as_plain_keras_on_the_cpu(digits, model_class):
    with on_cpu():
        expected = compile_(network(keras.Model))
        history = fit(expected, digits)
    got = on_gpu(model_class)
    for name, values in fit(got, digits).items():
        np.testing.assert_allclose(values, history[name], rtol=20 * TOLERANCE, err_msg=name)
    evaluated = got.evaluate(*digits, batch_size=100, verbose=0, return_dict=True)
    np.testing.assert_allclose(evaluated["loss"], expected.evaluate(*digits, verbose=0)[0], rtol=20 * TOLERANCE)


def test_one_step_of_everything_is_that_of_the_cpu(digits):
    options = {"loss_scale": "dynamic", "gradient_accumulation_steps": 2, "optimizer": keras.optimizers.SGD}
    weights = []
    for where in (on_cpu, contextlib.nullcontext):
        with where():
            chosen = {**options, "optimizer": keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0)}
            model = compile_(network(kte.TPUModel), **chosen) if where is on_cpu else on_gpu(**chosen)
            fit(model, [array[:200] for array in digits], epochs=1)
            weights.append(model.get_weights())
    for expected, got in zip(*weights, strict=True):
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("steps_per_execution", [7, "auto"])
def test_several_steps_in_an_execution_change_nothing(digits, steps_per_execution):
    one, more = (fit(on_gpu(steps_per_execution=steps), digits) for steps in (1, steps_per_execution))
    np.testing.assert_allclose(more["loss"], one["loss"], rtol=TOLERANCE)


def test_float16_overflows_and_the_loss_scale_falls_until_it_trains(digits):
    scale = kte.LossScale(initial=2.0**40, maximum=2.0**40, growth_steps=1000)
    model = on_gpu(precision="mixed_float16", loss_scale=scale)
    history = fit(model, digits, epochs=6)
    assert 5 < 6 * 18 - int(model.optimizer.iterations.numpy()) < 40, "steps that were skipped"
    assert history["accuracy"][-1] > 0.8


def test_bfloat16_trains(digits):
    model = on_gpu(precision="auto")
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert fit(model, digits, epochs=4)["accuracy"][-1] > 0.8


def test_attention_is_that_of_the_cpu():
    x = np.random.default_rng(0).normal(size=(4, 128, 16)).astype("float32")
    outputs = []
    for where in (on_cpu(), kte.strategy_scope(require="gpu", replicas=1)):
        with where:
            keras.utils.set_random_seed(0)
            inputs = keras.Input((128, 16))
            model = kte.TPUModel(inputs, keras.layers.MultiHeadAttention(2, 16)(inputs, inputs))
            outputs.append(np.asarray(model.predict(x, verbose=0)))
    np.testing.assert_allclose(*outputs, rtol=20 * TOLERANCE, atol=20 * TOLERANCE)


def test_throughput_and_host_bottleneck_report(digits, capsys):
    callbacks = [kte.callbacks.Throughput(), kte.callbacks.HostBottleneck()]
    history = fit(on_gpu(), digits, epochs=3, callbacks=callbacks)
    assert history["throughput/samples_per_sec"][-1] > 0
    assert "HostBottleneck: epoch" in capsys.readouterr().out


def test_an_interrupted_training_goes_on(digits, tmp_path):
    class Killed(BaseException):
        pass

    class Killer(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 11:
                raise Killed

    whole = on_gpu(dropout=0.3)
    expected = fit(whole, digits, shuffle=True)
    killed = on_gpu(dropout=0.3)
    with pytest.raises(Killed):
        fit(killed, digits, shuffle=True, callbacks=[kte.callbacks.AutoResume(tmp_path, every_s=0), Killer()])
    resume = kte.callbacks.AutoResume(tmp_path, every_s=0)
    model = on_gpu(dropout=0.3)
    got = fit(model, digits, shuffle=True, callbacks=[resume])
    assert resume.finished
    np.testing.assert_allclose(got["loss"], expected["loss"], rtol=TOLERANCE)
    for one, other in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * TOLERANCE, atol=10 * TOLERANCE)


def test_a_sharded_scope_of_one_gpu_trains(digits):
    with kte.strategy_scope(require="gpu", replicas=1, shard="fsdp"):
        model = compile_(network(kte.TPUModel))
    np.testing.assert_allclose(fit(model, digits)["loss"], fit(on_gpu(), digits)["loss"], rtol=TOLERANCE)
