"""Real `model.fit` runs under a clock that only the test moves, compared with plain arithmetic."""

import csv
import json
import math
import re
import textwrap

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources
from keras_tpu_ext.callbacks import Throughput
from keras_tpu_ext.errors import ArgumentError, NothingMeasuredError
from kind_of_keras import IS_KERAS2, ROUNDS_IN_BARS, RUNTIMES, VERSION
from own_steps import OwnStep
from timed_fits import BATCHES, BETWEEN, COMPILE, SAMPLES, Clock, Passing, arrays, dataset, model_of, run

# What a callback makes of numbers is the same on every runtime; where it asks the runtime, it is tested on both.
pytestmark = pytest.mark.gate_on("keras3_jax")
on_both = pytest.mark.gate_on("keras3_tf", "keras3_jax")

ignores_end_of_data = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")


@ignores_end_of_data
@pytest.mark.parametrize(
    "known", [True, False] if sources.HAS_TF_DATA else [True], ids={True: "known", False: "unknown"}.get
)
@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(
    ("k", "steps"),
    [(1, [1] * 8), pytest.param(3, [3, 3, 2], marks=on_both), (2, [2] * 4)],
    ids=lambda value: str(value),
)
def test_epoch_rates_are_steps_and_examples_over_training_time(known, validate, k, steps):
    if IS_KERAS2 and not known and k > 1:
        pytest.skip("Keras 2: several steps per execution need the number of batches")
    sizes = [4] * 7 + [2]
    data = dataset(30, 4, known)
    epochs, per_epoch = 3, len(steps)
    seconds = [float(1 + i % 5) for i in range(epochs * per_epoch)]
    seconds[0] = seconds[per_epoch - 1] = COMPILE
    fit = {"validation_data": dataset(7, 4)} if validate else {}
    model = model_of(steps_per_execution=k)
    per_fit = []
    for epoch in range(epochs):
        per_fit += seconds[epoch * per_epoch :][:per_epoch]
        # Keras passes one more begin hook where it does not know the end: no time may count there either.
        if not known and (epoch == 0 or not IS_KERAS2):  # which remembers the end
            per_fit.append(BETWEEN)
    history, _, _ = run(model, data, per_fit, epochs, window=2, fit=fit)

    ends = np.cumsum(steps)
    for epoch in range(epochs):
        counted = range(1, per_epoch - 1) if epoch == 0 else range(per_epoch)
        time = sum(seconds[epoch * per_epoch + i] for i in counted)
        examples = sum(sum(sizes[ends[i] - steps[i] : ends[i]]) for i in counted)
        assert history[BATCHES][epoch] == pytest.approx(sum(steps[i] for i in counted) / time)
        assert history[SAMPLES][epoch] == pytest.approx(examples / time)


@on_both
@pytest.mark.parametrize("kind", ["sequential", "functional", "subclass"])
def test_every_kind_of_model_and_arrays_with_a_short_last_batch(kind):
    class Subclass(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs)

    x, y = arrays(10)
    model = model_of(Subclass if kind == "subclass" else kind)
    fit = {"y": y, "batch_size": 4}
    history, _, _ = run(model, x, [9.0, 2, 9, 1, 2, 2], 2, fit=fit)
    assert history[BATCHES] == pytest.approx([1 / 2, 3 / 5])
    assert history[SAMPLES] == pytest.approx([4 / 2, 10 / 5])


def test_a_generator_without_length():
    def batches():
        while True:
            for size in (4, 4, 4, 2):
                yield arrays(size)

    history, _, _ = run(model_of(), batches(), [9.0, 2, 2, 9, 1, 1, 1, 2], 2, fit={"steps_per_epoch": 4})
    assert history[BATCHES] == pytest.approx([2 / 4, 4 / 5])
    assert history[SAMPLES] == pytest.approx([8 / 4, 14 / 5])


@ignores_end_of_data
def test_a_generator_that_ends():
    history, _, _ = run(model_of(), (arrays(size) for size in (4, 4, 4, 2)), [9.0, 2, 3, 9, BETWEEN], epochs=1)
    assert history[BATCHES] == pytest.approx([2 / 5])
    assert history[SAMPLES] == pytest.approx([8 / 5])


@on_both
@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: ends an epoch where it was told to")
def test_a_repeated_dataset_runs_whole_executions_past_steps_per_epoch():
    model = model_of(steps_per_execution=3)
    history, _, _ = run(
        model, sources.endless(arrays(64), 4), [9.0, 2, 9, 1, 2, 3], 2, fit={"steps_per_epoch": 8}, window=1
    )
    assert history[BATCHES] == pytest.approx([3 / 2, 9 / 6])
    assert history[SAMPLES] == pytest.approx([12 / 2, 36 / 6])


def test_batches_of_different_sizes_are_counted_exactly():
    sizes = [4, 9, 2, 7, 5, 3]
    data = sources.Batches([arrays(size) for size in sizes])
    history, _, _ = run(model_of(), data, [9.0, 1, 1, 1, 1, 9] + [2.0] * 6, 2, window=1)
    assert history[SAMPLES] == pytest.approx([(9 + 2 + 7 + 5) / 4, sum(sizes) / 12])


def test_rolling_rate_goes_over_the_last_window_of_the_epoch():
    seconds = [9.0, 1, 2, 3, 4, 9, 5, 6, 7, 8, 9, 10]
    _, logs, throughput = run(model_of(), dataset(24, 4), seconds, 2, window=3)
    measured = {0: [1, 2, 3, 4], 1: [5, 6, 7, 8, 9, 10]}
    known = [[log[key] for key in (BATCHES, SAMPLES)] if BATCHES in log else None for log in logs]

    def rate(epoch, last):
        window = measured[epoch][:last][-3:]
        return pytest.approx([len(window) / sum(window), 4 * len(window) / sum(window)])

    # Two executions later than it ended: only then is it sure that it was not the last one of the epoch.
    assert known[:3] == [None] * 3
    assert [known[3], known[4], known[5]] == [rate(0, 1), rate(0, 2), rate(0, 3)]
    # The second epoch starts with nothing: the rate of another epoch is not its own.
    assert known[6:] == [None, None, rate(1, 1), rate(1, 2), rate(1, 3), rate(1, 4)]
    assert [record[:2] for record in throughput.records] == [(0, i) for i in (1, 2, 3, 4)] + [
        (1, i) for i in range(6)
    ]
    assert [list(record[3:]) for record in throughput.records] == [
        rate(epoch, last) for epoch, times in measured.items() for last in range(1, len(times) + 1)
    ]


def test_records_tell_seconds_since_the_start_of_fit():
    _, _, throughput = run(model_of(), dataset(16, 4), [9.0, 1, 2, 9, 1, 1, 1, 1], 2)
    first, second = throughput.epoch_records
    start = 2 * BETWEEN  # on_train_begin and on_epoch_begin
    assert (first.began, first.ended) == (start, start + 21)
    assert second.began == start + 21 + 2 * BETWEEN
    assert throughput.records[0].seconds == start + 10
    assert throughput.records[-1].seconds == second.ended == second.began + 4


@pytest.mark.parametrize("warmup", [0, 1, 3, 4, 5, 9])
def test_warmup_executions_are_left_out(warmup):
    seconds = [16.0, 8, 4, 2, 1, 3, 5, 7, 1, 1, 1, 1]
    history, _, _ = run(model_of(), dataset(14, 4), seconds, 3, warmup=warmup)
    sizes = [4, 4, 4, 2]
    for epoch in range(3):
        counted = [i for i in range(4) if 4 * epoch + i >= warmup and (epoch or not warmup or i < 3)]
        time = sum(seconds[4 * epoch + i] for i in counted)
        expected = [math.nan] * 2
        if counted:
            expected = [len(counted) / time, sum(sizes[i] for i in counted) / time]
        assert [history[BATCHES][epoch], history[SAMPLES][epoch]] == pytest.approx(expected, nan_ok=True)


def test_epochs_of_one_execution_are_measured_from_the_second_on():
    model = model_of(steps_per_execution=8)
    history, _, throughput = run(model, dataset(30, 4), [COMPILE, 2.0, 5.0], 3)
    assert history[BATCHES] == pytest.approx([math.nan, 8 / 2, 8 / 5], nan_ok=True)
    assert history[SAMPLES] == pytest.approx([math.nan, 30 / 2, 30 / 5], nan_ok=True)
    assert len(throughput.records) == 2


def test_a_second_fit_starts_afresh():
    clock = Clock()
    throughput = Throughput(clock=clock)
    model = model_of()
    for factor in (1.0, 2.0):
        model.compile("sgd", "mse")
        seconds = [COMPILE, 2 * factor, COMPILE]
        history = model.fit(dataset(12, 4), verbose=0, shuffle=False, callbacks=[throughput, Passing(clock, seconds)])
        assert history.history[SAMPLES] == pytest.approx([4 / (2 * factor)])
        assert len(throughput.records) == len(throughput.epoch_records) == 1


class TrainStepOfItsOwn(OwnStep):
    """A training loop as many write it: the loss tracker is left alone, or updated without a weight."""

    def __init__(self, tracker):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.tracks = tracker

    def call(self, inputs, training=None):
        return self.dense(inputs)


@on_both
@pytest.mark.parametrize(
    "tracker",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.runtimes(
                "keras3_tf", "keras3_jax", reason="Keras 2: whose tracker belongs to its compiled loss alone"
            ),
        ),
    ],
)
def test_where_examples_cannot_be_counted_their_rate_is_left_out_with_a_warning(tracker):
    model = model_of(lambda: TrainStepOfItsOwn(tracker))
    with pytest.warns(UserWarning, match=r"no samples per second.*Write: Throughput\(batch_size=") as caught:
        history, logs, throughput = run(model, dataset(16, 4), [9.0, 1, 1, 9] + [1.0] * 4, 2)
    assert len([warning for warning in caught if warning.category is kte.errors.KteWarning]) == 1
    assert history[BATCHES] == [1.0, 1.0]
    assert SAMPLES not in history
    assert not any(SAMPLES in log for log in logs)
    assert throughput.records[-1].samples_per_sec is None


@on_both
@pytest.mark.parametrize("model_class", [kte.TPUModel, pytest.param(keras.Model, marks=pytest.mark.exhaustive)])
def test_a_batch_smaller_than_the_replicas_is_counted(scope3, model_class):
    """A count of two examples a step on three replicas is no count of steps: the train step is Keras's or ours."""
    with scope3:
        x = keras.Input((2,))
        model = model_class(x, keras.layers.Dense(1)(x))
        model.compile("sgd", "mse")
    history, _, _ = run(model, dataset(8, 2), [9.0, 1, 1, 9] + [1.0] * 4, 2)
    assert history[SAMPLES] == [2.0, 2.0]


def test_batch_size_stands_in_where_examples_cannot_be_counted():
    model = model_of(lambda: TrainStepOfItsOwn(False))
    history, logs, _ = run(model, dataset(16, 4), [9.0, 1, 1, 9] + [2.0] * 4, 2, batch_size=4)
    assert history[SAMPLES] == [4.0, 2.0]
    assert logs[-1][SAMPLES] == 4 * logs[-1][BATCHES]


def test_batch_size_and_a_short_last_batch_that_the_model_counts():
    history, _, _ = run(model_of(), dataset(14, 4), [9.0, 1, 1, 9] + [1.0] * 4, 2, batch_size=4)
    assert history[SAMPLES] == [4.0, 14 / 4]


def test_batch_size_of_one_replica_is_told():
    pattern = r"batch_size=2\) does not fit: the model counted 16 examples in an epoch of 4 steps, 4 per step"
    with pytest.warns(UserWarning, match=pattern) as caught:
        history, _, _ = run(model_of(), dataset(16, 4), [9.0, 1, 1, 9] + [1.0] * 4, 2, batch_size=2)
    assert len([warning for warning in caught if warning.category is kte.errors.KteWarning]) == 1
    assert history[SAMPLES] == [2.0, 2.0]


def test_batch_size_of_one():
    history, _, _ = run(model_of(), dataset(4, 1), [9.0, 1, 1, 9] + [1.0] * 4, 2, batch_size=1)
    assert history[SAMPLES] == [1.0, 1.0]


def test_reading_the_count_is_rare(monkeypatch):
    reads = []
    original = kte._runtime.progress.examples_seen
    monkeypatch.setattr(kte._runtime.progress, "examples_seen", lambda model: reads.append(1) or original(model))
    run(model_of(), dataset(400, 4), [1.0] * 100, window=20)
    assert len(reads) == 5  # after executions 1, 21, 41, 81 and at the end


@on_both
def test_an_evaluate_between_batches_that_sets_the_count_back_gives_no_samples_for_that_epoch():
    class Evaluates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                self.model.evaluate(dataset(8, 4), verbose=0)

    history, _, _ = run(model_of(), dataset(32, 4), [1.0] * 8, callbacks=[Evaluates()], window=2)
    assert history[BATCHES] == [1.0]
    assert math.isnan(history[SAMPLES][0])


@on_both
def test_progress_bar_and_csv_show_the_keys(tmp_path, capsys):
    clock = Clock()
    log = tmp_path / "log.csv"
    model_of().fit(
        dataset(16, 4),
        epochs=2,
        verbose=2,
        shuffle=False,
        callbacks=[
            Throughput(clock=clock),
            Passing(clock, [9.0, 1, 3, 9, 1, 1, 1, 2]),
            keras.callbacks.CSVLogger(log),
        ],
    )
    with log.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row[SAMPLES]) for row in rows] == [2.0, 3.2]
    printed = capsys.readouterr().out
    assert re.findall(r" samples/s: ([\d.]+)", printed) == (["2", "3.2"] if ROUNDS_IN_BARS else ["2.0000", "3.2000"])


@pytest.mark.skipif(not ROUNDS_IN_BARS, reason="this Keras shows four decimals")
def test_the_progress_bar_shows_the_last_rate_not_an_average(capsys):
    clock = Clock()
    model_of().fit(
        dataset(32, 4),
        verbose=1,
        shuffle=False,
        callbacks=[
            Throughput(clock=clock, window=1, progress_bar="all"),
            Passing(clock, [9.0, 1, 2, 4, 8, 16, 1, 1]),
        ],
    )
    shown = re.findall(rf"{BATCHES}: ([\d.]+)", capsys.readouterr().out)
    assert shown[-1] == "0.188"  # the whole epoch
    assert set(shown) <= {"1", "0.5", "0.25", "0.125", "0.0625", "0.188"}


def test_its_repr_tells_the_last_rates():
    _, _, throughput = run(model_of(), dataset(16, 4), [9.0, 1, 1, 9] + [1.0] * 4, 2)
    assert repr(throughput) == ("<Throughput: batches_per_sec 1, samples_per_sec 4, device/samples_per_sec 4>")
    assert repr(Throughput()) == "<Throughput: nothing measured yet>"


def test_logs_are_plain_floats():
    history, logs, _ = run(model_of(), dataset(16, 4), [9.0, 1, 1, 9] + [1.0] * 4, 2)
    assert json.loads(json.dumps([history, logs]))[0][SAMPLES] == [4.0, 4.0]
    assert {type(value) for value in history[SAMPLES]} == {float}


class Stops(keras.callbacks.Callback):
    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            if self.error is not None:
                raise self.error
            self.model.stop_training = True


def test_an_epoch_that_is_stopped_counts_what_it_had():
    history, _, _ = run(model_of(), dataset(40, 4), [9.0, 1, 2, 3, 9], callbacks=[Stops()])
    assert history[BATCHES] == pytest.approx([3 / 6])
    assert history[SAMPLES] == pytest.approx([12 / 6])


@on_both
def test_a_stopped_epoch_with_several_steps_per_execution():
    model = model_of(steps_per_execution=5)
    history, _, _ = run(model, dataset(48, 4), [3.0], warmup=0, callbacks=[Stops()])
    assert history[BATCHES] == pytest.approx([5 / 3])
    assert history[SAMPLES] == pytest.approx([20 / 3])


@pytest.mark.skipif({"keras3_jax"} == RUNTIMES and VERSION < (3, 10), reason="a model of Keras is lost by an error")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_after_an_error_evaluate_predict_and_a_new_fit_work(error):
    clock = Clock()
    throughput = Throughput(clock=clock)
    model = model_of()
    with pytest.raises(error):
        model.fit(
            dataset(40, 4),
            verbose=0,
            shuffle=False,
            callbacks=[throughput, Passing(clock, [9.0, 1, 1, 1, 1]), Stops(error())],
        )
    before = throughput.records
    assert before
    assert throughput.plot() is not None
    assert set(model.evaluate(dataset(8, 4), verbose=0, callbacks=[throughput], return_dict=True)) == {"loss"}
    model.predict(dataset(8, 4), verbose=0, callbacks=[throughput])
    assert throughput.records == before
    history = model.fit(
        dataset(16, 4), verbose=0, shuffle=False, callbacks=[throughput, Passing(clock, [9.0, 1, 1, 9])]
    ).history
    assert history[SAMPLES] == [4.0]


def test_evaluate_and_predict_before_any_fit():
    throughput = Throughput()
    model = model_of()
    model.evaluate(dataset(8, 4), verbose=0, callbacks=[throughput])
    model.predict(dataset(8, 4), verbose=0, callbacks=[throughput])
    assert throughput.records == throughput.epoch_records == ()
    with pytest.raises(NothingMeasuredError, match="nothing measured yet"):
        throughput.plot()


def test_plot_writes_a_picture(tmp_path):
    _, _, throughput = run(model_of(), dataset(32, 4), [9.0] + [1.0] * 15, 2)
    path = tmp_path / "throughput.png"
    figure = throughput.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert figure.axes[0].get_ylabel() == "samples per second"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"window": 0}, "must be an integer of at least 1; got 0. Write window=20."),
        ({"window": 2.5}, "Throughput: `window` must be an integer of at least 1; got 2.5."),
        ({"window": True}, "Throughput: `window` must be an integer of at least 1; got True."),
        ({"warmup": -1}, "must be an integer of at least 0; got -1. Write warmup=1."),
        ({"warmup": None}, "Throughput: `warmup` must be an integer of at least 0; got None."),
        ({"batch_size": 0}, "Throughput: `batch_size` must be an integer of at least 1; got 0."),
        ({"batch_size": "64"}, "got '64'. Write batch_size=128."),
        (
            {"clock": 3.0},
            "Throughput: `clock` must be a function that returns seconds; got 3.0. Write clock=time.perf_counter.",
        ),
    ],
)
def test_values_that_cannot_work(options, text):
    with pytest.raises(ArgumentError, match=re.escape(text)):
        Throughput(**options)


def test_options_are_keyword_only_and_stored_under_their_names():
    clock = Clock()
    throughput = Throughput(window=np.int64(7), warmup=2, batch_size=64, clock=clock)
    assert (throughput.window, throughput.warmup, throughput.batch_size) == (7, 2, 64)
    assert throughput.clock is clock
    assert Throughput.async_safe
    with pytest.raises(TypeError):
        Throughput(20)


def test_the_example_in_the_docstring_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = textwrap.dedent(re.search(r"```python\n(.*?)```", Throughput.__doc__, re.DOTALL)[1])
    exec(code, {})
    assert (tmp_path / "throughput.png").stat().st_size > 0


@on_both
def test_steps_that_loss_scaling_skips_are_steps():
    model = model_of()
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1e-3), initial_scale=3e38, dynamic_growth_steps=1000
    )
    model.compile(optimizer, "mse", steps_per_execution=3)
    x, y = arrays(30)
    history, _, _ = run(model, x, [2.0, 3, 1], fit={"y": 1e3 * y, "batch_size": 4}, warmup=0)
    if not IS_KERAS2:  # which counts them as well
        assert int(keras.ops.convert_to_numpy(optimizer.iterations)) < 8
    assert history[BATCHES] == pytest.approx([8 / 6])
    assert history[SAMPLES] == pytest.approx([30 / 6])


def printed_by(capsys, throughput, model=None, **fit):
    """Return the line of the last epoch, and the history."""
    model = model or model_of()
    history = model.fit(*arrays(64), batch_size=8, epochs=2, verbose=2, callbacks=[throughput], **fit).history
    return capsys.readouterr().out.splitlines()[-1], history


@on_both
def test_a_progress_bar_shows_the_samples_and_history_has_every_key(capsys):
    line, history = printed_by(capsys, Throughput())
    assert " - samples/s: " in line
    assert "throughput/" not in line
    assert {key for key in history if key.startswith("throughput/")} == {
        BATCHES,
        SAMPLES,
        "throughput/device/samples_per_sec",
    }


def test_a_progress_bar_shows_tokens_in_place_of_samples(capsys):
    line, _ = printed_by(capsys, Throughput(tokens_per_sample=7))
    assert " - tokens/s: " in line
    assert "samples" not in line


def test_a_progress_bar_shows_all_on_request_and_on_one_device_none_twice(capsys):
    line, _ = printed_by(capsys, Throughput(progress_bar="all"))
    assert f" - {BATCHES}: " in line
    assert f" - {SAMPLES}: " in line
    assert "throughput/device" not in line


def test_on_several_devices_all_is_that_of_one_device_too(capsys, scope3):
    with scope3:
        model = model_of()
    line, _ = printed_by(capsys, Throughput(progress_bar="all"), model)
    assert " - throughput/device/samples_per_sec: " in line


def test_without_a_count_of_examples_a_progress_bar_shows_batches(capsys):
    x = keras.Input((2,))
    model = OwnStep(x, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="shows no samples per second"):
        line, _ = printed_by(capsys, Throughput(), model)
    assert " - batches/s: " in line


def test_the_same_object_twice_is_an_error_and_does_no_harm():
    throughput = Throughput()
    text = (
        "Throughput: the same object is in `callbacks` twice, so that it would count every step twice. Write it "
        "once: fit(..., callbacks=[throughput])"
    )
    with pytest.raises(ArgumentError) as caught:
        model_of().fit(*arrays(16), verbose=0, callbacks=[throughput, throughput])
    assert str(caught.value) == text
    assert SAMPLES in model_of().fit(*arrays(64), batch_size=8, verbose=0, callbacks=[throughput]).history
