"""Where the time of real fits goes, whose parts take what the test says."""

import contextlib
import json

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources
from keras_tpu_ext._runtime.common.executions import CompileWatch
from keras_tpu_ext.callbacks import Goodput, GoodputReport, HostBottleneck
from keras_tpu_ext.errors import ArgumentError, NothingMeasuredError
from virtual_time import VirtualTime

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

STEPS, EPOCHS = 12, 3
BATCH = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


@pytest.fixture(autouse=True)
def only_virtual_time_passes(monkeypatch):
    """Compiling takes no virtual time, nor do devices."""
    if keras.backend.backend() == "jax":
        from keras_tpu_ext._runtime.jax.probes import JaxExecution

        monkeypatch.setattr(JaxExecution, "is_ready", lambda execution, output: True)
    monkeypatch.setattr(kte._runtime.probes, "watch_compiles", CompileWatch)


class SlowBatches(sources.Batches):
    """Batches that each take some seconds of virtual time."""

    def __init__(self, clock, seconds):
        super().__init__([BATCH] * STEPS)
        self.clock, self.seconds = clock, seconds

    def __getitem__(self, index):
        self.clock.sleep(self.seconds)
        return super().__getitem__(index)


class Slow(keras.callbacks.Callback):
    def __init__(self, clock, **seconds):
        super().__init__()
        for hook, each in seconds.items():
            setattr(self, hook, lambda *_, each=each, **logs: clock.sleep(each))


class SlowEpochs(Slow):
    pass


class SlowCheckpoint(keras.callbacks.ModelCheckpoint):
    def __init__(self, clock, path, seconds):
        super().__init__(path)
        self.clock, self.seconds = clock, seconds

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.clock.sleep(self.seconds)


def built(scope=None):
    with scope or contextlib.nullcontext():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def seconds_of(clock, callbacks, data=None, scope=None, **fit):
    """Return a report, but for real time: what `fit` does before its callbacks are called."""
    goodput = Goodput(clock=clock)
    given = sources.Batches([BATCH] * STEPS) if data is None else data
    built(scope).fit(given, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[*callbacks, goodput], **fit)
    report = goodput.report()
    assert report.ok
    return {name: seconds for name, seconds in report.seconds.items() if name != "startup"}


@pytest.mark.parametrize("scoped", [True, False])
def test_hooks_of_callbacks_are_in_a_bucket_of_their_class(scoped, scope4):
    clock = VirtualTime()
    callbacks = [Slow(clock, on_train_batch_end=0.5, on_train_batch_begin=0.25), SlowEpochs(clock, on_epoch_end=3.0)]
    found = seconds_of(clock, callbacks, scope=scope4 if scoped else None)
    assert found == pytest.approx(
        {"callbacks/Slow": 0.75 * STEPS * EPOCHS, "callbacks/SlowEpochs": 3.0 * EPOCHS}, abs=1e-6
    )


def test_all_of_validation_is_validation(scope4):
    clock = VirtualTime()
    callbacks = [Slow(clock, on_test_batch_end=0.5), SlowEpochs(clock, on_test_begin=1.0)]
    found = seconds_of(clock, callbacks, scope=scope4, validation_data=sources.Batches([BATCH] * 4))
    # The hooks are callbacks' own time, also there.
    assert found == pytest.approx(
        {"callbacks/Slow": 0.5 * 4 * EPOCHS, "callbacks/SlowEpochs": 1.0 * EPOCHS}, abs=1e-6
    )


@pytest.mark.gate_on("keras3_jax")
def test_validation_data_that_are_slow_are_validation(scope4):
    clock = VirtualTime()
    found = seconds_of(clock, [], scope=scope4, validation_data=SlowBatches(clock, 2.0))
    assert found == pytest.approx({"validation": 2.0 * STEPS * EPOCHS}, rel=0.1)


def test_what_saves_is_a_checkpoint(scope4, tmp_path):
    clock = VirtualTime()
    found = seconds_of(clock, [SlowCheckpoint(clock, tmp_path / "model.keras", 5.0)], scope=scope4)
    assert found == pytest.approx({"checkpoint": 5.0 * EPOCHS}, abs=1e-6)


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("scoped", [True, False])
def test_devices_that_wait_for_data_are_seen_at_once(scoped, scope4):
    clock = VirtualTime()
    found = seconds_of(clock, [], SlowBatches(clock, 2.0), scope=scope4 if scoped else None)
    # Keras reads one batch more to build the model, before the first epoch; devices take no virtual time.
    assert found["input"] == pytest.approx(2.0 * STEPS * EPOCHS, abs=2 * 2.0 * EPOCHS)
    assert sum(found.values()) == pytest.approx(found["input"], rel=0.25)


def test_compiling_is_told_apart(monkeypatch, scope4):
    """The framework tells of seconds of compiling, which pass within the first execution and the first validation."""
    clock, told = VirtualTime(), CompileWatch()
    monkeypatch.setattr(kte._runtime.probes, "watch_compiles", lambda: told)

    class Compiles(keras.layers.Layer):
        def call(self, x, training=False):
            clock.sleep(8.0)
            told._seconds += 8.0
            return x

    goodput, seen = Goodput(clock=clock), []
    with scope4:
        model = keras.Sequential([keras.Input((4,)), Compiles(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: seen.append(told.seconds()))
    model.fit(*BATCH, epochs=3, verbose=0, validation_data=BATCH, callbacks=[goodput, before])
    report = goodput.report()
    assert report.seconds["compile"] == pytest.approx(told.seconds() - seen[0])
    assert report.seconds["compile"] >= 16.0
    assert report.seconds.get("training", 0.0) == pytest.approx(0.0, abs=1e-6)
    assert report.ok


def test_the_fraction_is_in_the_logs(scope4):
    clock = VirtualTime()
    goodput = Goodput(clock=clock)
    batches = []
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: batches.append(logs["goodput/fraction"]))
    model = built(scope4)
    history = model.fit(
        *BATCH, batch_size=2, epochs=2, verbose=0, callbacks=[goodput, seen, Slow(clock, on_epoch_end=1.0)]
    ).history
    assert len(batches) == 8
    assert history["goodput/fraction"][1] == pytest.approx(0.0, abs=0.01)
    assert all(0 <= fraction <= 1 for fraction in history["goodput/fraction"])


def test_several_callbacks_share_one_measurement(scope4):
    goodput, bottleneck = Goodput(), HostBottleneck(verbose=False)
    model = built(scope4)
    model.fit(sources.Batches([BATCH] * 30), epochs=1, verbose=0, callbacks=[goodput, bottleneck])
    assert goodput._ledger is bottleneck._ledger


def test_a_fit_that_fails_is_reported_until_then(scope4):
    clock = VirtualTime()

    class Breaks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            clock.sleep(1.0)
            if batch == 4:
                raise RuntimeError("broken")

    goodput, model = Goodput(clock=clock), built(scope4)
    with pytest.raises(RuntimeError, match="broken"):
        model.fit(*BATCH, batch_size=1, verbose=0, callbacks=[goodput, Breaks()])
    assert goodput.report().seconds["callbacks/Breaks"] == pytest.approx(4.0)  # the hook that raised has not ended
    clock.sleep(100.0)
    assert goodput.report().ok
    model.fit(*BATCH, batch_size=1, verbose=0)
    assert "intercepted" not in repr(model.train_function)


def test_the_same_object_measures_each_fit_anew(scope4):
    clock = VirtualTime()
    goodput, model = Goodput(clock=clock), built(scope4)
    for seconds in (1.0, 2.0):
        model.fit(*BATCH, verbose=0, callbacks=[goodput, SlowEpochs(clock, on_epoch_end=seconds)])
        assert goodput.report().seconds["callbacks/SlowEpochs"] == pytest.approx(seconds)


def test_a_list_of_callbacks_of_the_user_is_measured_again(scope4):
    clock = VirtualTime()
    model, goodput = built(scope4), Goodput(clock=clock)
    given = keras.callbacks.CallbackList(
        [goodput, Slow(clock, on_epoch_end=1.0)], add_history=True, model=model, epochs=1, steps=1, verbose=0
    )
    for _ in range(2):
        model.fit(*BATCH, verbose=0, callbacks=given)
        assert goodput.report().seconds["callbacks/Slow"] == pytest.approx(1.0)


def resumed(clock, tmp_path, stop_at):
    goodput = Goodput(clock=clock)
    model = built(kte.strategy_scope(require="cpu"))

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            clock.sleep(1.0)

        def on_epoch_end(self, epoch, logs=None):
            if epoch == stop_at:
                raise RuntimeError("the machine is gone")

    resume = kte.callbacks.AutoResume(tmp_path, every_s=1e-9)
    with contextlib.suppress(RuntimeError):
        model.fit(*BATCH, batch_size=2, epochs=4, verbose=0, callbacks=[goodput, resume, Stops()])
    return goodput


@pytest.mark.filterwarnings("ignore:AutoResume")
def test_a_resumed_training_goes_on_counting(tmp_path):
    first = resumed(VirtualTime(), tmp_path, stop_at=2).report()
    second = resumed(VirtualTime(), tmp_path, stop_at=9).report()
    assert first.seconds["callbacks/Stops"] == pytest.approx(12.0)
    assert second.starts == 2
    # The hook after which it was saved is part of a step that had not ended.
    assert second.seconds["callbacks/Stops"] == pytest.approx(16.0, abs=1.0)
    assert second.ok


def test_what_was_not_saved_is_lost():
    goodput = Goodput()
    goodput.interrupted_after(100.0)
    goodput.set_state({"seconds": {"training": 70.0, "idle": 10.0}, "wall_seconds": 80.0, "starts": 1})
    built().fit(*BATCH, verbose=0)
    assert goodput._earlier["seconds"] == {"training": 70.0, "idle": 10.0, "lost": 20.0}
    assert goodput._earlier["wall_seconds"] == 100.0


def test_the_text_of_a_report():
    seconds = {"training": 6000.0, "input": 1500.0, "callbacks/Slow": 30.5, "compile": 0.25}
    report = GoodputReport(seconds, 7530.75)
    assert str(report) == (
        "Goodput 80%: 2 h 06 min of fit\n"
        "  training        1 h 40 min   79.7%  steps\n"
        "  input           25 min 00 s   19.9%  waiting for data\n"
        "  callbacks/Slow      30.5 s    0.4%  hooks of the callback\n"
        "  compile             250 ms    0.0%  tracing and compiling\n"
        "Make batches faster: keras-tpu-ext advise says how, and HostBottleneck for what part it counts."
    )
    assert json.loads(json.dumps(report.to_dict()))["seconds"] == seconds
    assert report.ok
    assert not GoodputReport({"training": 1.0}, 2.0).ok
    assert "epochs were too short" in str(GoodputReport(seconds, 7530.75, input_is_known=False))
    assert "of 3 starts" in str(GoodputReport(seconds, 7530.75, starts=3))
    assert "<pre" in report._repr_html_()


def test_the_largest_cost_has_its_cure():
    assert GoodputReport({"training": 9.5, "callbacks/Slow": 0.5}, 10.0).advice == ""
    assert GoodputReport({"training": 5.0, "callbacks/Slow": 5.0}, 10.0).advice == (
        "Let Slow do its work at the end of an epoch, or every hundredth batch."
    )
    for bucket in ("compile", "input", "validation", "checkpoint", "idle", "lost"):
        assert GoodputReport({"training": 5.0, bucket: 5.0}, 10.0).advice.endswith(".")


def test_the_picture_has_a_bar_for_each_bucket():
    goodput = Goodput()
    built().fit(*BATCH, verbose=0, callbacks=[goodput])
    figure = goodput.plot()
    assert len(figure.axes[0].patches) == len(goodput.report().seconds)
    assert figure.axes[0].get_xlim()[1] == pytest.approx(sum(goodput.report().seconds.values()))


def test_before_a_fit_there_is_nothing():
    with pytest.raises(NothingMeasuredError, match=r"Write: model\.fit\(\.\.\., callbacks=\[goodput\]\)"):
        Goodput().report()
    assert repr(Goodput()) == "<Goodput: nothing measured yet>"
    with pytest.raises(ArgumentError, match=r"Goodput: `clock` must be a function that returns seconds; got 3"):
        Goodput(clock=3)
