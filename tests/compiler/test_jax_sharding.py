"""What the real TPU compiler makes of sharded models; no TPU is there."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.hardware import TPU_GENERATIONS, Hardware
from keras_tpu_ext.preflight.api import fastest_mesh

pytestmark = pytest.mark.runtimes("keras3_jax", reason="models are sharded on JAX")

WIDTH, HIDDEN, EXAMPLES = 512, 4096, 64


def network():
    layers = [keras.layers.Dense(HIDDEN, "relu", name="up"), keras.layers.Dense(WIDTH, name="down")]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers], name="wide")
    model.compile("adam", "mse")
    return model


def batch(examples=EXAMPLES):
    return np.zeros((examples, WIDTH), "float32"), np.zeros((examples, WIDTH), "float32")


@pytest.fixture(scope="module")
def of_both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    mesh = {"data": 2, "model": 4}
    return kte.preflight(network, batch(), "v5e-8", shard="fsdp", mesh=mesh, cache_dir=folder, progress=False)


def test_a_device_has_its_part_of_weights_and_optimizer(of_both):
    assert of_both.ok
    assert (of_both.num_replicas, of_both.per_replica_batch, of_both.mesh) == (2, 32, {"data": 2, "model": 4})
    weights = 4 * (2 * WIDTH * HIDDEN / 8 + WIDTH + HIDDEN)  # biases are whole
    roles = of_both.memory.by_role
    assert roles["weights"] == weights
    assert roles["optimizer"] == pytest.approx(2 * weights, rel=0.001)
    assert sum(roles[name] for name in ("weights", "optimizer", "batch and other")) == of_both.memory.arguments
    assert roles["gradients"] + roles["activations"] == of_both.memory.temporaries
    assert of_both.layout.ok


def test_flops_are_shared_by_all_devices(of_both):
    """Forward, the gradients of both kernels, and that of the hidden layer."""
    assert of_both.time.flops == pytest.approx(5 * 2 * EXAMPLES * WIDTH * HIDDEN / 8, rel=0.05)


def test_collectives_are_told_by_axis(of_both):
    axes = {axis for kind in of_both.collectives.by_kind for axis in kind.axes}
    assert axes == {"data", "model"}
    text = str(of_both)
    assert "mesh of data 2 x model 4), batch of 64, 32 a replica: compiles and fits" in text
    assert "along data" in text
    assert of_both.left_out[0].split(",")[0] in text


@pytest.mark.exhaustive
def test_a_model_and_a_function_that_makes_it_have_one_answer(tmp_path):
    with kte.strategy_scope(require="cpu"):
        model = network()
    mesh = {"data": 4, "model": 2}
    of_model, of_function = (
        kte.preflight(one, batch(), "v5e-8", shard="fsdp", mesh=mesh, cache_dir=tmp_path, progress=False)
        for one in (model, network)
    )
    assert of_model.memory.needed == of_function.memory.needed
    assert of_model.step_seconds == of_function.step_seconds


@pytest.mark.exhaustive
def test_the_fastest_mesh_is_that_of_the_ranking():
    hardware = Hardware("tpu", 8, "TPU v5e-8", TPU_GENERATIONS["v5e"])
    with kte.strategy_scope(require="cpu"):
        model = network()
    report = kte.preflight(network, batch(), "v5e-8", shard="auto", progress=False)
    times = [candidate.step_seconds for candidate in report.candidates]
    assert len(times) == 5
    assert times == sorted(times)
    assert fastest_mesh(hardware, model, batch()) == (report.candidates[0].mesh or {})


@pytest.mark.exhaustive
def test_a_pod_of_many_hosts():
    report = kte.preflight(network, batch(512), "v5e-256", shard="fsdp", progress=False)
    assert report.ok
    assert report.mesh == {"data": 256}
    assert report.memory.by_role["weights"] < 4 * (2 * WIDTH * HIDDEN / 256 + WIDTH + HIDDEN) + 1


def test_what_is_no_tpu_is_not_asked_about():
    assert fastest_mesh(Hardware("cpu", 8, "CPU"), None, None) is None
