"""MFU, rates of a device and of tokens in real fits, under a clock that only the test moves."""

import importlib.util
import math
import re

import keras
import pytest

from keras_tpu_ext import _runtime, hardware
from keras_tpu_ext._runtime.common.select import chosen
from keras_tpu_ext.callbacks import Throughput
from keras_tpu_ext.callbacks._mfu import device_peak
from keras_tpu_ext.errors import ArgumentError, KteWarning, MissingExtraError, NothingMeasuredError
from timed_fits import SAMPLES, Clock, Passing, dataset, model_of, run

# What a callback makes of numbers is the same on every runtime; where it asks the runtime, it is tested on both.
pytestmark = pytest.mark.gate_on("keras3_jax")
on_both = pytest.mark.gate_on("keras3_tf", "keras3_jax")

DEVICE, MFU, TOKENS = "throughput/device/samples_per_sec", "throughput/device/mfu", "throughput/tokens_per_sec"
SECONDS = [9.0, 1, 1, 9, 2, 2, 2, 2, 1, 1, 1, 1]
FLOPS = 2 * 2 * 2  # of a layer of two by one: forward, and backward for its weights
WRITES = chosen() != "keras3_jax" or importlib.util.find_spec("tensorboard") is not None


@on_both
def test_mfu_is_flops_by_peak_and_time():
    history, logs, throughput = run(model_of(), dataset(16, 4), SECONDS, 3, peak_flops=100.0)
    assert history[SAMPLES] == history[DEVICE] == [4.0, 2.0, 4.0]
    assert history[MFU] == pytest.approx([4 * FLOPS / 100, 2 * FLOPS / 100, 4 * FLOPS / 100])
    assert logs[-1][MFU] == pytest.approx(logs[-1][SAMPLES] * FLOPS / 100)
    assert throughput.counted_flops == (FLOPS, 4)


@on_both
def test_on_replicas_they_are_those_of_one(scope4):
    with scope4:
        model = model_of()
    history, _, throughput = run(model, dataset(32, 8), SECONDS[:4], peak_flops=100.0, flops_per_sample=10)
    assert history[SAMPLES] == [8.0]
    assert history[DEVICE] == [2.0]
    assert history[MFU] == [pytest.approx(2 * 10 / 100)]
    assert throughput.counted_flops is None


@pytest.mark.parametrize("warmup", [0, 1])
def test_the_time_of_counting_is_not_measured(monkeypatch, warmup):
    clock, count = Clock(), _runtime.probes.count_flops
    counts = []

    def slow(*arguments):
        clock.now += 5000
        counts.append(arguments[2])
        return count(*arguments)

    monkeypatch.setattr(_runtime.probes, "count_flops", slow)
    throughput = Throughput(clock=clock, peak_flops=100.0, warmup=warmup)
    passing = Passing(clock, [2.0] * 8)
    history = model_of().fit(dataset(16, 4), epochs=2, verbose=0, shuffle=False, callbacks=[throughput, passing])
    assert history.history[SAMPLES] == [2.0, 2.0]
    assert counts == [4]  # once, and of the true batch size


def test_epochs_of_one_execution_have_an_mfu_as_well():
    model = model_of(steps_per_execution=8)
    history, _, throughput = run(model, dataset(32, 4), [9.0, 2.0, 4.0], 3, peak_flops=1000.0)
    assert history[MFU] == pytest.approx([math.nan, 16 * FLOPS / 1000, 8 * FLOPS / 1000], nan_ok=True)
    assert throughput.counted_flops == (FLOPS, 4)


def test_without_a_known_peak_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(_runtime.probes, "count_flops", None)
    monkeypatch.setattr(_runtime.probes, "intercept_executions", None)
    history, logs, _ = run(model_of(), dataset(16, 4), SECONDS[:4])
    assert MFU not in history
    assert not any(MFU in log or TOKENS in log for log in logs)
    assert MFU not in run(model_of(), dataset(16, 4), SECONDS[:4], flops_per_sample=5.0)[0]
    assert MFU not in run(model_of(), dataset(16, 4), SECONDS[:4], flops_per_sample=None, peak_flops=5.0)[0]


def test_the_peak_of_a_tpu_is_that_of_a_device(monkeypatch):
    for name, peak in {
        "TPU v2": 23e12,
        "TPU v3": 61.5e12,
        "TPU v4": 275e12,
        "TPU v5 lite": 197e12,
        "TPU v5e": 197e12,
        "TPU v5": 459e12,
        "TPU v5p": 459e12,
        "TPU v6 lite": 918e12,
        "TPU7x": 2307e12 / 2,
    }.items():
        assert device_peak(name).flops == peak, name
    assert device_peak("TPU v3").source == "bfloat16 peak of a core of TPU v3"
    assert device_peak("cpu").flops is device_peak("").flops is device_peak("NVIDIA H100").flops is None
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    assert device_peak("TPU") == (197e12, "bfloat16 peak of a chip of TPU v5e")
    assert device_peak("cpu").flops is None  # a rehearsal on a TPU machine


def test_on_a_tpu_it_is_counted_without_asking(monkeypatch):
    monkeypatch.setattr(_runtime.devices, "device_name", lambda model: "TPU v3")
    history, _, _ = run(model_of(), dataset(16, 4), SECONDS[:4])
    assert history[MFU] == [pytest.approx(4 * FLOPS / 61.5e12)]
    assert hardware.TPU_GENERATIONS["v3"].peak_bf16_flops_per_core == 61.5e12


def test_a_tpu_that_nobody_knows_is_told(monkeypatch):
    monkeypatch.setattr(_runtime.devices, "device_name", lambda model: "TPU v99")
    with pytest.warns(UserWarning, match=r"no MFU: .* calls itself 'TPU v99'. Write: Throughput\(peak_flops="):
        assert MFU not in run(model_of(), dataset(16, 4), SECONDS[:4])[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"flops_per_sample": 50}, 'flops_per_sample=50 is too large: .*Write: Throughput\\(flops_per_sample="auto"'),
        ({"peak_flops": 5.0}, "Likely peak_flops=5 is too small: it is in FLOP/s, and that of one framework device"),
        (
            {"flops_per_sample": 50, "batch_size": 4},
            r"flops_per_sample=50 .*; or batch_size=4 is too large: it is the number .* over all replicas",
        ),
    ],
)
def test_an_mfu_above_one_is_refused(options, text):
    options = {"peak_flops": 100.0, **options}
    with pytest.warns(UserWarning, match=text) as caught:
        history, logs, throughput = run(model_of(), dataset(16, 4), SECONDS, 3, **options)
    (warning,) = [one for one in caught if issubclass(one.category, KteWarning)]
    assert re.search(r"refuses an MFU of [\d.]+ %: a device would do more than the \d+ FLOP/s", str(warning.message))
    refused = [rate * (options.get("flops_per_sample") or FLOPS) > options["peak_flops"] for rate in history[SAMPLES]]
    assert [math.isnan(mfu) for mfu in history[MFU]] == refused
    assert all(log.get(MFU, 0.0) <= 1 for log in logs)
    assert throughput.plot().axes[0].get_ylabel() == "samples per second"


def test_where_the_table_is_wrong_the_peak_is_to_be_given(monkeypatch):
    from keras_tpu_ext.callbacks import _mfu as module

    monkeypatch.setattr(module, "device_peak", lambda name: module.Peak(1.0, "bfloat16 peak of a chip of TPU v5e"))
    with pytest.warns(
        UserWarning, match=r"\(bfloat16 peak of a chip of TPU v5e\).*faster than the table says.*peak_"
    ):
        run(model_of(), dataset(16, 4), SECONDS[:4])


@on_both
def test_what_cannot_be_counted_is_told_and_fit_goes_on(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("of the user's\nand more")

    monkeypatch.setattr(_runtime.probes, "count_flops", fails)
    with pytest.warns(
        UserWarning, match=r"because its step cannot be traced apart from fit \(RuntimeError: of the user"
    ):
        history, _, throughput = run(model_of(), dataset(16, 4), SECONDS[:8], 2, peak_flops=100.0)
    assert history[SAMPLES] == [4.0, 2.0]
    assert MFU not in history
    assert throughput.counted_flops is None


def test_tokens():
    history, _logs, _ = run(model_of(), dataset(16, 4), SECONDS[:4], tokens_per_sample=512)
    assert history[TOKENS] == [4.0 * 512]
    assert set(history) == {"loss", "throughput/batches_per_sec", SAMPLES, DEVICE, TOKENS}


def test_step_time_percentiles_of_epochs_and_of_the_fit():
    _, _, throughput = run(model_of(steps_per_execution=2), dataset(32, 4), [9.0, 1, 1, 9, 2, 2, 2, 4], 2)
    first, second = throughput.epoch_records
    assert first[-3:] == (0.5, 0.5, 0.5)
    assert second[-3:] == pytest.approx((1.0, 2.0, 2.0), rel=0.0051)
    assert throughput.step_time_percentiles() == pytest.approx((1.0, 2.0, 2.0), rel=0.0051)
    with pytest.raises(NothingMeasuredError, match=r"nothing measured yet: .*throughput.step_time_percentiles"):
        Throughput().step_time_percentiles()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"flops_per_sample": 0}, '`flops_per_sample` must be "auto", None or a number above 0; got 0. Write '),
        ({"flops_per_sample": "none"}, """got 'none'. Write flops_per_sample="auto"."""),
        (
            {"peak_flops": -1.0},
            "`peak_flops` must be None or a number of FLOP/s of one device above 0; got -1.0.",
        ),
        ({"peak_flops": math.inf}, "got inf. Write peak_flops=197e12."),
        ({"peak_flops": True}, "got True. Write peak_flops=197e12."),
        ({"tokens_per_sample": 0.5}, "`tokens_per_sample` must be an integer of at least 1; got 0.5. Write"),
    ],
)
def test_values_that_cannot_work(options, text):
    with pytest.raises(ArgumentError, match=re.escape(text)):
        Throughput(**options)


def scalars(folder):
    """Return what the event files of a folder hold: by file name, a list of tag, step and value."""
    found = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        found += events(file)
    return found


def events(file):
    if chosen() == "keras3_jax":
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        loaded = list(EventFileLoader(str(file)).Load())
    else:
        import tensorflow as tf

        loaded = list(tf.compat.v1.train.summary_iterator(str(file)))
    values = [(value, event.step) for event in loaded for value in event.summary.value]
    assert {value.metadata.plugin_data.plugin_name for value, _ in values} <= {"scalars", ""}
    return [(value.tag, step, number_of(value.tensor)) for value, step in values]


def number_of(tensor):
    import struct

    return tensor.float_val[0] if tensor.float_val else struct.unpack("<f", tensor.tensor_content)[0]


@on_both
@pytest.mark.skipif(not WRITES, reason="TensorBoard is not installed")
def test_tensorboard_gets_it_all(tmp_path):
    folder = tmp_path / "made" / "here"
    _, _logs, _throughput = run(
        model_of(), dataset(32, 4), [9.0, *[1] * 6, 9, *[2] * 8], 2,
        log_dir=folder, window=2, peak_flops=100.0, tokens_per_sample=3,
    )  # fmt: skip
    written = scalars(folder)
    rolling = [(step, value) for tag, step, value in written if tag == SAMPLES]
    assert rolling == [(3, 4.0), (5, 4.0), (7, 4.0), (11, 2.0), (13, 2.0), (15, 2.0)]
    assert [(step, value) for tag, step, value in written if tag == f"epoch_{SAMPLES}"] == [(0, 4.0), (1, 2.0)]
    tags = {tag for tag, _, _ in written}
    assert {MFU, TOKENS, DEVICE, f"epoch_{MFU}", f"epoch_{TOKENS}", "epoch_throughput/step_seconds_p99"} <= tags
    assert not any(math.isnan(value) for _, _, value in written)


class Closing:
    def __init__(self, folder):
        self.folder, self.is_open = folder, True

    def write(self, step, scalars):
        assert self.is_open

    def flush(self):
        assert self.is_open

    def close(self):
        self.is_open = False


@on_both
def test_files_are_closed_at_every_exit(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(
        _runtime, "event_file_class", lambda: lambda folder: opened.append(Closing(folder)) or opened[-1]
    )
    clock = Clock()
    throughput = Throughput(clock=clock, log_dir=tmp_path, window=1)
    model = model_of()

    def fit(seconds, *more):
        callbacks = [throughput, Passing(clock, seconds), *more]
        model.fit(dataset(40, 4), verbose=0, shuffle=False, callbacks=callbacks)

    fit([1.0] * 10)
    assert [one.is_open for one in opened] == [False]

    class Fails(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 8:
                raise RuntimeError("of the user's")

    with pytest.raises(RuntimeError, match="of the user's"):
        fit([1.0] * 10, Fails())
    fit([1.0] * 10)
    assert [one.is_open for one in opened] == [False] * 3
    assert opened[0].folder == str(tmp_path)


@on_both
def test_only_the_chief_writes(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(_runtime, "event_file_class", lambda: opened.append)
    monkeypatch.setattr(_runtime.devices, "is_chief", lambda: False)
    run(model_of(), dataset(32, 4), [1.0] * 8, log_dir=tmp_path, window=1)
    assert opened == []


@pytest.mark.skipif(chosen() != "keras3_jax", reason="TensorFlow writes by itself")
def test_without_anything_that_writes_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"log_dir needs TensorBoard.*Write: pip install tensorboard"):
        Throughput(log_dir="logs")
