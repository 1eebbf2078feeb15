import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from kind_of_keras import IS_KERAS2

# np.array(keras.Variable), when a model is saved: Keras hides what NumPy 2 asks for.
pytestmark = [
    pytest.mark.gate_on("keras3_tf", "keras3_jax"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

BATCH, BATCHES = 64, 6
ON_JAX = keras.backend.backend() == "jax"


@pytest.fixture
def data():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(BATCH * BATCHES, 6)).astype("float32")
    return x, x[:, :1], np.ones(len(x), "float32")


def spoiled(weights, *places):
    """Return weights with an inf for one example of a batch (from 1) that lies on a replica."""
    weights = weights.copy()
    for batch, replica in places:
        weights[(batch - 1) * BATCH + replica * BATCH // 4 + 1] = np.inf
    return weights


def seen(*places):
    """Return the updates and replicas that are named: on JAX a gradient is seen when all replicas are summed."""
    return list(dict.fromkeys((update, None if ON_JAX else replica) for update, replica in places))


def on(replica):
    return "" if ON_JAX else f" on replica {replica}"


def two_branches():
    inputs = keras.Input((6,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("left", "right")}
    return kte.TPUModel(inputs, outputs)


def dense():
    inputs = keras.Input((6,))
    return kte.TPUModel(inputs, keras.layers.Dense(1, name="out")(inputs))


def compiled(scope, build=dense, **options):
    with scope:
        model = build()
        model.compile(**{"optimizer": keras.optimizers.SGD(0.01), "loss": "mse", "loss_scale": "dynamic"} | options)
    return model


def fit(model, data, monitor, weights, **options):
    x, y, _ = data
    if "left" in model.output_names:
        y = {"left": y, "right": y}
    callbacks = [monitor, *options.pop("more", ())]
    given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": callbacks, "sample_weight": weights}
    return model.fit(x, y, **given, **options).history


@pytest.mark.gate_on("keras3_jax")
def test_scale_and_skipped_steps_are_in_the_logs(scope4, data, tmp_path):
    model, monitor = compiled(scope4), kte.callbacks.LossScaleMonitor(verbose=False)
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = fit(model, data, monitor, spoiled(data[2], (2, 0)), epochs=2, more=[log])
    assert history["loss_scale/value"] == [2.0**14, 2.0**13]
    assert history["loss_scale/skipped_steps"] == [1, 2]
    head, first, _ = (tmp_path / "log.csv").read_text().splitlines()
    row = dict(zip(head.split(","), first.split(","), strict=True))
    assert (row["loss_scale/value"], row["loss_scale/skipped_steps"]) == ("16384.0", "1")


@pytest.mark.gate_on("keras3_jax")
def test_each_epoch_is_told_the_steps_that_it_skipped(scope4, data, capsys):
    fit(compiled(scope4), data, kte.callbacks.LossScaleMonitor(), spoiled(data[2], (2, 0)), epochs=2)
    told = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.partition(", the loss scale")[0] for line in told] == [
        f"LossScaleMonitor: epoch {epoch} skipped 1 step" for epoch in (1, 2)
    ]


@pytest.mark.parametrize(
    "steps_per_execution", [pytest.param(1, marks=pytest.mark.gate_on("keras3_jax", "keras2_tf215")), 4]
)
def test_it_names_variables_and_replica(scope4, data, steps_per_execution, capsys):
    model = compiled(scope4, two_branches, steps_per_execution=steps_per_execution)
    monitor = kte.callbacks.LossScaleMonitor()
    weights = {"left": data[2], "right": spoiled(data[2], (5, 3))}
    fit(model, data, monitor, weights)
    (overflow,) = monitor.overflows
    assert [(overflow.update, overflow.replica)] == seen((5, 3))
    assert overflow.of == 4
    assert overflow.variables == ("right/kernel", "right/bias")
    assert capsys.readouterr().out == (
        "LossScaleMonitor: epoch 1 skipped 1 step, the loss scale is 16384. "
        f"Update 5: right/kernel, right/bias{on(3)}\n"
    )


@pytest.mark.gate_on("keras3_jax")
def test_a_loss_that_is_not_finite_is_all_variables(scope4, data, capsys):
    model, monitor = compiled(scope4), kte.callbacks.LossScaleMonitor(window=1)
    fit(model, data, monitor, spoiled(data[2], (1, 3), (4, 3), (4, 2)))
    expected = seen((1, 3), (4, 2), (4, 3))
    assert [tuple(overflow)[:2] for overflow in monitor.overflows] == expected
    assert capsys.readouterr().out == (
        "LossScaleMonitor: epoch 1 skipped 2 steps, the loss scale is 8192. "
        + ". ".join(f"Update {update}: all 2 variables{on(replica)}" for update, replica in expected)
        + "\n"
    )


@pytest.mark.skipif(ON_JAX, reason="on JAX a gradient is first seen when it is that of all replicas")
def test_an_overflow_of_the_sum_alone_is_told(scope3, capsys):
    with scope3:
        inputs = keras.Input((1,))
        model = kte.TPUModel(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs))
        loss = keras.losses.MeanAbsoluteError(reduction="sum")
        model.compile(keras.optimizers.SGD(0.01), loss, loss_scale=kte.LossScale(initial=1.0))
    x = np.full((3, 1), 3e38, "float32")
    model.fit(x, np.ones((3, 1)), batch_size=3, verbose=0, callbacks=[kte.callbacks.LossScaleMonitor()])
    printed = capsys.readouterr().out.strip()
    assert printed.startswith("LossScaleMonitor: epoch 1 skipped 1 step, the loss scale is ")
    assert printed.endswith(". Each replica's gradients were finite, and their sum was not")


def test_an_overflow_in_a_window_is_named_by_its_batch(scope4, data):
    model, monitor = compiled(scope4, gradient_accumulation_steps=3), kte.callbacks.LossScaleMonitor(verbose=False)
    history = fit(model, data, monitor, spoiled(data[2], (5, 1)))
    assert [(overflow.update, overflow.replica) for overflow in monitor.overflows] == seen((5, 1))
    assert history["loss_scale/skipped_steps"] == [1]


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("window", [1, 2])
def test_after_a_batch_logs_show_what_was_read_before_the_last_window(scope4, data, window):
    class Keeps(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_end(self, batch, logs=None):
            kept[batch] = (logs["loss_scale/value"], logs["loss_scale/skipped_steps"])

    model, kept = compiled(scope4), {}
    monitor = kte.callbacks.LossScaleMonitor(window=window, verbose=False)
    fit(model, data, monitor, spoiled(data[2], (1, 0), (4, 0)), more=[Keeps()])
    before = [(2.0**15, 0), *3 * [(2.0**14, 1)], *2 * [(2.0**13, 2)]]  # each execution
    expected = [before[i - i % window] for i in range(BATCHES)]
    # On JAX the hook runs in another thread and may be late, so it may see what was read for a later batch.
    for batch, got in sorted(kept.items()):
        assert got in (expected[batch:] if ON_JAX else [expected[batch]])


@pytest.mark.gate_on("keras3_jax")
def test_a_good_fit_prints_nothing(scope4, data, capsys):
    model, monitor = compiled(scope4), kte.callbacks.LossScaleMonitor()
    history = fit(model, data, monitor, None)
    assert monitor.overflows == ()
    assert history["loss_scale/skipped_steps"] == [0]
    assert capsys.readouterr().out == ""


@pytest.mark.gate_on("keras3_jax")
def test_an_optimizer_that_scales_the_loss(scope4, data):
    with scope4:
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=1024.0)
    model, monitor = compiled(scope4, optimizer=optimizer, loss_scale=None), kte.callbacks.LossScaleMonitor()
    history = fit(model, data, monitor, spoiled(data[2], (3, 2)))
    assert history["loss_scale/value"] == [512.0]
    assert history.get("loss_scale/skipped_steps") == (None if IS_KERAS2 else [1])  # which does not count them
    assert [(overflow.update, overflow.replica) for overflow in monitor.overflows] == seen((3, 2))


def test_a_plain_keras_model_has_its_scale_shown(data):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=64.0), "mse")
    history = fit(model, data, kte.callbacks.LossScaleMonitor(), None)
    assert history["loss_scale/value"] == [64.0]
    assert "loss_scale/skipped_steps" not in history


@pytest.mark.gate_on("keras3_jax")
def test_without_a_scale_it_says_what_to_write(scope4, data):
    model = compiled(scope4, loss_scale=None)
    with pytest.warns(UserWarning, match="nothing to show") as caught:
        fit(model, data, kte.callbacks.LossScaleMonitor(), None)
    assert [warning.message.args[0] for warning in caught if warning.category is kte.errors.KteWarning] == [
        "LossScaleMonitor has nothing to show: the loss of this model is not scaled. "
        'Write model.compile(..., loss_scale="dynamic"), or leave the callback out'
    ]


def test_nothing_is_left_when_it_is_gone(scope4, data, tmp_path):
    model, monitor = compiled(scope4), kte.callbacks.LossScaleMonitor(verbose=False)
    fit(model, data, monitor, None)
    assert model._kte.state.overflow_watch is None
    expected = model.get_weights()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for saved, got in zip(expected, loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(got, saved)
    history = fit(model, data, keras.callbacks.Callback(), spoiled(data[2], (2, 0)))
    assert "loss_scale/value" not in history
    assert monitor.overflows == ()
    fit(model, data, monitor, spoiled(data[2], (2, 0)))  # nor is a step that was traced without it
    assert len(monitor.overflows) == 1


@pytest.mark.gate_on("keras3_jax")
def test_it_changes_nothing(scope4, data):
    weights = []
    for monitor in (keras.callbacks.Callback(), kte.callbacks.LossScaleMonitor(verbose=False)):
        keras.utils.set_random_seed(2)
        model = compiled(scope4)
        fit(model, data, monitor, spoiled(data[2], (2, 3)))
        weights.append(model.get_weights())
    for expected, got in zip(*weights, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("window", [0, 2.5, "20"])
def test_a_wrong_window_is_named(window):
    with pytest.raises(kte.errors.ArgumentError) as error:
        kte.callbacks.LossScaleMonitor(window=window)
    assert str(error.value) == (
        f"LossScaleMonitor: `window` must be an integer of at least 1; got {window!r}. Write window=20."
    )
