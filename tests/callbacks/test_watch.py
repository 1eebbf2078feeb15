import math
import pickle

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from kind_of_keras import IS_KERAS2

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

BATCH, BATCHES = 8, 20
ON_JAX = keras.backend.backend() == "jax"
SCOPE = {"require": "cpu", "replicas": 1}
PLACE = "epoch 1, batch 7 (step 7): "


def log(x):
    if IS_KERAS2:
        import tensorflow as tf

        return tf.math.log(x)
    return keras.ops.log(x)


def root_at_targets(y_true, y_pred):
    """Return a finite loss whose gradient at a target of 0 is 0 times inf."""
    return (y_true + 0 * y_pred) ** 0.5 + 0.1 * (y_pred - y_true) ** 2


def log_of_targets(y_true, y_pred):
    return -log(y_true) + 0 * y_pred


@pytest.fixture
def data():
    x = np.random.default_rng(5).normal(size=(BATCH * BATCHES, 4)).astype("float32")
    return x, np.abs(x[:, :1]) + 0.1


def network(activation="linear", dtype=None, **options):
    x = inputs = keras.Input((4,))
    x = keras.layers.Dense(6, name="hidden")(x)
    x = keras.layers.Dropout(0.1)(x)
    x = keras.layers.Activation(activation, name="act", dtype=dtype)(x)
    model = keras.Model(inputs, keras.layers.Dense(1, name="out")(x))
    model.compile(**{"optimizer": keras.optimizers.SGD(0.001), "loss": "mse", **options})
    return model


def in_scope(scope=None, **options):
    with scope or kte.strategy_scope(**SCOPE):
        return network(**options)


class Spoils(keras.callbacks.Callback):
    """Writes a NaN into a weight before a batch."""

    async_safe = True

    def __init__(self, layer, batch=7, epoch=0):
        super().__init__()
        self.layer, self.batch, self.wanted, self.epoch = layer, batch, epoch, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (self.wanted, self.batch):
            kernel = self.model.get_layer(self.layer).kernel
            value = np.array(kernel.numpy())
            value[1] = np.nan
            kernel.assign(value)


class Steepens(keras.callbacks.Callback):
    """Makes the learning rate infinite before a batch."""

    async_safe = True

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 7:
            self.model.optimizer.learning_rate = np.inf


def fit(model, data, watch, *before, warns=True, **options):
    x, y = data
    given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": [*before, watch], **options}
    if not warns:
        return model.fit(x, y, **given).history
    with pytest.warns(UserWarning, match="^Watch: ") as caught:
        history = model.fit(x, y, **given).history
    (told,) = [warning for warning in caught if str(warning.message).startswith("Watch: ")]
    assert told.filename == __file__  # the line of `fit`
    return told.message.args[0], history


@pytest.mark.parametrize("layer", ["hidden", "out"])
def test_a_nan_in_a_weight_is_told_with_layer_and_step(data, layer):
    watch = kte.callbacks.Watch()
    told, history = fit(in_scope(), data, watch, Spoils(layer), epochs=3)
    assert told == (
        f"Watch: {PLACE}{layer}/kernel had NaN or inf when the step began, though the update before had left biases "
        "and other small variables finite: most likely code between the steps wrote that, such as a callback. "
        "Training stops."
    )
    report = watch.report()
    assert (report.cause, report.step, report.layers, report.ok) == ("weights", 7, (layer,), False)
    assert len(history["loss"]) == 1


def test_replicas_tell_the_same_step(scope3, data):
    watch = kte.callbacks.Watch()
    told, _ = fit(in_scope(scope3), data, watch, Spoils("out", epoch=1), epochs=3)
    assert told.startswith(f"Watch: epoch 2, batch 7 (step {BATCHES + 7}): out/kernel had NaN or inf when")
    assert (watch.report().epoch, watch.report().batch) == (1, 7)


def test_an_update_that_is_not_finite_is_told_with_its_step(data):
    watch = kte.callbacks.Watch()
    told, _ = fit(in_scope(), data, watch, Steepens())
    assert told == (
        f"Watch: {PLACE}the learning rate was not finite, and the update put NaN or inf into all 4 variables. "
        "Training stops."
    )
    assert (watch.report().cause, watch.report().step) == ("update", 7)


@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_gradients_that_are_not_finite_are_told_inside_an_execution(data, steps_per_execution):
    x, y = data
    y[7 * BATCH + 3] = 0
    watch = kte.callbacks.Watch()
    model = in_scope(loss=root_at_targets, steps_per_execution=steps_per_execution)
    told, _ = fit(model, (x, y), watch)
    assert told.startswith(
        f"Watch: {PLACE}the loss was finite, but the update put NaN or inf into all 4 variables: gr"
    )
    assert watch.report().step == 7
    assert watch.report().cause == "gradients"


@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_a_loss_that_is_not_finite_is_told_as_the_loss_function_s(data, steps_per_execution):
    x, y = data
    y[7 * BATCH + 3] = 0
    watch = kte.callbacks.Watch()
    model = in_scope(loss=log_of_targets, steps_per_execution=steps_per_execution)
    told, _ = fit(model, (x, y), watch)
    assert told == (
        f"Watch: {PLACE}the loss was not finite, though the outputs of all layers were: the loss function gave it. "
        "Often this is a logarithm of 0 or a division by 0. Training stops."
    )
    assert (watch.report().cause, watch.report().step) == ("loss", 7)


@pytest.mark.parametrize("steps_per_execution", [1, 8])
@pytest.mark.parametrize(
    ("dtype", "largest", "factor"), [("float16", "65504", 1e3), ("bfloat16", "3.38953e+38", 1e3)]
)
def test_an_overflow_is_told_with_its_layer(data, dtype, largest, factor, steps_per_execution):
    x, y = data
    x[7 * BATCH + 3] *= factor
    x[7 * BATCH + 4] *= -factor
    watch = kte.callbacks.Watch()
    policy = f"mixed_{dtype}"
    model = in_scope(activation="exponential", dtype=policy, steps_per_execution=steps_per_execution)
    told, _ = fit(model, (x, y), watch)
    assert told.startswith(
        f"Watch: {PLACE}the output of layer act (Activation, {policy}) overflowed {dtype}, whose largest number is "
        f"{largest}, the first in the forward pass (or it divided by 0). The largest finite number was "
    )
    assert told.endswith('in its inputs. Write dtype="float32" for this layer. Training stops.')
    assert (watch.report().cause, watch.report().layers) == ("layer", ("act",))


def test_data_that_are_not_finite_are_told(scope3, data):
    x, y = data
    x[7 * BATCH + 3] = np.nan
    told, _ = fit(in_scope(scope3), (x, y), kte.callbacks.Watch())
    assert told == f"Watch: {PLACE}the inputs, targets or sample weights of the batch had NaN or inf. Training stops."


@pytest.mark.skipif(ON_JAX, reason="on JAX every step sees the whole batch")
def test_several_replicas_on_tensorflow_do_not_know_the_layer(scope3, data):
    x, y = data
    y[7 * BATCH + 3] = 0
    told, _ = fit(in_scope(scope3, loss=log_of_targets), (x, y), kte.callbacks.Watch())
    assert told.startswith(f"Watch: {PLACE}the loss was not finite, though the weights were. Whether a layer or")


def test_a_plain_model_tells_the_execution_and_what_to_write(data):
    watch = kte.callbacks.Watch()
    told, _ = fit(network(), data, watch, Spoils("out"))
    assert told.startswith("Watch: epoch 1, batch 7: the loss was not finite. When this was looked at, ")
    assert told.endswith(
        "Its step keeps no record: for layer and step write `with kte.strategy_scope():` around the model. "
        "Training stops."
    )
    assert (watch.report().step, watch.report().batch) == (None, 7)


def test_a_weight_that_no_loss_shows_is_told_at_the_end_of_the_epoch(data):
    model = in_scope()
    model.get_layer("hidden").trainable = False
    model.get_layer("hidden").bias.assign(np.full(6, np.nan, "float32"))
    model.get_layer("act").activation = lambda x: x * 0 + 1 if IS_KERAS2 else keras.ops.ones_like(x)
    model.compile("sgd", "mse")
    if not IS_KERAS2:
        told, _ = fit(model, data, kte.callbacks.Watch(on_not_finite="warn"))
        assert told == (
            f"Watch: epoch 1, batch {BATCHES}: the losses were finite. When this was looked at, hidden/bias had NaN "
            "or inf."
        )


def test_it_raises(data):
    with pytest.raises(kte.errors.NotFiniteError, match=r"Watch: epoch 1, batch 7 \(step 7\): out/kernel had NaN"):
        fit(in_scope(), data, kte.callbacks.Watch(on_not_finite="raise"), Spoils("out"), warns=False)


def test_it_only_warns_once(data):
    told, history = fit(in_scope(), data, kte.callbacks.Watch(on_not_finite="warn"), Spoils("out"), epochs=3)
    assert told.endswith("such as a callback.")
    assert len(history["loss"]) == 3


def test_it_restores_the_state_of_the_last_finite_epoch(data):
    class Keeps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kept.append([*map(np.copy, self.model.get_weights()), int(np.asarray(self.model.optimizer.iterations))])

    kept, model = [], in_scope(optimizer="adam")
    watch = kte.callbacks.Watch(on_not_finite="restore")
    told, _ = fit(model, data, watch, Keeps(), Spoils("out", epoch=2), epochs=5)
    assert told.endswith("Training stops, and the state of the model is restored as it was after epoch 2.")
    assert len(kept) == 3
    now = [*model.get_weights(), int(np.asarray(model.optimizer.iterations))]
    for expected, got in zip(kept[1], now, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_without_a_state_it_says_so(data):
    told, _ = fit(in_scope(), data, kte.callbacks.Watch(on_not_finite="restore"), Spoils("out"))
    assert told.endswith("Training stops, and the state of the model was kept in no epoch before.")
    with pytest.raises(kte.errors.ArgumentError, match="needs a model of this package"):
        fit(network(), data, kte.callbacks.Watch(on_not_finite="restore"), warns=False)


def test_a_spike_is_told_once(data):
    x, y = (np.tile(part, (6, 1)) for part in data)
    y[70 * BATCH : 73 * BATCH] *= 100
    watch = kte.callbacks.Watch()
    told, _ = fit(in_scope(), (x, y), watch)
    (spike,) = watch.report().spikes
    assert (spike.epoch, spike.batch) == (0, 70)
    assert told == f"Watch: {spike}."
    assert watch.report().ok
    assert spike.loss > spike.limit > spike.median


def test_a_spike_may_stop(data):
    x, y = (np.tile(part, (12, 1)) for part in data)
    y[70 * BATCH :] *= 100
    model = in_scope()
    fit(model, (x, y), kte.callbacks.Watch(on_spike="stop"), epochs=3)
    assert model.stop_training


RNG = np.random.default_rng(3)
ORDINARY = [
    ({"optimizer": optimizer, "loss": loss, "steps_per_execution": steps, "activation": activation}, plain)
    for optimizer, plain in (("adam", False), ("sgd", True))
    for loss, steps, activation in [
        ("mse", 1, "relu"),
        ("mae", 4, "tanh"),
        ("huber", 1, "linear"),
        ("log_cosh", 3, "sigmoid"),
        ("mse", 8, "softplus"),
    ]
]


@pytest.mark.parametrize(("options", "plain"), ORDINARY, ids=str)
def test_an_ordinary_training_gives_no_alarm(data, options, plain):
    x, y = (np.tile(part, (3, 1)) for part in data)
    watch = kte.callbacks.Watch(on_not_finite="raise")
    model = network(**options) if plain else in_scope(**options)

    def warm_up(epoch, rate):
        return 0.002 * (epoch + 1)

    rates = keras.callbacks.LearningRateScheduler(warm_up)
    fit(model, (x, y), watch, rates, warns=False, epochs=3, shuffle=True, validation_data=data)
    assert watch.report() == kte.callbacks.WatchReport(steps=9 * BATCHES)
    assert str(watch.report()) == f"all losses and weights were finite in {9 * BATCHES} steps"


def test_steps_that_loss_scaling_skips_are_no_alarm(data):
    too_large = kte.LossScale(initial=2.0**24)
    model = in_scope(dtype="mixed_float16", activation="tanh", loss_scale=too_large)
    monitor = kte.callbacks.LossScaleMonitor(verbose=False)
    watch = kte.callbacks.Watch()
    fit(model, data, watch, monitor, warns=False, epochs=2)
    assert monitor.overflows
    assert watch.report().ok


def test_it_changes_nothing_and_leaves_nothing(data):
    weights = []
    for callback in (keras.callbacks.Callback(), kte.callbacks.Watch()):
        keras.utils.set_random_seed(2)
        model = in_scope(optimizer="adam")
        fit(model, data, callback, warns=False, epochs=2)
        weights.append(model.get_weights())
        assert model._kte.state.not_finite_watch is None
    for expected, got in zip(*weights, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)  # XLA may order sums otherwise


def test_the_model_evaluates_after_a_fit_with_validation(scope3, data):
    model = in_scope(scope3)
    for callback in (kte.callbacks.Watch(), keras.callbacks.Callback(), kte.callbacks.Watch()):
        fit(model, data, callback, warns=False, validation_data=data)
        loss = model.evaluate(*data, verbose=0)
        np.testing.assert_allclose(model.history.history["val_loss"][-1], loss, rtol=1e-6)


def test_the_report_is_plain_data(data):
    watch = kte.callbacks.Watch()
    with pytest.raises(kte.errors.NothingMeasuredError, match="nothing measured yet"):
        watch.report()
    fit(in_scope(), data, watch, Spoils("out"))
    report = watch.report()
    assert report.to_dict()["layers"] == ["out"]
    assert report.to_dict()["ok"] is False
    assert pickle.loads(pickle.dumps(report)) == report
    assert "step 7" in report._repr_html_()
    assert repr(watch) == "Watch(on_not_finite='stop', on_spike='warn', window=100, threshold=7)"


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"on_not_finite": "halt"}, "'stop', 'raise', 'warn' or 'restore'"),
        ({"window": 3}, "an integer of at least 20"),
        ({"threshold": 0}, "a number above 0"),
    ],
)
def test_a_wrong_argument_is_named(options, needed):
    with pytest.raises(kte.errors.ArgumentError, match="Watch: `"):
        kte.callbacks.Watch(**options)
    assert math.isfinite(kte.callbacks.Watch().threshold)
