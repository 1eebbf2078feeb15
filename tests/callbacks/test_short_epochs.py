"""Epochs of fewer executions than a probe has: one is timed as it comes, and one on batches that are there."""

import contextlib
import math
import time

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources
from keras_tpu_ext.callbacks import HostBottleneck
from keras_tpu_ext.callbacks._short_epochs import EpochProbe, EpochTimes, ShortEpochs
from probed_loop import Fit

pytestmark = pytest.mark.gate_on("keras3_jax")

KEY = "input/wait_fraction"


def run_epoch(probe, loop):
    while not probe.done:
        probe.run(loop.execution())


def measured(host, compute, executions, steps=1, epochs=4, start=0.0, **options):
    """Return what is known after each epoch of a loop whose clock only the test moves."""
    short, known, trained = ShortEpochs(), [], []
    for _ in range(epochs):
        loop = Fit(host, compute, batches=executions * steps, steps=steps, **options)
        probe = short.probe(executions, executions * steps, loop.clock, loop.clock() - start)
        run_epoch(probe, loop)
        if probe.result is not None:
            short.add(probe.result, executions)
        known.append((short.step_seconds, None if short.result is None else short.result.compute_seconds))
        trained.append(loop.trained == list(range(executions * steps)))
    assert all(trained)
    return known, short.result


@pytest.mark.parametrize(("executions", "steps"), [(2, 1), (4, 1), (9, 1), (4, 8)])
def test_the_second_epoch_says_what_a_step_takes_and_the_third_what_it_computes(executions, steps):
    known, result = measured(3.0, 1.0, executions, steps)
    assert known == [(4.0, None), (4.0, 1.0), (4.0, 1.0), (4.0, 1.0)]
    assert result.pipeline_seconds == 3.0


def test_the_start_of_the_pipeline_is_waiting():
    known, _ = measured(3.0, 1.0, executions=4, start=2.0)
    assert known[-1] == (4.5, 1.0)


def test_the_end_of_the_pipeline_is_waiting():
    short = ShortEpochs()
    short.end(1.0)  # of an epoch that nobody has timed
    loop = Fit(3.0, 1.0, batches=4)
    probe = short.probe(4, 4, loop.clock, loop.clock())
    run_epoch(probe, loop)
    short.add(probe.result, 4)
    short.end(2.0)
    assert short.step_seconds == 4.5
    short.end(3.0)  # in place of the one before
    assert short.step_seconds == 4.75
    run_epoch(ahead := short.probe(4, 4, loop.clock, loop.clock()), Fit(3.0, 1.0, batches=4))
    short.add(ahead.result, 4)
    short.end(9.0)
    assert short.step_seconds == 4.75


def test_of_the_last_epochs_the_median_counts():
    short = ShortEpochs()
    for seconds in (1.0, 9.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        short.add(EpochTimes(seconds, 4, is_ahead=False), 4)
    assert short.step_seconds == 4.0


def test_a_single_execution_is_taken_ahead_twice():
    known, _ = measured(3.0, 1.0, executions=1, steps=8)
    assert known == [(4.0, None), (4.0, None), (4.0, 1.0), (4.0, 1.0)]


def test_a_pipeline_that_gives_nothing_ahead_is_refused():
    short = ShortEpochs()
    for _ in range(2):
        loop = Fit(1.0, 1.0, batches=4, gives_ahead=False)
        probe = short.probe(4, 4, loop.clock, loop.clock())
        run_epoch(probe, loop)
        short.add(probe.result, 4) if probe.result else None
    assert probe.refused
    assert short.result is None


@pytest.mark.parametrize("is_ahead", [False, True])
def test_an_epoch_that_ends_early_is_no_epoch(is_ahead):
    loop = Fit(1.0, 1.0, batches=3)
    probe = EpochProbe(4, 4, loop.clock, None if is_ahead else loop.clock())
    for _ in range(3):
        probe.run(loop.execution())
        if probe.done:  # so many batches were there
            break
    if not is_ahead:
        with pytest.raises(StopIteration):
            probe.run(loop.execution())
    assert probe.done
    assert loop.trained == [0, 1, 2]
    assert (probe.result is None) == (not is_ahead)


def built(**options):
    keras.utils.set_random_seed(4)
    model = kte.TPUModel.from_model(keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]))
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    return model


class Late(sources.Batches):
    """Batches that take their time."""

    def __init__(self, batches, seconds):
        super().__init__(batches)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


def data(examples=331):
    x = np.random.default_rng(3).normal(size=(examples, 6)).astype("float32")
    return x, x[:, :1] * 2


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("steps", [5, pytest.param(21, marks=pytest.mark.exhaustive)])
def test_epochs_of_few_executions_change_nothing_and_are_known(steps):
    callback = HostBottleneck(verbose=False)
    results = []
    for callbacks in ([], [callback]):
        model = built(steps_per_execution=steps)
        batches = Late(sources.cut(data(), 16), 0.005)
        fitted = model.fit(batches, epochs=5, verbose=0, shuffle=False, callbacks=callbacks)
        results.append((fitted.history, model.get_weights()))
    (history, weights), (with_it, same_weights) = results
    assert with_it["loss"] == history["loss"]
    for one, other in zip(weights, same_weights, strict=True):
        np.testing.assert_array_equal(other, one)
    known = [not math.isnan(value) for value in with_it[KEY]]
    assert known == ([False, False, True, True, True] if steps == 5 else [False, False, False, True, True])
    assert with_it[KEY][-1] > 0.5  # 5 ms a batch, for a step of less than one
    assert callback.verdict.verdict == "highly input-bound"


class EndsLate(sources.Batches):
    """Batches that are there, and an epoch that takes its time to end."""

    def on_epoch_end(self):
        time.sleep(0.1)


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2 ends the data after the callbacks' on_epoch_end")
@pytest.mark.gate_on("keras3_tf", "keras3_jax")
def test_the_end_of_the_data_is_seen(monkeypatch):
    callback, model = HostBottleneck(verbose=False), built()
    batches = EndsLate(sources.cut(data(64), 16))
    model.fit(batches, epochs=4, verbose=0, shuffle=False, callbacks=[callback])
    assert callback.verdict.step_seconds > 0.025  # 4 batches
    assert "get_metrics_result" not in vars(model)


@pytest.mark.parametrize("ends", ["fit", "error"])
def test_the_model_reads_its_metrics_as_before(ends):
    """Also after a fit that was broken off, and where an attribute of the user's stood there."""
    model = built()
    own = vars(model)["get_metrics_result"] = model.get_metrics_result

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ends == "error" and self.epoch == 1:
                raise RuntimeError("enough")

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

    callback = HostBottleneck(verbose=False)
    with pytest.raises(RuntimeError, match="enough") if ends == "error" else contextlib.nullcontext():
        model.fit(*data(64), batch_size=16, epochs=3, verbose=0, callbacks=[callback, Stop()])
    if ends == "error":
        model.fit(*data(64), batch_size=16, epochs=4, verbose=0, callbacks=[callback])
    assert vars(model)["get_metrics_result"] is own


def test_executions_that_have_found_their_number_are_measured():
    callback = HostBottleneck(verbose=False)
    x, y = data(4000)
    history = built(steps_per_execution="auto").fit(
        x, y, batch_size=16, epochs=12, verbose=0, shuffle=False, callbacks=[callback]
    )
    assert not math.isnan(history.history[KEY][-1])
