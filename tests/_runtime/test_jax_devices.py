"""JAX's devices: looking starts none of them, a rehearsal makes virtual ones, and too late is told."""

import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import jax
import keras
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.jax import devices

pytestmark = pytest.mark.runtimes("keras3_jax")

ROOT = Path(kte.__file__).parents[1]


def fresh(program):
    """Run a program in a process of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


# -- looking --------------------------------------------------------------------------------------------------


def test_importing_looking_and_counting_start_no_device_and_a_rehearsal_follows():
    lines = fresh("""
        import jax, keras
        import keras_tpu_ext as kte
        from keras_tpu_ext import _runtime
        from jax._src import xla_bridge
        kte.hardware.detect()
        print(_runtime.devices.count_gpus(), _runtime.devices.num_workers(), xla_bridge.backends_are_initialized())
        with kte.strategy_scope(require="cpu", replicas=5) as scope:
            variable = keras.Variable([1.0])
        print(scope.num_replicas, jax.local_device_count("cpu"), len(variable.value.sharding.device_set))
    """)
    assert lines == ["0 1 False", "5 5 5"]


@pytest.fixture
def machine(monkeypatch):
    """A machine whose device files and installed packages the test tells; JAX must not be asked unless it may."""
    machine = SimpleNamespace(files=[], packages=[], asked=[])
    monkeypatch.setattr(devices.glob, "glob", lambda pattern: [f for f in machine.files if f.startswith(pattern[:8])])
    monkeypatch.setattr(devices, "installed_version", lambda package: "1" if package in machine.packages else None)

    def local_device_count(backend):
        machine.asked.append(backend)
        if machine.gpus is None:
            raise RuntimeError("Unknown backend: 'gpu'")
        return machine.gpus

    monkeypatch.setattr(jax, "local_device_count", local_device_count)
    return machine


@pytest.mark.parametrize(
    ("files", "packages"), [([], ["jax-cuda12-plugin"]), (["/dev/nvidia0"], []), ([], []), (["/dev/kfd"], ["jax"])]
)
def test_without_a_gpu_or_without_its_plugin_jax_is_not_asked(machine, files, packages):
    machine.files, machine.packages = files, packages
    assert _runtime.devices.count_gpus() == 0
    assert machine.asked == []


@pytest.mark.parametrize("gpus", [4, None])
def test_with_both_jax_is_asked_and_its_word_for_none_is_none(machine, gpus):
    machine.files, machine.packages, machine.gpus = ["/dev/nvidia0"], ["jax-cuda13-plugin"], gpus
    assert _runtime.devices.count_gpus() == (gpus or 0)
    assert machine.asked == ["gpu"]


# -- GPUs -----------------------------------------------------------------------------------------------------


class Gpu(SimpleNamespace):
    platform = "cpu"  # so that Keras can make a mesh of it


@pytest.mark.parametrize(
    ("capability", "bfloat16"),
    [("8.0", True), ("9.0", True), ("7.5", False), ("10.0", True), ("gfx90a", None), (None, None)],
)
def test_gpus_tell_their_name_and_whether_they_have_bfloat16(monkeypatch, capability, bfloat16):
    gpus = [Gpu(id=i, device_kind="NVIDIA Test", compute_capability=capability) for i in range(3)]
    monkeypatch.setattr(jax, "local_devices", lambda backend: gpus)
    devices.open_gpus.cache_clear()
    try:
        opened = devices.open_gpus(2)
    finally:
        devices.open_gpus.cache_clear()
    assert (opened.num_replicas, opened.device_name, opened.supports_bfloat16) == (2, "NVIDIA Test", bfloat16)
    assert opened.strategy.device_mesh.devices.ravel().tolist() == ["cpu:0", "cpu:1"]


# -- the rehearsal --------------------------------------------------------------------------------------------


def test_a_rehearsal_is_a_data_parallel_over_that_many_devices(scope8):
    assert isinstance(scope8.strategy, keras.distribution.DataParallel)
    assert scope8.strategy.device_mesh.devices.size == 8
    assert scope8.num_replicas == 8
    assert kte.strategy_scope(require="cpu", replicas=3).strategy.device_mesh.devices.size == 3


@pytest.mark.exhaustive
def test_more_devices_that_were_asked_for_elsewhere_stay():
    lines = fresh("""
        import jax
        jax.config.update("jax_num_cpu_devices", 6)
        import keras_tpu_ext as kte
        print(kte.strategy_scope(require="cpu", replicas=2).num_replicas, jax.local_device_count("cpu"))
    """)
    assert lines == ["2 6"]


TOO_LATE = (
    "strategy_scope needs 4 virtual CPU devices, but JAX has already started its devices with 1 of them; they cannot "
    "be added afterwards. An earlier call came too early{what}. What to do: open the scope before the first line "
    "that makes an array, a model or a metric; in a notebook, restart the kernel first."
)


@pytest.mark.parametrize(
    ("early", "what"),
    [
        (
            "kept = keras.layers.Dense(1, use_bias=False, name='early'); kept.build((None, 2))",
            ": it made the variable early/kernel",
        ),
        pytest.param("kept = jnp.zeros((2, 3))", ": it made an array float32[2, 3]", marks=pytest.mark.exhaustive),
        pytest.param(
            "jax.devices()", " (one that made an array or listed the devices, say)", marks=pytest.mark.exhaustive
        ),
    ],
    ids=["a layer", "an array", "a look"],
)
def test_a_rehearsal_after_jax_has_started_says_what_came_too_early(early, what):
    lines = fresh(f"""
        import jax, jax.numpy as jnp, keras
        import keras_tpu_ext as kte
        {early}
        try:
            kte.strategy_scope(replicas=4)
        except kte.errors.ScopeError as error:
            print(error)
    """)
    assert lines == [TOO_LATE.format(what=what)]


# -- several processes ----------------------------------------------------------------------------------------


def test_one_process_is_one_worker_and_the_chief():
    assert _runtime.devices.num_workers() == 1
    assert devices.is_chief()


@pytest.mark.parametrize("index", [0, 1])
def test_workers_are_those_that_jax_has_joined(monkeypatch, index):
    monkeypatch.setattr(jax._src.distributed.global_state, "client", object())
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(jax, "process_index", lambda: index)
    assert _runtime.devices.num_workers() == 3
    assert devices.is_chief() is (index == 0)
