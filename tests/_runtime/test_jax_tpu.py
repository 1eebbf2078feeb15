"""A TPU under JAX: opened once, or told why not and what to do."""

import importlib.util
from types import SimpleNamespace

import jax
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.jax import devices as tpus
from keras_tpu_ext.errors import TpuUnusableError

pytestmark = pytest.mark.runtimes("keras3_jax")


@pytest.fixture(autouse=True)
def _each_test_opens_anew():
    tpus.open_tpu.cache_clear()
    yield
    tpus.open_tpu.cache_clear()


@pytest.fixture
def tpu(monkeypatch):
    """A machine with libtpu; what JAX says is the test's."""
    tpu = SimpleNamespace(asked=[], error=None, hidden=0)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: object() if name == "libtpu" else find_spec(name, *rest)
    )
    monkeypatch.setattr(tpus, "installed_version", lambda package: "0.0.99")

    def devices(backend):
        tpu.asked.append(backend)
        if tpu.error is not None:
            raise tpu.error
        return [SimpleNamespace(platform="cpu", id=i, device_kind="TPU v5 lite") for i in range(8)]

    def hide():
        assert len(tpu.asked) == tpu.hidden  # each time before JAX is asked
        tpu.hidden += 1

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr(tpus, "hide_accelerators", hide)
    return tpu


def end(address, libtpu="0.0.99"):
    return f" (TPU address {address!r}, JAX {jax.__version__}, libtpu {libtpu}.)"


def test_all_cores_train_and_tensorflow_is_kept_off_them_before(tpu):
    opened = tpus.open_tpu("local")
    assert (opened.num_replicas, opened.device_name, opened.supports_bfloat16) == (8, "TPU v5 lite", True)
    assert opened.strategy.device_mesh.devices.size == 8
    assert tpus.open_tpu("local") is opened
    assert (tpu.asked, tpu.hidden) == (["tpu"], 1)


def test_a_tpu_that_failed_is_tried_again_when_asked_again(tpu):
    tpu.error = RuntimeError("no")
    with pytest.raises(TpuUnusableError):
        tpus.open_tpu("local")
    tpu.error = None
    assert tpus.open_tpu("local").num_replicas == 8


def test_a_tpu_over_the_network_is_out_of_reach(tpu):
    with pytest.raises(TpuUnusableError) as error:
        tpus.open_tpu("grpc://10.0.0.2:8470")
    assert str(error.value) == (
        "Keras runs on JAX here, and JAX cannot reach a TPU over the network. What to do: run on the TPU machine "
        "itself and write strategy_scope(tpu='local'), or use TensorFlow: before the first import of keras, "
        "os.environ['KERAS_BACKEND'] = 'tensorflow'." + end("grpc://10.0.0.2:8470")
    )
    assert tpu.asked == []


def test_without_libtpu_jax_is_not_even_asked(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    monkeypatch.setattr(jax, "devices", lambda backend: pytest.fail("asked, and the devices are started"))
    with pytest.raises(TpuUnusableError) as error:
        tpus.open_tpu("local")
    assert str(error.value) == (
        "This JAX was installed without libtpu, which drives the TPU. What to do: pip install 'jax[tpu]', then run "
        "again." + end("local", "not installed")
    )


HELD = (
    "Another process holds the TPU chip; only one process and one framework can.{by} What to do: end that process "
    "(another notebook, or TensorFlow in this one), then run again. After a crash the file /tmp/libtpu_lockfile may "
    "be left behind: delete it."
)
NONE = (
    "libtpu finds no TPU on this machine. What to do: check that the notebook's accelerator is a TPU and that the "
    "machine was restarted since it was chosen."
)
FORBIDDEN = (
    "JAX was told not to use TPUs. What to do: unset the environment variable JAX_PLATFORMS, or write "
    "JAX_PLATFORMS=tpu,cpu, before JAX is imported."
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("The TPU is already in use by process with pid 4711. Not attempting to load libtpu", "HELD 4711"),
        ("ABORTED: Internal error when accessing libtpu multi-process lockfile. Run rm /tmp/libtpu_lockfile", "HELD"),
        ("open(/dev/accel0): Device or resource busy", "HELD"),
        ("Unable to initialize backend 'tpu': NOT_FOUND: No jellyfish device found.", NONE),
        ("Failed to find a TPU", NONE),
        ("Unknown backend: 'tpu' requested, but no platforms that are instances of tpu are present", FORBIDDEN),
        ("Backend 'tpu' is not in the list of known backends: ['cpu']", FORBIDDEN),
    ],
)
def test_a_known_failure_is_told_with_cause_and_cure(tpu, error, expected):
    tpu.error = RuntimeError(error)
    if expected.startswith("HELD"):
        pid = expected[5:]
        expected = HELD.format(by=f" It is the process {pid}." if pid else "")
    with pytest.raises(TpuUnusableError) as told:
        tpus.open_tpu("local")
    assert str(told.value) == expected + end("local")
    assert told.value.__cause__ is tpu.error


def test_an_unknown_failure_is_told_by_its_first_line_with_a_cure(tpu):
    tpu.error = ValueError("the moon is full\nand more")
    with pytest.raises(TpuUnusableError) as told:
        tpus.open_tpu("local")
    assert str(told.value) == (
        "JAX could not start the TPU: ValueError: the moon is full. What to do: check that this is a TPU machine and "
        "that libtpu fits JAX, pip install 'jax[tpu]', or go on without it with strategy_scope(tpu=False)."
        + end("local")
    )


def test_an_interrupt_is_not_taken_for_a_failure(tpu):
    tpu.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        tpus.open_tpu("local")


def test_strategy_scope_takes_the_tpu_the_environment_shows(tpu, monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5e-8")
    scope = kte.strategy_scope(require="tpu")
    assert (scope.num_replicas, scope.hardware.kind) == (8, "tpu")
    assert tpu.asked == ["tpu"]
