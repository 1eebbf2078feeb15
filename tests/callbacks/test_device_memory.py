"""Memory in use and what grows in it: leaks are injected, and ordinary runs have none."""

import json
import re
import warnings

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.values import ArrayGroup, DeviceUse
from keras_tpu_ext.callbacks import DeviceMemory
from keras_tpu_ext.callbacks.device_memory_report import Growth

pytestmark = [
    pytest.mark.gate_on("keras3_jax"),
    pytest.mark.usefixtures("garbage_of_this_test_only"),  # a leak is looked for after a collection
]
ON_JAX = keras.backend.backend() == "jax"
IN_USE, PEAK, LIMIT = (f"device_memory/{name}_gib" for name in ("in_use", "peak", "limit"))
X, Y = np.zeros((40, 3), "float32"), np.zeros((40, 1), "float32")


def model_of(**options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "adam", "loss": "mse"} | options)
    return model


def fit(memory, *callbacks, model=None, **options):
    options = {"epochs": 4, "batch_size": 4, "verbose": 0} | options
    return (model or model_of()).fit(X, Y, callbacks=[memory, *callbacks], **options)


class Keeps(keras.callbacks.Callback):
    """Keeps an array of a shape of its own after each batch."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append(_runtime.ops.convert_to_tensor(np.full((7, 2), batch, "float32")))


def still():
    return 0.0


def test_an_array_of_each_step_is_told_after_three_epochs_by_shape_and_number():
    memory = DeviceMemory(clock=still)
    with pytest.warns(UserWarning, match=r"20 more\s+arrays of shape \(7, 2\) and dtype float32: now 30") as told:
        fit(memory, Keeps(), epochs=3)
    assert len([one for one in told if "DeviceMemory" in str(one.message)]) == 1
    report = memory.report()
    assert not report.ok
    assert "Something keeps them" in str(report)
    largest = next(group for group in report.arrays if group.shape == (7, 2))
    assert largest == ArrayGroup("other", (7, 2), "float32", 30, 30 * 7 * 2 * 4)


def test_a_leak_can_be_an_error_and_can_be_ignored():
    with pytest.raises(kte.errors.DeviceMemoryError, match="grows without end"):
        fit(DeviceMemory(on_leak="raise", clock=still), Keeps())
    ignoring = DeviceMemory(on_leak="ignore", clock=still)
    fit(ignoring, Keeps())
    assert ignoring.report().ok


class Cycles(keras.callbacks.Callback):
    """Leaves arrays in cycles, which Python frees some time later."""

    def on_train_batch_end(self, batch, logs=None):
        held = [_runtime.ops.convert_to_tensor(np.zeros((7, 2), "float32"))]
        held.append(held)


class OfItsOwn(keras.callbacks.Callback):
    """Has a history of its own, of two small arrays an epoch."""

    def __init__(self):
        super().__init__()
        self.history = []

    def on_epoch_end(self, epoch, logs=None):
        self.history += [_runtime.ops.convert_to_tensor(np.float32(logs["loss"])) for _ in range(2)]


ORDINARY = {
    "nothing": lambda folder: [],
    "cycles": lambda folder: [Cycles()],
    "history": lambda folder: [OfItsOwn()],
    "early stopping": lambda folder: [
        keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(str(folder / "best.weights.h5"), save_weights_only=True),
    ],
    "resume": lambda folder: [kte.callbacks.AutoResume(folder, every_s=0.001)],
}


@pytest.mark.parametrize("callbacks", ORDINARY)
@pytest.mark.parametrize(
    "options",
    [{}, {"validation_data": (X, Y), "shuffle": True}, {"batch_size": 40}, {"batch_size": 16}],
    ids=["plain", "validation", "one step", "short batch"],
)
def test_no_leak_in_ordinary_runs(callbacks, options, tmp_path):
    memory = DeviceMemory(clock=still)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "DeviceMemory")
        with kte.strategy_scope(require="cpu"):
            optimizer = keras.optimizers.Adam(use_ema=True)
            model = model_of(optimizer=optimizer, metrics=["mae"], gradient_accumulation_steps=2)
        fit(memory, *ORDINARY[callbacks](tmp_path), model=model, epochs=6, **options)
    assert memory.report().ok


def test_logs_and_report_have_what_is_known():
    memory = DeviceMemory()
    assert repr(memory) == "<DeviceMemory: nothing measured yet>"
    with pytest.raises(kte.errors.NothingMeasuredError, match=r"callbacks=\[memory\]"):
        memory.report()
    history = fit(memory, epochs=2).history
    assert len(history[IN_USE]) == len(history[PEAK]) == 2
    assert LIMIT not in history  # of a CPU
    assert 0 < history[IN_USE][-1] <= history[PEAK][-1]
    (use,) = memory.report().devices
    assert use.in_use / 2**30 == history[IN_USE][-1]
    assert use.counted in str(memory.report()).replace("\n  ", " ")
    assert ("live arrays" in use.counted) is ON_JAX
    assert json.loads(json.dumps(memory.report().to_dict()))["devices"][0]["limit"] is None
    assert repr(memory).startswith("<DeviceMemory: in_use_gib ")


@pytest.mark.runtimes("keras3_jax")
def test_on_jax_the_memory_in_use_is_that_of_the_arrays_by_role():
    with kte.strategy_scope(require="cpu", replicas=2):
        model = model_of(metrics=["mae"])
    memory = DeviceMemory()
    fit(memory, model=model, epochs=1)
    first, second = memory.report().devices
    assert (first.device, second.device) == ("cpu:0", "cpu:1")
    groups = {group[:3]: group.number for group in memory.report().arrays}
    assert groups[("weight", (3, 5), "float32")] == 1
    assert groups[("optimizer", (3, 5), "float32")] == 2
    weights = sum(weight.nbytes for weight in model.get_weights())
    assert second.in_use >= 3 * weights  # with Adam's two moments


def test_the_fullest_device_is_shown(monkeypatch):
    uses = [DeviceUse("GPU:0", 2**30, 2**31, 2**34, "all"), DeviceUse("GPU:1", 2**31, 2**32, 2**34, "all")]
    monkeypatch.setattr(_runtime.devices, "memory_reader", lambda model: lambda: list(uses))
    memory = DeviceMemory()
    history = fit(memory, epochs=1).history
    assert [history[key] for key in (IN_USE, PEAK, LIMIT)] == [[2.0], [4.0], [16.0]]
    assert "GPU:1: 2 GiB in use, 4 GiB at most, of 16 GiB (all)" in str(memory.report())


def test_where_nothing_tells_it_is_told(monkeypatch):
    monkeypatch.setattr(_runtime.devices, "memory_reader", lambda model: list)
    with pytest.warns(UserWarning, match="nothing tells the memory of these devices"):
        fit(DeviceMemory(), epochs=1)


def test_it_reads_twice_a_second_and_looks_through_arrays_in_a_hundredth_of_the_time(monkeypatch):
    now, reads, looks = [0.0], [], []
    reader = _runtime.devices.memory_reader

    def counting(model):
        read = reader(model)
        return lambda: reads.append(now[0]) or read()

    def slow(model):
        looks.append(now[0])
        now[0] += 0.2
        return []

    class Passes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            now[0] += 0.1

    monkeypatch.setattr(_runtime.devices, "memory_reader", counting)
    monkeypatch.setattr(_runtime.devices, "live_arrays", slow)
    fit(DeviceMemory(clock=lambda: now[0]), Passes(), epochs=30)
    assert looks == pytest.approx([1.0, 21.2], abs=0.05)
    assert len(reads) < 1 + 30 + 2.1 * now[0]


def test_plot_writes_a_picture(tmp_path):
    memory = DeviceMemory()
    fit(memory, epochs=2)
    figure = memory.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 1000
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    assert labels[:2] == ["in use", "peak"]
    assert "end of an epoch" in labels


@pytest.mark.parametrize(
    ("options", "text"), [({"on_leak": "print"}, r'on_leak` must be .*"warn"'), ({"clock": 3}, "time.perf_counter")]
)
def test_values_that_cannot_work(options, text):
    with pytest.raises(kte.errors.ArgumentError, match=text):
        DeviceMemory(**options)


def grown(*numbers, size=4, steps=100):
    growth = Growth()
    for epoch, number in enumerate(numbers):
        growth.add(steps * epoch, [ArrayGroup("other", (), "float32", number, number * size)])
    return [(increase, executions) for _, increase, executions in growth.leaks()]


@pytest.mark.parametrize(
    ("numbers", "options", "found"),
    [
        ((1, 101, 201), {}, [(200, 200)]),
        ((1, 101), {}, []),  # two readings tell no trend
        ((1, 101, 101), {}, []),
        ((1, 50, 90), {}, []),  # fewer than one in two steps
        ((1, 3, 5), {"steps": 1}, []),  # few
        ((1, 5, 9), {"steps": 4}, []),
        ((1, 9, 17), {"steps": 8}, [(16, 16)]),
        ((1, 2, 3), {"size": 2**20}, [(2, 200)]),  # few, and large
        ((3, 2, 300), {}, []),
        ((5, 1, 101, 201), {}, [(200, 200)]),  # the last three count
    ],
)
def test_what_counts_as_growth(numbers, options, found):
    assert grown(*numbers, **options) == found


def test_the_sentence_of_a_leak_tells_a_cure():
    with pytest.warns(UserWarning, match=re.escape("Write float(value) or np.asarray(value) for what you keep")):
        fit(DeviceMemory(clock=still), Keeps(), epochs=3)
