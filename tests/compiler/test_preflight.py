"""What the real TPU compiler makes of small models, on every runtime; no TPU is there."""

import json
import subprocess

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import PreflightError

BATCH, SIDE, FILTERS, CLASSES = 1024, 16, 128, 10


def network(policy="mixed_bfloat16"):
    inputs = keras.Input((SIDE, SIDE, 64))
    x = keras.layers.Conv2D(FILTERS, 3, padding="same", use_bias=False, name="stem", dtype=policy)(inputs)
    x = keras.layers.BatchNormalization(name="norm", dtype=policy)(x)
    x = keras.layers.Activation("relu", name="relu", dtype=policy)(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool", dtype=policy)(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="head", dtype="float32")(x), name="small")


def compiled(model, optimizer="sgd"):
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def batch(examples=BATCH):
    return np.zeros((examples, SIDE, SIDE, 64), "float32"), np.zeros((examples,), "int32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def of_exact(folder):
    keras.backend.clear_session()
    model = compiled(kte.TPUModel.from_model(network()))
    return kte.preflight(model, batch(), "v5e-8", cache_dir=folder, progress=False)


@pytest.fixture(scope="module")
def of_stock(folder):
    return kte.preflight(compiled(network()), batch(), "v5e-8", cache_dir=folder, progress=False)


@pytest.mark.gate_on("keras3_jax", "keras3_tf")
def test_it_compiles_and_fits(of_exact):
    assert of_exact.ok, str(of_exact)
    assert (of_exact.devices, of_exact.per_replica_batch, of_exact.global_batch) == (8, BATCH // 8, BATCH)
    assert 0 < of_exact.memory.needed < of_exact.memory.available
    assert of_exact.host_bytes == BATCH * (SIDE * SIDE * 64 + 1) * 4


@pytest.mark.gate_on("keras3_jax", "keras3_tf")
def test_flops_are_those_of_the_layers(of_exact):
    each = BATCH // 8
    # The first layer needs no gradient of its input; at the border a kernel of three meets two pixels.
    pairs = (3 * SIDE - 2) ** 2
    stem = 2 * 2 * each * pairs * 64 * FILTERS
    head = 3 * 2 * each * FILTERS * CLASSES
    by_layer = {layer.layer: layer.flops for layer in of_exact.layers}
    assert by_layer["stem"] == pytest.approx(stem, rel=0.01)
    assert of_exact.time.flops == pytest.approx(stem + head, rel=0.02)


@pytest.mark.gate_on("keras3_jax", "keras3_tf")
def test_time_is_told_by_layer(of_exact):
    names = {layer.layer for layer in of_exact.layers}
    assert {"stem", "norm", "(optimizer)"} <= names
    assert sum(layer.seconds for layer in of_exact.layers) == pytest.approx(of_exact.time.seconds)
    assert 0.5 < of_exact.time.by_compiler <= 1
    stem = next(layer for layer in of_exact.layers if layer.layer == "stem")
    assert 0 < stem.backward_seconds < stem.seconds
    assert of_exact.samples_per_sec == pytest.approx(BATCH / of_exact.step_seconds)


@pytest.mark.gate_on("keras3_jax")
def test_devices_exchange_at_least_the_gradients(of_exact, of_stock):
    weights = sum(int(np.prod(weight.shape)) for weight in network().trainable_weights)
    for report in (of_exact, of_stock):
        assert report.collectives.count >= 1
        assert report.collectives.bytes >= 2 * weights  # in bfloat16, where the compiler may
    assert of_exact.collectives.count <= of_stock.collectives.count


@pytest.mark.gate_on("keras3_jax")
def test_the_exact_step_costs_no_more_than_kerass(of_exact, of_stock):
    assert of_exact.step_seconds <= 1.02 * of_stock.step_seconds
    assert of_exact.memory.needed <= 1.02 * of_stock.memory.needed


@pytest.mark.gate_on("keras3_jax", "keras3_tf")
def test_what_was_compiled_is_kept(of_exact, folder, monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("it was compiled before")

    monkeypatch.setattr(subprocess, "Popen", fails)
    keras.backend.clear_session()  # or the names of its parts are others
    model = compiled(kte.TPUModel.from_model(network()))
    again = kte.preflight(model, batch(), "v5e-8", cache_dir=folder, progress=False)
    assert again.time == of_exact.time


@pytest.mark.gate_on("keras3_tf")
def test_the_model_trains_as_if_nothing_had_been(folder):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, SIDE, SIDE, 64)).astype("float32"), rng.integers(0, CLASSES, 16)
    histories = []
    for asks in (False, True):
        keras.utils.set_random_seed(1)
        model = compiled(network("float32"), "adam")
        if asks:
            kte.preflight(model, (x, y), "v5e-8", cache_dir=folder, progress=False)
        histories.append(model.fit(x, y, batch_size=8, shuffle=False, verbose=0, epochs=2).history["loss"])
    np.testing.assert_array_equal(*histories)


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.exhaustive
def test_a_batch_that_does_not_fit_is_told_and_the_largest_is_found(tmp_path):
    inputs = keras.Input((1024,))
    x = keras.layers.Dense(2**15, activation="tanh", use_bias=False)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(x), name="wide")
    model.compile("sgd", "mse")
    data = np.zeros((8, 1024), "float32"), np.zeros((8, 1), "float32")
    report = kte.preflight(model, data, "v2-8", per_replica_batch=2**17, cache_dir=tmp_path, progress=False)
    assert not report.ok
    assert report.fault is None
    assert not report.memory.fits
    assert "NOT FIT" in str(report)
    found = kte.preflight(
        model, data, "v2-8", per_replica_batch=2**14, find_largest_batch=True, cache_dir=tmp_path, progress=False
    )
    largest = found.largest_per_replica_batch
    assert found.largest_was_compiled
    assert 2**14 <= largest < 2**17
    assert kte.preflight(model, data, "v2-8", per_replica_batch=largest, cache_dir=tmp_path, progress=False).ok


@pytest.mark.gate_on("keras3_jax")
def test_a_report_is_plain_data_and_a_picture(of_exact, tmp_path):
    assert json.loads(json.dumps(of_exact.to_dict()))["ok"] is True
    of_exact.plot(tmp_path / "preflight.png")
    assert (tmp_path / "preflight.png").stat().st_size > 10_000


@pytest.mark.gate_on("keras3_jax")  # whose step the program is, is nothing to the compiler
@pytest.mark.parametrize(
    "target",
    [
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("v2-8", "v4-8", "v5p-8", "v5e-1", "v5e-32")),
        *("v3-8", "v6e-8", "7x-8"),
    ],
)
def test_every_generation_has_a_compiler(target, tmp_path):
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.zeros((32, 256), "float32"), np.zeros((32, 1), "float32")
    report = kte.preflight(model, data, target, per_replica_batch=128, cache_dir=tmp_path, progress=False)
    assert report.ok, str(report)
    assert report.target == target


@pytest.mark.gate_on("keras3_jax")
def test_what_a_sparse_core_takes_over_on_7x_is_counted(tmp_path):
    """The gradients of a large embedding are summed by a SparseCore."""
    inputs = keras.Input((64,), dtype="int32")
    hidden = keras.layers.Permute((2, 1))(keras.layers.Embedding(30_000, 256)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(128, activation="relu")(hidden)))
    model.compile("adam", "mse")
    data = np.zeros((512, 64), "int32"), np.zeros((512, 256, 1), "float32")
    report = kte.preflight(model, data, "7x-8", per_replica_batch=64, cache_dir=tmp_path, progress=False)
    assert report.ok, str(report)
    assert report.time.corrections == ("copies", "collectives")
    gradient = 4 * 30_000 * 256
    assert report.collectives.bytes > gradient
    plain = kte.preflight(
        model, data, "7x-8", per_replica_batch=64, cache_dir=tmp_path, progress=False, corrections=False
    )
    assert (plain.time.corrections, plain.step_seconds != report.step_seconds) == ((), True)


def test_a_compiler_that_takes_too_long_is_ended(tmp_path):
    with pytest.raises(
        PreflightError, match=r"was not done for v5e-8 after 0\.3 s\. Give it more time, timeout_s=0\.6"
    ):
        kte.preflight(compiled(network()), batch(), timeout_s=0.3, cache_dir=False, progress=False)
