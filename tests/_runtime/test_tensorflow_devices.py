"""How TensorFlow's devices are opened, with a fake resolver that writes down what is called, in order."""

import gc
import re
import socket
import threading
import time

import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.tensorflow import devices
from keras_tpu_ext.errors import HardwareNotFoundError, KteError, ScopeError, TpuUnusableError

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")


class FakeStrategy:
    num_replicas_in_sync = 8

    def __init__(self, resolver):
        self.resolver = resolver


class FakeTpu:
    """Stands in for TensorFlow's TPU functions; `fails` raises at the step of that name."""

    def __init__(self):
        self.calls = []
        self.knocked = []
        self.fails = {}
        self.slow = 0.0

    def _call(self, step, argument, result=None):
        self.calls.append((step, argument))
        time.sleep(self.slow)
        if step in self.fails:
            raise self.fails[step]
        return result

    def resolve(self, *, tpu):
        return self._call("resolver", tpu, result=f"resolver of {tpu}")

    def connect(self, resolver):
        self._call("connect", resolver)

    def knock(self, place, timeout):
        self.knocked.append(place)
        return socket.socket()

    def initialize(self, resolver):
        self._call("initialize", resolver)

    def strategy(self, resolver):
        return self._call("strategy", resolver, result=FakeStrategy(resolver))

    @property
    def steps(self):
        return [step for step, _ in self.calls]


@pytest.fixture(autouse=True)
def _each_test_opens_anew():
    yield
    devices.open_tpu.cache_clear()
    devices.open_gpus.cache_clear()


@pytest.fixture
def fake_tpu(monkeypatch):
    fake = FakeTpu()
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", fake.resolve)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", fake.connect)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fake.initialize)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", fake.strategy)
    monkeypatch.setattr(devices, "has_tpu_kernels", lambda: True)
    monkeypatch.setattr(socket, "create_connection", fake.knock)
    devices.open_tpu.cache_clear()
    return fake


# TPUs


def test_a_local_tpu_is_not_connected_to(fake_tpu):
    opened = devices.open_tpu("local")
    resolver = "resolver of local"
    assert fake_tpu.calls == [("resolver", "local"), ("initialize", resolver), ("strategy", resolver)]
    assert opened.strategy.resolver == resolver
    assert (opened.num_replicas, opened.supports_bfloat16) == (8, True)


@pytest.mark.parametrize("address", ["my-tpu", "grpc://10.0.0.2:8470", "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470"])
def test_a_remote_tpu_is_connected_to_first_and_its_address_taken_as_it_is(fake_tpu, address):
    devices.open_tpu(address)
    assert fake_tpu.calls[0] == ("resolver", address)
    assert fake_tpu.steps == ["resolver", "connect", "initialize", "strategy"]
    assert {argument for _, argument in fake_tpu.calls[1:]} == {f"resolver of {address}"}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("grpc://10.0.0.2:8470", [("10.0.0.2", 8470)]),
        ("grpc://10.0.0.2:8470,grpc://tpu-1:8471", [("10.0.0.2", 8470), ("tpu-1", 8471)]),
        ("grpc://[::1]:8470", [("::1", 8470)]),
        ("grpc://10.0.0.2", []),
        ("my-tpu", []),
        ("local", []),
    ],
)
def test_an_address_is_knocked_at_before_it_is_connected_to(fake_tpu, address, expected):
    devices.open_tpu(address)
    assert fake_tpu.knocked == expected


def test_an_address_where_no_one_listens_is_told_at_once_and_starts_nothing(fake_tpu, monkeypatch):
    monkeypatch.undo()  # the real functions, which would wait for ever
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", fake_tpu.connect)
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TpuUnusableError) as caught:
            devices.open_tpu(address)
    assert str(caught.value).startswith(NO_ANSWER)
    assert repr(address) in str(caught.value)
    assert fake_tpu.steps == []


def test_a_tpu_is_initialised_once_in_a_process(fake_tpu):
    assert devices.open_tpu("local") is devices.open_tpu("local")
    assert fake_tpu.steps.count("initialize") == 1


def test_a_tpu_is_initialised_once_when_threads_ask_at_once(fake_tpu):
    fake_tpu.slow = 0.02
    opened = []
    threads = [threading.Thread(target=lambda: opened.append(devices.open_tpu("local"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake_tpu.steps.count("initialize") == 1
    assert len(opened) == 4
    assert all(one is opened[0] for one in opened)


def test_a_tpu_that_failed_is_tried_again_when_asked_again(fake_tpu):
    fake_tpu.fails = {"initialize": RuntimeError("Deadline Exceeded")}
    with pytest.raises(TpuUnusableError):
        devices.open_tpu("grpc://10.0.0.2:8470")
    fake_tpu.fails = {}
    assert devices.open_tpu("grpc://10.0.0.2:8470").num_replicas == 8


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({"TPU_NAME": "local"}, "local"),
        ({"TPU_NAME": "my-tpu"}, "my-tpu"),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"COLAB_TPU_ADDR": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"TPU_GRPC_URL": "grpc://10.0.0.3:8470"}, "grpc://10.0.0.3:8470"),
        ({"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.4:8470"}, "grpc://10.0.0.4:8470"),
        ({"TPU_ACCELERATOR_TYPE": "v3-8"}, "local"),
        ({"TPU_WORKER_ID": "0"}, "local"),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_NAME": "my-tpu"}, "my-tpu"),
    ],
)
def test_strategy_scope_takes_the_tpu_the_environment_shows(fake_tpu, monkeypatch, variables, address):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    first, again = kte.strategy_scope(), kte.strategy_scope(require="tpu")
    assert fake_tpu.calls[0] == ("resolver", address)
    assert ("connect" in fake_tpu.steps) is (address != "local")
    assert fake_tpu.steps.count("initialize") == 1
    assert first.strategy is again.strategy
    assert (first.hardware.kind, first.num_replicas) == ("tpu", 8)


@pytest.fixture(autouse=True)
def _no_tpu_in_the_environment(monkeypatch):
    for name in (
        "TPU_NAME",
        "COLAB_TPU_ADDR",
        "TPU_GRPC_URL",
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
        "TPU_ACCELERATOR_TYPE",
        "TPU_WORKER_ID",
    ):
        monkeypatch.delenv(name, raising=False)


NO_KERNELS = (
    "This TensorFlow was built without TPU kernels (the plain `tensorflow` and `tensorflow-cpu` wheels are). "
    "What to do: install a pair that fits, pip install tensorflow-tpu 'libtpu<=0.0.31', in a fresh environment."
)
HELD = "Another process holds the TPU chip; only one process and one framework can. What to do: end that process"
NO_NAME = "The TPU's name could not be looked up from this machine. What to do: on a TPU VM write strategy_scope(tpu="
NO_ANSWER = "The TPU's address does not answer. What to do: check that the TPU is running"


@pytest.mark.parametrize(
    ("step", "error", "expected"),
    [
        (
            "initialize",
            tf.errors.InvalidArgumentError(None, None, "ConfigureDistributedTPU: there are no registered kernels"),
            NO_KERNELS,
        ),
        (
            "initialize",
            tf.errors.NotFoundError(
                None, None, "No OpKernel was registered to support Op\n'ConfigureDistributedTPU'"
            ),
            NO_KERNELS,
        ),
        (
            "initialize",
            RuntimeError("ConfigureDistributedTpuOp_DoWork not available in this library"),
            NO_KERNELS,
        ),
        ("initialize", RuntimeError("The TPU is already in use by process with pid 42."), HELD),
        ("initialize", RuntimeError("open(/dev/vfio/0): Device or resource busy"), HELD),
        ("initialize", RuntimeError("ABORTED: Internal error when accessing libtpu multi-process lockfile."), HELD),
        (
            "resolver",
            ImportError("googleapiclient and oauth2client must be installed before using the TPU cluster resolver"),
            NO_NAME,
        ),
        ("resolver", ValueError("Could not lookup TPU metadata from name 'my-tpu'."), NO_NAME),
        ("connect", tf.errors.UnavailableError(None, None, "failed to connect to all addresses"), NO_ANSWER),
        ("connect", tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded"), NO_ANSWER),
        ("initialize", ConnectionError("Connection refused"), NO_ANSWER),
        ("strategy", RuntimeError("The operation timed out"), NO_ANSWER),
    ],
)
def test_a_known_failure_is_told_with_cause_and_cure(fake_tpu, step, error, expected):
    fake_tpu.fails = {step: error}
    with pytest.raises(TpuUnusableError) as caught:
        devices.open_tpu("my-tpu")
    assert str(caught.value).startswith(expected)
    assert str(caught.value).endswith(f"(TPU address 'my-tpu', TensorFlow {tf.__version__}.)")
    assert caught.value.__cause__ is error
    assert fake_tpu.steps[-1] == step
    assert isinstance(caught.value, HardwareNotFoundError)
    assert isinstance(caught.value, KteError)


def test_an_unknown_failure_is_told_by_its_first_line_with_a_cure(fake_tpu):
    fake_tpu.fails = {"initialize": ValueError("the moon is full\nC++ frame 1\nC++ frame 2")}
    with pytest.raises(TpuUnusableError) as caught:
        devices.open_tpu("local")
    assert str(caught.value) == (
        "TensorFlow could not initialise the TPU: ValueError: the moon is full. "
        "What to do: check that the TPU is up and that TPU_NAME or tpu= names it, or go on without it with "
        f"strategy_scope(tpu=False). (TPU address 'local', TensorFlow {tf.__version__}.)"
    )


def test_an_unknown_failure_without_a_text_is_told_by_its_type(fake_tpu):
    fake_tpu.fails = {"resolver": AssertionError()}
    with pytest.raises(TpuUnusableError, match="could not initialise the TPU: AssertionError"):
        devices.open_tpu("local")


def test_an_interrupt_is_not_taken_for_a_failure(fake_tpu):
    fake_tpu.fails = {"connect": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        devices.open_tpu("my-tpu")


def test_this_tensorflow_has_no_tpu_kernels_and_that_is_told_without_trying(fake_tpu, monkeypatch):
    monkeypatch.undo()  # the real functions
    assert not devices.has_tpu_kernels()
    with pytest.raises(TpuUnusableError) as caught:
        devices.open_tpu("local")
    assert str(caught.value).startswith(NO_KERNELS)
    assert caught.value.__cause__ is None
    assert fake_tpu.calls == []


# GPUs


@pytest.fixture
def gpus(monkeypatch):
    """Make TensorFlow list `gpus.count` GPUs, and write down which ones are mirrored."""

    class Gpus:
        count = 2
        details = {"device_name": "NVIDIA A100", "compute_capability": (8, 0)}  # noqa: RUF012
        mirrored = None

    def list_physical_devices(kind=None):
        return [f"GPU number {i}" for i in range(Gpus.count)] if kind == "GPU" else listed(kind)

    def mirror(names):
        Gpus.mirrored = names
        return "mirrored"

    listed = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", list_physical_devices)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: Gpus.details)
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", mirror)
    return Gpus


def test_gpus_are_counted(gpus):
    assert devices.count_gpus() == 2


def test_one_gpu_needs_no_mirror(gpus):
    opened = devices.open_gpus(1)
    assert gpus.mirrored is None
    assert opened.strategy is tf.distribute.get_strategy()
    assert (opened.num_replicas, opened.device_name) == (1, "NVIDIA A100")


@pytest.mark.parametrize("count", [2, 3])
def test_several_gpus_are_mirrored(gpus, count):
    gpus.count = 4
    opened = devices.open_gpus(count)
    assert opened.strategy == "mirrored"
    assert gpus.mirrored == ["GPU:0", "GPU:1", "GPU:2"][:count]
    assert opened.num_replicas == count


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"device_name": "NVIDIA A100", "compute_capability": (8, 0)}, ("NVIDIA A100", True)),
        ({"device_name": "Tesla T4", "compute_capability": (7, 5)}, ("Tesla T4", False)),
        ({"device_name": "NVIDIA B200", "compute_capability": (10, 0)}, ("NVIDIA B200", True)),
        ({}, ("GPU", None)),
    ],
)
def test_a_gpu_tells_its_name_and_whether_it_has_bfloat16(gpus, details, expected):
    gpus.details = details
    opened = devices.open_gpus(1)
    assert (opened.device_name, opened.supports_bfloat16) == expected


# CPUs


def test_one_cpu_has_the_default_strategy_also_inside_another_scope(scope8):
    outside = tf.distribute.get_strategy()
    with scope8.strategy.scope():
        assert devices.open_cpu.__wrapped__(1).strategy is outside  # past the cache


def test_fewer_replicas_than_virtual_devices_are_fine():
    opened = devices.open_cpu(3)
    assert opened.num_replicas == 3
    assert opened.strategy.num_replicas_in_sync == 3


def test_more_replicas_than_virtual_devices_come_too_late():
    keep = tf.Variable(1.0, name="too_early"), tf.data.Dataset.range(3)
    with pytest.raises(ScopeError) as caught:
        devices.open_cpu(9)
    text = str(caught.value)
    assert text.startswith(
        "strategy_scope(replicas=9) needs 9 virtual CPU devices, but TensorFlow has already started its devices "
        "with 8 of them; they cannot be added afterwards."
    )
    assert re.search(r"An earlier call came too early: it made a dataset and a tensor and a variable \S+:0\.", text)
    assert "What to do: write `with strategy_scope(replicas=9) as scope:` before the first line" in text
    del keep


def test_an_early_call_that_left_nothing_behind_is_guessed_at(monkeypatch):
    monkeypatch.setattr(gc, "get_objects", list)
    with pytest.raises(
        ScopeError, match=r"\(one that made a tensor or listed the logical devices, say\)\. What to do"
    ):
        devices.open_cpu(9)
