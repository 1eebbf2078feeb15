"""`plan`: what it measures here, what it makes of a preflight, what it counts, and what it says."""

import dataclasses
import importlib
import json
import random
import time
import types

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext.callbacks._input_probe import ProbedInput
from keras_tpu_ext.callbacks._step_costs import Cycle, StepCosts
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.machine.tpu_table import host_vcpus
from keras_tpu_ext.preflight import _batch
from keras_tpu_ext.preflight._batch import Rate
from keras_tpu_ext.preflight._published import FILE
from keras_tpu_ext.preflight.results import Fault, MemoryUse
from keras_tpu_ext.preflight.targets import parse_target
from keras_tpu_ext.tools.plan import here, on_tpu, saves
from keras_tpu_ext.tools.plan.data import PlannedData
from keras_tpu_ext.tools.plan.report import Cost, PlanReport, Seconds
from kind_of_keras import IS_KERAS2
from preflight.reports import TIME, report

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

front = importlib.import_module("keras_tpu_ext.plan")  # kte.plan is the function
RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
INSTANT = Rate(0.0, 1.0)


def build():
    body = [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((4,)), *body, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


class Batches(_runtime.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        part = slice(16 * index, 16 * index + 16)  # the last one has 6 rows
        return X[part], Y[part]


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(here, "_SECONDS", 0.05)
    monkeypatch.setattr(_batch, "_MEASURE_SECONDS", 0.02)


def state(model):
    return [np.array(_runtime.ops.value_of(one)) for _, one in _runtime.training_state.all_variables(model)]


# What is measured here.


def test_the_model_is_as_before_to_the_bit(short):
    model = build()
    model.fit(X, Y, batch_size=16, verbose=0)
    before, history = state(model), model.history
    drawn = random.getstate(), np.random.get_state()[1].tolist()
    kte.plan(model, (X, Y), epochs=3, batch_size=16, target="cpu", validation_data=(X, Y))
    for got, expected in zip(state(model), before, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert model.history is history
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn


@pytest.mark.parametrize("options", [{}, {"loss_scale": "dynamic", "gradient_accumulation_steps": 3}])
def test_an_exact_model_is_as_before_to_the_bit(options, short):
    inputs = keras.Input((4,))
    model = kte.TPUModel(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(inputs)))
    model.compile("adam", "mse", **options)
    before = {id(one) for _, one in _runtime.training_state.all_variables(model)}, model.get_weights()
    kte.plan(model, (X, Y), epochs=1, batch_size=16, target="cpu")
    for got, expected in zip(model.get_weights(), before[1], strict=True):
        np.testing.assert_array_equal(got, expected)
    new = [
        (role, np.array(_runtime.ops.value_of(one)))
        for role, one in _runtime.training_state.all_variables(model)
        if id(one) not in before[0]
    ]
    assert [(role, value) for role, value in new if value.any()] == []


@pytest.mark.skipif(IS_KERAS2, reason="without a generator, its dropout has drawn some numbers")
@pytest.mark.gate_on("keras3_jax")
def test_it_trains_afterwards_as_if_it_had_not_been_planned(short):
    def trained(*, planned):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.build((None, 4))
        if planned:
            kte.plan(model, (X, Y), epochs=1, batch_size=16, target="cpu")
        model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    for got, expected in zip(trained(planned=True), trained(planned=False), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_model_that_is_not_built_cannot_be_given_back():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    with pytest.raises(
        ArgumentError, match=r"`model` must be built, .* Write plan\(build_model, \.\.\.\), a function"
    ):
        kte.plan(model, (X, Y), epochs=1, target="cpu")


class Sleeping(_runtime.PyDataset):
    def __init__(self, steps):
        if not IS_KERAS2:
            super().__init__()
        self.steps = steps

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        time.sleep(0.005)
        return X[:16], Y[:16]


@pytest.mark.gate_on("keras3_jax")
def test_data_that_are_slower_than_they_are_measured_for_are_measured_by_one_batch(monkeypatch):
    monkeypatch.setattr(_batch, "_MEASURE_SECONDS", 0.001)
    found = PlannedData("data", Sleeping(4), None, None).rate()
    assert 0.005 <= found.seconds < 0.5
    assert found.examples == 16


@pytest.mark.gate_on("keras3_jax")
def test_long_epochs_and_validations_are_ended_early(monkeypatch):
    monkeypatch.setattr(here, "_SECONDS", 1.6)  # on TensorFlow it takes some 40 steps to know what one waits
    began = time.perf_counter()
    steps = 60 if IS_KERAS2 else 2000  # its validations are not ended early
    found = kte.plan(build, Sleeping(2000), epochs=3, target="cpu", validation_data=Sleeping(steps))
    took = time.perf_counter() - began
    assert took < 20 < 3 * 2000 * 0.005
    assert 3 * 2000 * 0.005 < found.buckets["training"] + found.buckets["input"] < 3 * 2000 * 0.03
    assert 3 * steps * 0.005 < found.buckets["validation"] < 3 * steps * 0.03


def part(seconds, epochs, cycles, *, probes=(), **done):
    made = here.Part(None, 100, 50, 1.0)
    made.epochs = epochs
    made._done.update(done)
    costs = StepCosts([Cycle(1, *each) for each in cycles])
    found = types.SimpleNamespace(found=[ProbedInput(0.1, None, cost, ()) for cost in probes])
    made._ledger = types.SimpleNamespace(
        seconds=lambda: dict(seconds), costs=costs, compute_seconds=None, probes=found
    )
    return made.of_epoch()


def test_whole_epochs_count_as_they_are():
    found = part({"training": 8.0, "input": 4.0, "idle": 2.0, "validation": 6.0, "compile": 9.0}, 2, [])
    assert found == {"training": 4.0, "input": 2.0, "idle": 1.0, "validation": 3.0, "compile": 9.0}


def test_what_is_left_of_an_epoch_counts_by_its_steady_steps():
    seconds = {"training": 0.5, "input": 7.0, "validation": 1.0}  # 5 s of it to fill a shuffle buffer
    found = part(seconds, 1, [(0.02, 0.1, 0.0, 0.001, 0.0)] * 4, training=20, validation=10)
    assert found["training"] == pytest.approx(0.5 + 80 * 0.02)
    assert found["input"] == pytest.approx(7.0 + 80 * 0.1)
    assert found["idle"] == pytest.approx(80 * 0.001)
    assert found["validation"] == pytest.approx(5.0)


def test_probes_of_the_input_are_no_part_of_it():
    assert part({"input": 4.0}, 2, [], probes=(0.5, 1.5))["input"] == 1.0


def test_without_steady_steps_it_counts_by_all():
    assert part({"training": 0.5}, 1, [], training=20)["training"] == pytest.approx(2.5)


def test_a_last_batch_of_another_shape_may_be_compiled_too():
    costs = here._costs(PlannedData("data", (X, Y), 16, None), [{}, {"training": 2.0}, {"training": 3.0}], 7.0, 10)
    found = {cost.bucket: cost.seconds for cost in costs}
    assert found["compile"] == Seconds(7.0, 7.0, 14.0).widened(0.1)
    assert found["training"] == Seconds(25.0, 20.0, 30.0).widened(0.1)


def test_every_bucket_is_measured_here(short):
    found = kte.plan(build, Batches(), epochs=3, target="cpu", validation_data=(X, Y), callbacks=[checkpoint()])
    assert found.ok
    assert {"training", "compile", "startup", "validation", "checkpoint"} <= {
        name for name, seconds in found.buckets.items() if seconds > 0
    }
    assert (found.steps_per_epoch, found.batch_size, found.epochs) == (5, 16, 3)
    assert found.seconds == pytest.approx(sum(found.buckets.values()))
    assert found.seconds_range[0] < found.seconds < found.seconds_range[1]
    assert [cost.seconds.middle for cost in found.costs] == sorted(
        (cost.seconds.middle for cost in found.costs), reverse=True
    )
    json.dumps(found.to_dict(), allow_nan=False)


# What is made of a preflight.


@pytest.fixture
def answered(monkeypatch):
    """Let preflight answer with one report, and the input come at one rate."""

    def with_report(rate=INSTANT, **changes):
        monkeypatch.setattr(front, "preflight", lambda *args, **options: report(**changes))
        monkeypatch.setattr(PlannedData, "rate", lambda self: rate)

    return with_report


def planned(**options):
    x, y = np.zeros((1024, 4), "float32"), np.zeros((1024, 1), "float32")
    return kte.plan(build, (x, y), batch_size=64, **{"epochs": 100, "target": "v5e-8", **options})


def test_a_step_and_its_range_are_those_of_preflight(answered):
    answered(time=dataclasses.replace(TIME, seconds_range=(0.009, 0.013)), compile_seconds=60.0)
    found = planned()
    (training,) = (cost for cost in found.costs if cost.bucket == "training")
    assert training.seconds == Seconds(16.0, pytest.approx(11.2), pytest.approx(20.8))  # 1,600 steps of 10 ms
    assert found.buckets["compile"] == 60.0
    assert found.costs[0].bucket == "compile"  # the largest comes first
    assert found.delivered == 1.0


def test_the_line_for_training_is_a_larger_batch_where_one_fits(answered):
    answered(largest_per_replica_batch=4000, time=dataclasses.replace(TIME, bound="memory"))
    (training,) = (cost for cost in planned().costs if cost.bucket == "training")
    assert training.write == "batch_size=2048; up to 32,000 fit into memory"  # of 1,024, preflight's


def test_a_generation_without_published_steps_has_the_error_of_all(answered):
    answered()
    rows = json.loads(FILE.read_text())["rows"]
    ratios = [row["measured"] / row["estimated"][""] for row in rows if row["kind"] == "training step"]
    (training,) = (cost for cost in planned().costs if cost.bucket == "training")
    error = max(abs(ratio - 1) for ratio in ratios)
    assert error > 0.05
    assert training.seconds == Seconds(16.0, *(pytest.approx(16.0 * (1 + sign * error)) for sign in (-1, 1)))


def test_the_input_counts_by_what_it_is_slower_than_the_step(answered):
    answered(Rate(0.020, 1.0))
    found = planned()
    assert found.buckets["input"] == pytest.approx(1600 * 0.010)
    assert found.delivered == pytest.approx(0.5)
    assert "the host delivers 0.5 of what the chips eat" in " ".join(str(found).split())


def test_validation_costs_the_forward_pass_of_its_layers(answered):
    answered()
    x, y = np.zeros((640, 4), "float32"), np.zeros((640, 1), "float32")
    forward = (0.006 - 0.0045 + 0.003) / 0.010  # of preflight.reports.LAYERS, without the optimizer
    found = planned(validation_data=(x, y))
    assert found.buckets["validation"] == pytest.approx(100 * 10 * 0.010 * forward)


def test_a_save_costs_its_bytes(answered, monkeypatch):
    memory = MemoryUse(1, 2, by_role={"weights": 3_000_000, "optimizer": 6_000_000})
    answered(memory=memory)
    monkeypatch.setattr(saves, "written", lambda size: Seconds.exactly(size / 1e6))
    assert planned(callbacks=[checkpoint()]).buckets["checkpoint"] == pytest.approx(100 * 9.0)
    only_weights = keras.callbacks.ModelCheckpoint("a.weights.h5", save_weights_only=True, save_freq=16 * 50)
    assert planned(callbacks=[only_weights]).buckets["checkpoint"] == pytest.approx(2 * 3.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"time": None, "memory": None, "fault": Fault("no kernel", "conv1")}, "layer 'conv1': no kernel"),
        ({"time": None, "memory": MemoryUse(3, 2)}, "It does not fit into memory"),
    ],
)
def test_what_cannot_be_trained_is_not_ok(changes, problem, answered):
    answered(**changes)
    found = planned()
    assert not found.ok
    assert (found.seconds, found.seconds_range, found.buckets) == (None, None, {})
    assert f"cannot be planned for v5e-8: {problem}" in " ".join(str(found).split())
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1.0, (0.5, 1 / 224, 0.5)), (1.9, (1 / 224, 1 / 224, 0.5))],
)
def test_only_a_pipeline_on_several_cores_is_faster_on_more(cores, expected):
    found = on_tpu.feeding_on(parse_target("v5e-8"), Rate(0.5, cores), cores=2)
    assert found.seconds == Seconds(*map(pytest.approx, expected))


def test_a_host_that_is_not_known_is_said(answered):
    found = on_tpu.feeding_on(parse_target("7x-8"), Rate(0.5, 1.9), cores=2)
    assert found.seconds == Seconds.exactly(0.5)
    assert "as fast on 7x-8, whose host is not known" in found.how


@pytest.mark.parametrize(
    ("generation", "chips", "vcpus"),
    [
        ("v5e", 8, 224),
        ("v5e", 1, 24),
        ("v5e", 16, 448),
        ("v3", 4, 96),
        ("v6e", 1, 44),
        ("v6e", 8, 180),
        ("7x", 4, None),
    ],
)
def test_the_vcpus_of_a_slice(generation, chips, vcpus):
    assert host_vcpus(generation, chips) == vcpus


# What it counts.


def checkpoint(**options):
    return keras.callbacks.ModelCheckpoint("never_written.keras", **options)


def test_saves_are_counted_by_their_frequency():
    callbacks = [checkpoint(), checkpoint(save_best_only=True), checkpoint(save_freq=30)]
    callbacks += [kte.callbacks.AutoResume("folder", every_s=100), keras.callbacks.CSVLogger("log.csv")]
    found, others = saves.find_saves(callbacks, 10, 60, 1000.0)
    assert [save.times for save in found] == [
        Seconds(10, 10, 10),
        Seconds(10, 1, 10),
        Seconds(20, 20, 20),
        Seconds(1, 1, 21.0),
    ]
    assert others == ["CSVLogger"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"epochs": 0}, r"plan: `epochs` must be an integer of at least 1; got 0\. Write epochs=10"),
        ({"hours": -1}, r"plan: `hours` must be a number of hours above 0; got -1\. Write hours=9"),
        ({"data": [1, 2]}, r"plan: `data` must be a tf.data.Dataset, .*; got list\. Write data=\(x, y\)"),
        ({"batch_size": 30}, r"`batch_size` must be a multiple of the 8 replicas of v5e-8; got 30\. Write .*=24"),
        ({"target": "v9-8"}, r"There is no TPU slice 'v9-8'"),
        (
            {"model": lambda: 3, "target": "cpu"},
            r"`model` must be a compiled Keras model, .*; got int\. Write model.c",
        ),
    ],
)
def test_wrong_arguments_are_told(change, text):
    arguments = {"model": build, "data": (X, Y), "epochs": 1} | change
    model, data = arguments.pop("model"), arguments.pop("data")
    with pytest.raises(ArgumentError, match=text):
        kte.plan(model, data, **arguments)


class Endless:
    """A dataset whose length nobody knows, as `tf.data` tells it."""

    element_spec = None

    def cardinality(self):
        return -2

    def __iter__(self):
        while True:
            yield X[:16], Y[:16]


def test_steps_must_be_given_for_data_of_unknown_length():
    with pytest.raises(ArgumentError, match=r"`data` must be of a known length; .* Write steps_per_epoch=1000"):
        PlannedData("data", Endless(), None, None)
    found = PlannedData("data", Endless(), None, 7)
    assert (found.steps, found.batch_size, found.arguments()["steps_per_epoch"]) == (7, 16, 7)
    with pytest.raises(ArgumentError, match=r"Write validation_data=dataset\.take\(100\)"):
        PlannedData("validation_data", Endless(), None, None)


@pytest.mark.parametrize(("data", "batch"), [((X, Y), 16), (Batches(), None)])
def test_a_shorter_last_batch_is_another_program(data, batch):
    assert PlannedData("data", data, batch, None).shapes() == {(16,), (6,)}


# What it says.

COSTS = (
    Cost("training", Seconds(10_000, 8_000, 13_000), "1,000 steps of 10 s", "batch_size=2048"),
    Cost("compile", Seconds(720, 720, 1_440), "as here"),
    Cost("input", Seconds(680, 0, 700), "slow", "dataset.prefetch(2)"),
)
REPORT = PlanReport("net", "v5e-8", 10, 100, 1024, COSTS, 9.0, 2.0, delivered=0.7, notes=("Not counted: the rest.",))


def test_the_first_line_says_how_long_it_takes_and_of_what():
    assert " ".join(str(REPORT).split("\n\n")[0].split()) == (
        "net on v5e-8, 10 epochs of 100 steps: 3 h 10 min (2 h 25 min to 4 h 12 min) of your 9 h 00 min (35%), "
        "$6.33; 12 min 00 s of it compiling; the host delivers 0.7 of what the chips eat."
    )
    assert max(map(len, str(REPORT).splitlines())) <= 80
    assert "Write: batch_size=2048" in str(REPORT)
    assert "<pre" in REPORT._repr_html_()


def test_it_is_ok_within_the_quota_by_the_middle():
    assert REPORT.ok
    assert not dataclasses.replace(REPORT, hours=3.0).ok
    assert dataclasses.replace(REPORT, hours=None).ok
    assert not dataclasses.replace(REPORT, problem="It does not fit").ok
