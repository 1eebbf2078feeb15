"""Real fits with probes in them: what is learned is what is learned without, to the bit."""

import contextlib
import math
import types
import warnings

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources
from keras_tpu_ext._runtime.common.executions import Stage
from keras_tpu_ext.callbacks import HostBottleneck, LossScaleMonitor
from keras_tpu_ext.callbacks._input_probe import ProbedInput
from keras_tpu_ext.callbacks._step_costs import Cycle, StepCosts
from keras_tpu_ext.callbacks.input_verdict import InputVerdict
from keras_tpu_ext.errors import ArgumentError, NothingMeasuredError

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

KEY = "input/wait_fraction"
EXAMPLES, BATCH = 331, 16  # twenty batches and a short one


def arrays():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(EXAMPLES, 6)).astype("float32")
    return x, x[:, :1] * 2


def built(model_class, scope, **options):
    keras.utils.set_random_seed(4)
    with scope or contextlib.nullcontext():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(5, activation="tanh")(inputs))
        model = model_class(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    return model


def learned(model, callbacks, **fit):
    """Return the history, without what callbacks have put there, and the weights."""
    x, y = arrays()
    given = {"x": x, "y": y, "batch_size": BATCH, "epochs": 2, "verbose": 0, **fit}
    history = model.fit(callbacks=callbacks, **given).history
    return {name: history[name] for name in ("loss", "mae")}, model.get_weights()


CASES = {
    "plain": lambda: (keras.Model, {}, {}),
    "ours": lambda: (kte.TPUModel, {}, {}),
    "ours, several steps": lambda: (kte.TPUModel, {"steps_per_execution": 2}, {}),
    "ours, seven executions": lambda: (kte.TPUModel, {"steps_per_execution": 3}, {}),
    "plain, several steps": lambda: (keras.Model, {"steps_per_execution": 2}, {}),
    "batches of a dataset": lambda: (
        kte.TPUModel,
        {},
        {"x": sources.Batches(sources.cut(arrays(), BATCH)), "y": None, "batch_size": None, "shuffle": False},
    ),
    "windows": lambda: (kte.TPUModel, {"gradient_accumulation_steps": 3}, {}),
    "validation": lambda: (kte.TPUModel, {}, {"validation_data": arrays()}),
    "eager": lambda: (keras.Model, {"run_eagerly": True}, {"epochs": 1}),
}


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize(
    "case",
    [
        case
        if case in ("ours, several steps", "ours, seven executions", "batches of a dataset")
        else pytest.param(case, marks=pytest.mark.exhaustive)
        for case in CASES
    ],
)
def test_a_probe_changes_nothing_of_what_is_learned(case):
    model_class, options, fit = CASES[case]()
    assert_changes_nothing(lambda: built(model_class, None, **options), **fit)


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", [1, 2])
def test_a_probe_changes_nothing_on_replicas(scope3, steps):
    assert_changes_nothing(lambda: built(kte.TPUModel, scope3, steps_per_execution=steps))


def assert_changes_nothing(build, **fit):
    callback = HostBottleneck(verbose=False)
    (history, weights), (same_history, same_weights) = (learned(build(), some, **fit) for some in ([], [callback]))
    assert len(callback.probes) >= 1
    assert same_history == history
    for one, other in zip(weights, same_weights, strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.skipif(not sources.HAS_TF_DATA, reason="TensorFlow is not installed")
@pytest.mark.parametrize(
    "size", ["unknown", *(pytest.param(size, marks=pytest.mark.exhaustive) for size in ("known", "repeated"))]
)
def test_a_tf_dataset_is_gone_through_once(size):
    import tensorflow as tf

    asked = []

    def noted(i):
        asked.append(int(i))
        return i

    def batches():
        numbers = tf.data.Dataset.range(24)
        numbers = numbers.map(lambda i: tf.numpy_function(noted, [i], tf.int64))
        if size == "unknown":
            numbers = numbers.filter(lambda i: i >= 0)
        rows = numbers.map(lambda i: (tf.cast(tf.fill([4, 6], i % 5), tf.float32), tf.ones([4, 1])))
        return rows.repeat() if size == "repeated" else rows

    fit = {"x": batches(), "y": None, "batch_size": None, "shuffle": False}
    fit |= {"steps_per_epoch": 24} if size == "repeated" else {}
    callback = HostBottleneck(verbose=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
        with_probe = learned(built(kte.TPUModel, None), [callback], **fit)
        seen = asked[:48]
        without = learned(built(kte.TPUModel, None), [], **fit | {"x": batches()})
    assert len(callback.probes) >= 1
    assert seen == [*range(24)] * 2
    assert with_probe[0] == without[0]


@pytest.mark.gate_on("keras3_jax")
def test_it_shows_the_part_and_says_what_it_means(capsys):
    callback = HostBottleneck()
    model = built(kte.TPUModel, None)
    x, y = arrays()
    history = model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=[callback]).history
    assert 0 <= history[KEY][0] <= 1
    assert history[KEY] == [callback.verdict.wait_fraction]
    assert capsys.readouterr().out == f"HostBottleneck: epoch 1: {callback.verdict}\n"
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=1, callbacks=[callback])  # and below a progress bar
    assert f"\nHostBottleneck: epoch 1: {callback.verdict}\n" in capsys.readouterr().out


@pytest.mark.gate_on("keras3_jax")
def test_the_train_function_is_left_as_it_was(scope4):
    for callbacks in ([HostBottleneck(verbose=False)], [HostBottleneck(verbose=False), LossScaleMonitor()]):
        model = built(kte.TPUModel, scope4, loss_scale="dynamic")
        learned(model, callbacks)
        assert "intercepted" not in repr(model.train_function)
        learned(model, [])


@pytest.mark.gate_on("keras3_jax")
def test_two_of_them_stand_side_by_side():
    model = built(kte.TPUModel, None)
    both = [HostBottleneck(verbose=False), HostBottleneck(verbose=False)]
    with_them = learned(model, both)
    assert "intercepted" not in repr(model.train_function)
    assert len(both[0].probes) == 1
    assert both[0].probes == both[1].probes  # one measurement
    assert with_them[0] == learned(built(kte.TPUModel, None), [])[0]


class Breaks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:  # in the middle of a probe
            raise KeyboardInterrupt


@pytest.mark.gate_on("keras3_jax")
def test_after_a_fit_that_was_broken_off_it_stands_in_the_way_of_nothing():
    model = built(kte.TPUModel, None)
    callback = HostBottleneck(verbose=False)
    with pytest.raises(KeyboardInterrupt):
        learned(model, [callback, Breaks()])
    learned(model, [])
    assert callback.probes == ()
    assert "intercepted" not in repr(model.train_function)
    learned(model, [callback])
    assert len(callback.probes) == 1


class BreaksOff(sources.Batches):
    """Batches of which one cannot be had."""

    def __init__(self, batches, at):
        super().__init__(batches)
        self.at = at

    def __getitem__(self, index):
        if index == self.at:
            raise OSError(f"batch {index} cannot be read")
        return super().__getitem__(index)


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
@pytest.mark.parametrize(
    ("steps", "at"),
    [pytest.param(1, 6, marks=pytest.mark.exhaustive), pytest.param(1, 8, marks=pytest.mark.exhaustive), (2, 15)],
)
def test_an_error_of_the_pipeline_comes_in_its_turn(steps, at):
    learned_until_then = []
    for callbacks in ([], [HostBottleneck(verbose=False)]):
        model = built(kte.TPUModel, None, steps_per_execution=steps)
        batches = BreaksOff(sources.cut(arrays(), BATCH), at)
        with pytest.raises(Exception, match=f"batch {at} cannot be read"):
            model.fit(batches, epochs=1, verbose=0, shuffle=False, callbacks=callbacks)
        learned_until_then.append([int(model.optimizer.iterations), *model.get_weights()])
    without, with_it = learned_until_then
    assert with_it[0] == without[0] <= at
    for one, other in zip(with_it, without, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.gate_on("keras3_tf")
def test_where_epochs_are_too_short_it_says_so():
    model, callback = built(kte.TPUModel, None), HostBottleneck()
    x, y = arrays()
    with pytest.warns(UserWarning, match="HostBottleneck could not find out") as told:
        history = model.fit(x[:64], y[:64], batch_size=BATCH, epochs=4, verbose=0, callbacks=[callback]).history
    assert callback.verdict is None
    (warning,) = [one for one in told if "HostBottleneck" in str(one.message)]
    assert warning.filename == __file__
    assert warning.message.args[0] == (
        "HostBottleneck could not find out how long this model waits for data: an epoch had 4 executions, which is "
        "too short to tell: it takes 6. Give `fit` more batches in an epoch, or choose a smaller steps_per_execution"
    )
    assert all(map(math.isnan, history[KEY]))


@pytest.mark.gate_on("keras3_tf")
@pytest.mark.runtimes("keras3_tf", "keras2_tf", reason="on JAX it takes no probe")
def test_where_executions_grow_to_the_end_it_says_so():
    model = built(kte.TPUModel, None, steps_per_execution="auto")
    with pytest.warns(UserWarning, match="HostBottleneck could not find out") as told:
        learned(model, [HostBottleneck()], epochs=1)
    (warning,) = [one for one in told if "HostBottleneck" in str(one.message)]
    assert warning.message.args[0].endswith(
        'steps_per_execution="auto" was looking for its number until the end. Train for longer, or compile with a '
        "number"
    )


@pytest.mark.parametrize(
    ("fraction", "word", "speedup"),
    [
        (0.0, "not input-bound", 1.0),
        (0.049, "not input-bound", 1 / 0.951),
        (0.05, "moderately input-bound", 1 / 0.95),
        (0.199, "moderately input-bound", 1 / 0.801),
        (0.2, "highly input-bound", 1.25),
        (0.75, "highly input-bound", 4.0),
    ],
)
def test_the_words_are_those_of_xprof(fraction, word, speedup):
    verdict = InputVerdict(fraction, 0.1, 0.1 * (1 - fraction), None)
    assert verdict.verdict == word
    assert verdict.most_speedup == pytest.approx(speedup)


def test_the_text_of_a_verdict():
    assert str(InputVerdict(0.75, 0.04, 0.01, 0.04, "ParallelMapV2", 0.032)) == (
        "highly input-bound: 75% of the time waits for data.\n"
        "  It does 25 batches/s, and 100 if it never waited; the pipeline alone gives 25.\n"
        "  Better input makes this at most 4 times as fast.\n"
        "  Its costliest stage is ParallelMapV2, 32 ms for a batch."
    )
    assert str(InputVerdict(0.01, 0.04, 0.0396, None, "ParallelMapV2", 0.001)) == (
        "not input-bound: 1% of the time waits for data.\n"
        "  It does 25 batches/s, and 25.25 if it never waited; the pipeline alone gives more.\n"
        "  Better input would not help."
    )


def test_a_verdict_says_what_its_numbers_leave_out():
    text = str(InputVerdict(0.5, 0.02, 0.01, None, left_out_seconds=4.125, shares_cores=True))
    assert text.endswith(
        "  Better input makes this at most 2 times as fast.\n"
        "  4.12 s at the epoch's start, in a probe and in a pause are left out.\n"
        "  Devices and pipeline share this machine's CPU cores, so each slows the other down."
    )


def ledger(seconds, *, left_out=0.0, probes=(), knows_input=True):
    """Return a ledger of an epoch of 100 steps that take these seconds by bucket."""
    hooks = {name: one for name, one in seconds.items() if name.startswith("callbacks/")}
    parts = (seconds.get(name, 0.0) for name in ("training", "input", "callbacks", "idle", "compile"))
    cycle = Cycle(1, *parts)._replace(callbacks=sum(hooks.values()))
    costs = StepCosts([cycle] * 100)
    schedule = types.SimpleNamespace(found=list(probes), refused=False, was_growing=False, needed=6)
    return types.SimpleNamespace(
        compute_seconds=None,
        knows_input=knows_input,
        costs=costs,
        recent=[cycle],
        costliest_callback=max(hooks, key=hooks.get, default=""),
        executions=100,
        steps_of_epoch=100,
        probes=schedule,
        left_out=lambda step_seconds: left_out,
    )


def after_epochs(callback, *ledgers):
    """Return the values in `logs` after epochs with these ledgers."""
    values = []
    for epoch, one in enumerate(ledgers):
        callback._ledger, logs = one, {}
        callback.on_epoch_end(epoch, logs)
        values.append(logs[KEY])
    return values


@pytest.mark.parametrize(("waits", "fraction"), [(0.0, 0.0), (0.25, 0.2), (3.0, 0.75)])
def test_the_part_is_that_of_the_ledger(waits, fraction):
    callback = HostBottleneck(verbose=False)
    stages = Stage("Map", 0.1), Stage("Batch", 0.2)
    one = ledger({"training": 1.0, "input": waits}, probes=[ProbedInput(1.0, 4.0, 0.0, stages)])
    assert after_epochs(callback, one, one) == pytest.approx([fraction] * 2)
    verdict = callback.verdict
    assert (verdict.costliest_stage, verdict.costliest_seconds) == ("Batch", 0.2)
    assert (verdict.step_seconds, verdict.compute_seconds) == pytest.approx((1.0 + waits, 1.0))
    logs = {}
    callback.on_train_batch_end(3, logs)
    assert logs == {KEY: pytest.approx(fraction)}


def test_the_costliest_callback_is_named_with_its_share():
    callback = HostBottleneck(verbose=False)
    hooks = {"callbacks/Slow": 0.1, "callbacks/History": 0.001, "idle": 0.003}
    after_epochs(callback, ledger({"training": 0.004, "input": 0.0, **hooks}))
    assert callback.verdict.costliest_callback == "Slow"
    assert callback.verdict.callbacks_seconds == pytest.approx(0.101)
    assert str(callback.verdict) == (
        "not input-bound: 0% of the time waits for data, 4% computes, 94% is spent in callbacks, 3% in other "
        "Python.\n"
        "  It does 9.259 batches/s, and 9.259 if it never waited; the pipeline alone gives more.\n"
        "  Better input would not help.\n"
        "  Let Slow do its work at the end of an epoch, or every hundredth batch: at most 15.4 times as fast."
    )


def test_other_python_has_its_cure():
    callback = HostBottleneck(verbose=False)
    after_epochs(callback, ledger({"training": 0.5, "idle": 0.5}))
    assert callback.verdict.gain == (
        'Better input would not help. Run more steps in one call: compile(steps_per_execution="auto")'
    )


def test_what_an_epoch_leaves_out_is_told_from_a_twentieth_on():
    callback = HostBottleneck(verbose=False)
    after_epochs(callback, ledger({"training": 1.0}, left_out=5.1), ledger({"training": 1.0}, left_out=4.9))
    assert [verdict.left_out_seconds for _, verdict in callback._verdicts] == [5.1, 0.0]


def test_what_is_not_known_is_not_shown():
    callback = HostBottleneck(verbose=False)
    (value,) = after_epochs(callback, ledger({"training": 1.0}, knows_input=False))
    assert math.isnan(value)
    assert callback.verdict is None
    logs = {}
    callback.on_train_batch_end(3, logs)
    assert logs == {}


@pytest.mark.parametrize(("words", "said"), [("nnnn", "n"), ("nhnhn", "n"), ("nhhn", "nh"), ("hhnnhh", "hnh")])
def test_a_new_verdict_is_said_once_it_has_stood_for_two_epochs(capsys, words, said):
    waits = {"n": 0.0, "h": 1.0}
    after_epochs(HostBottleneck(), *(ledger({"training": 1.0, "input": waits[word]}) for word in words))
    printed = [line.split(": ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("Host")]
    assert printed == [{"n": "not input-bound", "h": "highly input-bound"}[word] for word in said]


def test_it_says_in_a_line_what_it_knows():
    callback = HostBottleneck(verbose=False)
    assert repr(callback) == "<HostBottleneck: no verdict yet>"
    after_epochs(callback, ledger({"training": 1.0, "input": 1.0}))
    assert repr(callback) == "<HostBottleneck: highly input-bound>"


def test_wrong_arguments_are_told():
    with pytest.raises(
        ArgumentError, match=r"HostBottleneck: `window` must be an integer of at least 1; got 0. Write window=20\."
    ):
        HostBottleneck(window=0)
    with pytest.raises(ArgumentError) as raised:
        HostBottleneck(clock=3)
    assert str(raised.value) == (
        "HostBottleneck: `clock` must be a function that returns seconds; got 3. Write clock=time.perf_counter."
    )


def test_before_a_verdict_there_is_no_report():
    with pytest.raises(
        NothingMeasuredError, match=r"nothing measured yet: it takes more batches .* Write: model\.fit\("
    ):
        HostBottleneck().report()
