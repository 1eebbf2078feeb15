import collections
import itertools
import pathlib
import statistics
import time
import warnings

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")
gate_on_jax = pytest.mark.gate_on("keras3_jax")


def network(width=8, *, inputs=64, **options):
    inputs = keras.Input((inputs,))
    hidden = keras.layers.Dense(width, activation="relu", name="wide")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(4, name="narrow")(hidden))
    model.compile("sgd", "mse", **options)
    return model


def fit(trace, *others, model=None, batches=8, rows=8, **options):
    model = model or network()
    x, y = (np.ones((rows * batches, size), "float32") for size in (model.input_shape[-1], 4))
    return model.fit(x, y, batch_size=rows, verbose=0, callbacks=[trace, *others], **options)


class Hook(keras.callbacks.Callback):
    """Calls a function before each batch."""

    async_safe = True

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_train_batch_begin(self, batch, logs=None):
        self.function(batch)


def is_profiler_free(folder):
    _runtime.probes.start_profiler(str(folder))
    _runtime.probes.stop_profiler()
    return True


def test_the_wide_layer_dominates(tmp_path, capsys):
    trace = kte.callbacks.Trace(steps=(3, 6), directory=tmp_path)
    fit(trace, model=network(2048, inputs=512), rows=512)
    report = trace.report()
    assert report.ok
    assert report.steps == (3, 6)
    assert sum(report.seconds.values()) == pytest.approx(3 * report.step_seconds)
    assert sum(row.seconds for row in report.operations) == pytest.approx(
        report.seconds["compute"] + report.seconds["collectives"]
    )
    by_layer = collections.Counter()
    for row in report.operations:
        by_layer[row.layer] += row.seconds
    assert by_layer.most_common(1)[0][0] == "wide"
    assert {row.backward for row in report.operations if row.layer == "wide"} == {True, False}
    assert {3} <= {row.count for row in report.operations}
    assert pathlib.Path(report.directory) == tmp_path
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
    assert capsys.readouterr().out == f"Trace: {report}\n"


def test_its_total_is_that_of_steps_without_it_and_a_callback_is_the_hosts():
    begins = []

    def sleep(batch):
        begins.append(time.perf_counter())
        time.sleep(0.1)  # much longer than what else makes a step longer or shorter on a busy machine

    for _ in range(2):  # once more if the machine was busy
        begins.clear()
        trace = kte.callbacks.Trace(steps=(4, 8))
        fit(trace, Hook(sleep), batches=16)
        report = trace.report()
        untraced = statistics.median(after - begin for begin, after in itertools.pairwise(begins[9:]))
        off = report.step_seconds / untraced - 1
        if abs(off) < 0.1:
            break
    assert abs(off) < 0.1
    assert report.seconds["host"] > 0.8 * sum(report.seconds.values())


@pytest.mark.exhaustive
def test_its_total_is_that_of_computing_steps_without_it():
    seconds = []

    class Epochs(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds.append((time.perf_counter() - self.began) / 24)

    for _ in range(5):  # again if the machine was busier in some epochs than in others
        seconds.clear()
        trace = kte.callbacks.Trace(steps=(4, 24))
        fit(trace, Epochs(), model=network(4096), batches=24, rows=512, epochs=4)
        off = trace.report().step_seconds / statistics.median(seconds[1:]) - 1
        if abs(off) < 0.1:
            break
    assert abs(off) < 0.1


def test_a_whole_execution_is_traced_and_never_the_first(tmp_path):
    with kte.strategy_scope(require="cpu"):
        model = network(steps_per_execution=4)
    trace = kte.callbacks.Trace(steps=(2, 6), directory=tmp_path)
    fit(trace, model=model, batches=16)
    assert trace.report().steps == (4, 8)


def test_afterwards_the_train_function_is_its_own(tmp_path):
    model, functions = network(), {}
    trace = kte.callbacks.Trace(steps=(2, 4), directory=tmp_path)
    fit(trace, Hook(lambda batch: functions.setdefault(batch, hasattr(model.train_function, "by"))), model=model)
    assert functions == {**dict.fromkeys(range(4), True), **dict.fromkeys(range(4, 8), False)}


@gate_on_jax
def test_a_short_epoch_is_told(tmp_path):
    trace = kte.callbacks.Trace(directory=tmp_path)
    with pytest.warns(UserWarning, match="Trace") as caught:
        fit(trace, batches=6, epochs=2)
    assert [warning.message.args[0] for warning in caught if warning.category is kte.errors.KteWarning] == [
        "Trace: the first epoch ended after 6 steps, and steps 10 to 19 were to be traced. Write: Trace(steps=(3, 6))"
    ]
    with pytest.raises(kte.errors.NothingMeasuredError, match="a `fit` of more than 10 steps in its first epoch"):
        trace.report()


def test_an_epoch_that_ends_in_between_is_reported(tmp_path):
    trace = kte.callbacks.Trace(steps=(3, 10), directory=tmp_path)
    with pytest.warns(UserWarning, match="ended after 5 steps"):
        fit(trace, batches=5)
    assert trace.report().steps == (3, 5)
    assert is_profiler_free(tmp_path)


def test_data_of_unknown_length(tmp_path):
    def batches():
        for _ in range(5):
            yield np.ones((8, 64), "float32"), np.ones((8, 4), "float32")

    trace = kte.callbacks.Trace(steps=(3, 10), directory=tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network().fit(batches(), verbose=0, callbacks=[trace])
    assert "ended after 5 steps" in " ".join(str(warning.message) for warning in caught)
    assert trace.report().steps == (3, 5)
    assert is_profiler_free(tmp_path)


def fail(batch):
    if batch == 3:
        raise OSError("no disk")


def test_an_error_of_a_callback_stops_the_profiler(tmp_path):
    with kte.strategy_scope(require="cpu"):
        model = network()
    with pytest.raises(OSError, match="no disk"):
        fit(kte.callbacks.Trace(steps=(2, 6), directory=tmp_path), Hook(fail), model=model)
    assert is_profiler_free(tmp_path)


def test_after_an_error_with_a_plain_model_the_next_fit_stops_it(tmp_path):
    model = network()
    with pytest.raises(OSError, match="no disk"):
        fit(kte.callbacks.Trace(steps=(2, 6), directory=tmp_path), Hook(fail), model=model)
    trace = kte.callbacks.Trace(steps=(2, 4), directory=tmp_path)
    fit(trace, model=model)
    assert trace.report().steps == (2, 4)
    assert is_profiler_free(tmp_path)


def test_an_error_of_a_step_stops_the_profiler(tmp_path):
    class Data(keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 6:
                raise OSError("no disk")
            return np.ones((8, 64), "float32"), np.ones((8, 4), "float32")

    trace = kte.callbacks.Trace(steps=(3, 8), directory=tmp_path)
    with pytest.raises(Exception, match="no disk"):
        network().fit(Data(), verbose=0, shuffle=False, callbacks=[trace])
    assert is_profiler_free(tmp_path)


def test_two_of_the_same_steps_are_an_error(tmp_path):
    traces = [kte.callbacks.Trace(steps=steps, directory=tmp_path) for steps in ((2, 6), (4, 7))]
    with pytest.raises(kte.errors.ArgumentError) as error:
        fit(*traces)
    assert str(error.value) == (
        "Trace: a profiler is running already, and there is one in a process. Leave out the other one, such as "
        "TensorBoard(profile_batch=...) or a Trace of the same steps, or trace other steps: Trace(steps=(7, 10))"
    )
    assert is_profiler_free(tmp_path)


def test_two_of_other_steps_are_none(tmp_path):
    traces = [kte.callbacks.Trace(steps=steps, directory=tmp_path / str(steps[0])) for steps in ((2, 4), (5, 7))]
    fit(*traces)
    assert [trace.report().steps for trace in traces] == [(2, 4), (5, 7)]


def test_a_profiler_of_the_users_goes_on(tmp_path):
    _runtime.probes.start_profiler(str(tmp_path))
    try:
        with pytest.raises(kte.errors.ArgumentError, match="a profiler is running already"):
            fit(kte.callbacks.Trace(steps=(2, 4)))
    finally:
        _runtime.probes.stop_profiler()  # which would fail if it were not running
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


@gate_on_jax
def test_a_trace_that_cannot_be_read_ends_no_training(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_tpu_ext.callbacks.trace.read_xplane", lambda data, step: int("damaged"))
    with pytest.warns(UserWarning, match=r"Trace: the trace in .* cannot be read \(.*damaged.*\)"):
        fit(kte.callbacks.Trace(steps=(2, 4), directory=tmp_path))


@gate_on_jax
def test_only_the_chief_prints_and_each_process_has_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_runtime.devices, "is_chief", lambda: False)
    monkeypatch.setattr("keras_tpu_ext.callbacks.trace._runtime.devices.num_workers", lambda: 2)
    trace = kte.callbacks.Trace(steps=(2, 4), directory=tmp_path)
    fit(trace)
    assert capsys.readouterr().out == ""
    assert pathlib.Path(trace.report().directory).parent == tmp_path


@gate_on_jax
@pytest.mark.parametrize("steps", [(0, 5), (5, 5), (6, 5), 5, (1, 2, 3), "ab", (1.5, 3), None])
def test_wrong_steps_are_named(steps):
    with pytest.raises(kte.errors.ArgumentError) as error:
        kte.callbacks.Trace(steps=steps)
    assert str(error.value) == (
        "Trace: `steps` must be two integers, the first step from 1 on and the one after the last; "
        f"got {steps!r}. Write steps=(10, 20)."
    )


@gate_on_jax
def test_a_remote_folder_is_refused():
    with pytest.raises(kte.errors.ArgumentError, match="`directory` must be a local folder; got 'gs://mine'"):
        kte.callbacks.Trace(directory="gs://mine")


@gate_on_jax
def test_its_repr():
    assert repr(kte.callbacks.Trace(directory="logs")) == "Trace(steps=(10, 20), directory='logs')"
