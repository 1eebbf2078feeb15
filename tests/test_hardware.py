"""What a machine's environment and files tell about its hardware, on fake machines built in a folder."""

import dataclasses
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.hardware import TPU_GENERATIONS, Hardware, TpuAddress, detect, find_tpu

pytestmark = pytest.mark.gate_on("keras3_jax")

VARIABLES = (
    "TPU_NAME",
    "COLAB_TPU_ADDR",
    "TPU_GRPC_URL",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
    "TPU_ACCELERATOR_TYPE",
    "TPU_WORKER_ID",
    "CUDA_VISIBLE_DEVICES",
)


class Machine:
    """A fake file system root."""

    def __init__(self, root):
        self.root = root

    def file(self, path, text=""):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return self

    def nodes(self, *paths):
        for path in paths:
            self.file(path)
        return self

    def pci(self, device, count=1, vendor="0x1ae0"):
        for index in range(count):
            folder = f"sys/bus/pci/devices/0000:{device[2:]}:{index:02x}.0"
            self.file(f"{folder}/vendor", f"{vendor}\n").file(f"{folder}/device", f"{device}\n")
        return self

    def nvidia(self, *models):
        for index, model in enumerate(models):
            text = f"Model: \t\t {model}\nIRQ:   \t\t 24\nDevice Minor: \t {index}\n"
            self.file(f"proc/driver/nvidia/gpus/0000:{index:02x}:00.0/information", text)
            self.file(f"dev/nvidia{index}")
        return self

    def cpus(self, count):
        cores = "\n".join(f"processor\t: {index}\nmodel name\t: Fake\n" for index in range(count))
        return self.file("proc/cpuinfo", cores)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path).cpus(8)


# TPUs


def test_kaggle_v3_8(machine):
    machine.nodes(*(f"dev/accel{index}" for index in range(4))).pci("0x0027", count=4)
    environ = {"TPU_ACCELERATOR_TYPE": "v3-8", "TPU_PROCESS_ADDRESSES": "local"}
    found = detect(environ, machine.root)
    assert (found.kind, found.num_devices, found.name) == ("tpu", 8, "TPU v3-8")
    assert found.generation is TPU_GENERATIONS["v3"]
    assert found.supports_bfloat16 is True
    assert found.found_by == (
        "TPU_ACCELERATOR_TYPE=v3-8",
        "/dev/accel0",
        "/dev/accel1",
        "/dev/accel2",
        "/dev/accel3",
        "PCI 0x1ae0:0x0027",
    )
    assert str(found) == ("TPU v3-8: 8 devices, bfloat16, found by TPU_ACCELERATOR_TYPE=v3-8, /dev/accel0 and 4 more")
    assert find_tpu("auto", environ, machine.root) == TpuAddress("local", "TPU_ACCELERATOR_TYPE=v3-8")


def test_kaggle_v5e_8(machine):
    machine.nodes("dev/vfio/vfio", *(f"dev/vfio/{index}" for index in range(8))).pci("0x0063", count=8)
    environ = {"TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_ID": "0"}
    found = detect(environ, machine.root)
    assert (found.num_devices, found.name, found.generation.name) == (8, "TPU v5e-8", "v5e")
    assert "TPU_WORKER_ID=0" in found.found_by
    assert "/dev/vfio/7" in found.found_by
    assert "/dev/vfio/vfio" not in found.found_by


def test_cloud_tpu_vm_v4_8_without_variables(machine):
    machine.nodes(*(f"dev/accel{index}" for index in range(4))).pci("0x005e", count=4)
    found = detect({}, machine.root)
    assert (found.num_devices, found.name, found.generation.name) == (4, "TPU v4-8", "v4")
    assert find_tpu("auto", {}, machine.root) == TpuAddress("local", "/dev/accel0")


def test_v2_and_v3_share_a_pci_id(machine):
    machine.pci("0x0027", count=4)
    found = detect({}, machine.root)
    assert (found.num_devices, found.name, found.generation) == (8, "TPU v2-8 or v3-8", None)
    told = detect({"TPU_ACCELERATOR_TYPE": "v2-8"}, machine.root)
    assert (told.name, told.generation.name) == ("TPU v2-8", "v2")


@pytest.mark.parametrize(
    ("device", "name"),
    [("0x005e", "v4"), ("0x0062", "v5p"), ("0x0063", "v5e"), ("0x006f", "v6e"), ("0x0076", "7x")],
)
def test_generation_by_pci_id(machine, device, name):
    assert detect({}, machine.pci(device).root).generation.name == name


def test_the_chip_is_believed_before_the_variable(machine):
    # Kaggle's image of 2022 says v3-8 whatever machine it runs on.
    found = detect({"TPU_ACCELERATOR_TYPE": "v3-8"}, machine.pci("0x0063", count=8).root)
    assert (found.name, found.generation.name) == ("TPU v5e-8", "v5e")


def test_the_variable_counts_the_other_hosts_too(machine):
    found = detect({"TPU_ACCELERATOR_TYPE": "v5litepod-16"}, machine.pci("0x0063", count=8).root)
    assert (found.num_devices, found.name) == (16, "TPU v5e-16")


def test_old_colab(machine):
    environ = {"COLAB_TPU_ADDR": "10.81.4.2:8470"}
    found = detect(environ, machine.root)
    assert (found.kind, found.num_devices, found.name, found.generation) == ("tpu", None, "TPU", None)
    assert str(found) == ("TPU: an unknown number of devices, bfloat16, found by COLAB_TPU_ADDR=10.81.4.2:8470")
    assert find_tpu("auto", environ, machine.root).address == "grpc://10.81.4.2:8470"


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"TPU_NAME": "local"}, "local"),
        ({"TPU_NAME": "my-tpu"}, "my-tpu"),
        ({"TPU_NAME": " my-tpu\n"}, "my-tpu"),
        ({"TPU_NAME": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"COLAB_TPU_ADDR": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"TPU_GRPC_URL": "grpc://10.0.0.3:8470"}, "grpc://10.0.0.3:8470"),
        (
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470"},
            "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470",
        ),
        ({"TPU_ACCELERATOR_TYPE": "v4-8"}, "local"),
        ({"TPU_WORKER_ID": "0"}, "local"),
    ],
)
def test_address_from_a_variable(machine, environ, address):
    ((variable, value),) = environ.items()
    expected = TpuAddress(address, found_by=f"{variable}={value.strip()}")
    assert find_tpu("auto", environ, machine.root) == expected
    assert find_tpu("auto", {**dict.fromkeys(VARIABLES, ""), **environ}, machine.root) == expected
    assert detect(environ, machine.root).found_by == (expected.found_by,)


def test_order_of_the_variables(machine):
    order = VARIABLES[:6]
    environ = {name: f"value-of-{name}" for name in order}
    for name in order:
        assert find_tpu("auto", environ, machine.root).found_by == f"{name}=value-of-{name}"
        del environ[name]
    assert find_tpu("auto", environ, machine.root) is None


@pytest.mark.parametrize(
    ("tpu", "address"),
    [("local", "local"), ("grpc://1.2.3.4:8470", "grpc://1.2.3.4:8470"), ("my-tpu", "my-tpu")],
)
def test_the_users_word_comes_first(machine, tpu, address):
    assert find_tpu(tpu, {"TPU_NAME": "other"}, machine.root) == TpuAddress(address, f"tpu={tpu!r}")


def test_false_means_none(machine):
    assert find_tpu(False, {"TPU_NAME": "local"}, machine.nodes("dev/accel0").root) is None


@pytest.mark.parametrize("tpu", ["", "  ", True, None, 0, 8, b"local", ["grpc://1.2.3.4:8470"]])
def test_what_cannot_be_a_tpu(tpu):
    with pytest.raises(ArgumentError) as caught:
        find_tpu(tpu, {})
    text = str(caught.value)
    assert '`tpu` must be "auto", "local", a TPU\'s name, a grpc:// address or False' in text
    assert f"got {tpu!r}." in text
    assert 'Write tpu="auto"' in text
    assert "tpu=False" in text


def test_vfio_alone_is_no_tpu(machine):
    machine.nodes("dev/vfio/vfio", "dev/vfio/12").pci("0x10de", vendor="0x10de")
    assert detect({}, machine.root).kind == "cpu"
    assert find_tpu("auto", {}, machine.root) is None
    assert "/dev/vfio/12" in detect({"TPU_WORKER_ID": "0"}, machine.root).found_by


def test_googles_network_card_is_no_tpu(machine):
    machine.nodes("dev/vfio/0").pci("0x0042").pci("0x001f")
    assert detect({}, machine.root).kind == "cpu"


def test_another_makers_tpu_id_is_no_tpu(machine):
    assert detect({}, machine.pci("0x0063", vendor="0x8086").root).kind == "cpu"


def test_accel_folder_of_other_accelerators_is_no_tpu(machine):
    # The Linux kernel puts NPUs at /dev/accel/accel0, a TPU is at /dev/accel0.
    assert detect({}, machine.nodes("dev/accel/accel0").root).kind == "cpu"


def test_chip_without_device_node_is_found_by_both(machine):
    """A container that was not given the device: the TPU is there, and whoever asks is told so."""
    machine.pci("0x006f", count=4)
    assert detect({}, machine.root).name == "TPU v6e-4"
    assert find_tpu("auto", {}, machine.root) == TpuAddress("local", "PCI 0x1ae0:0x006f")


def test_device_nodes_alone_tell_no_generation(machine):
    found = detect({}, machine.nodes("dev/accel10", "dev/accel2").root)
    assert (found.name, found.num_devices, found.generation) == ("TPU", None, None)
    assert found.found_by == ("/dev/accel2", "/dev/accel10")


def test_tpu_before_gpu(machine):
    assert detect({"TPU_WORKER_ID": "0"}, machine.nvidia("Tesla T4").root).kind == "tpu"


# GPUs


def test_gpu_box(machine):
    found = detect({}, machine.nvidia(*["NVIDIA A100-SXM4-40GB"] * 4).root)
    assert found == Hardware(
        kind="gpu",
        num_devices=4,
        name="NVIDIA A100-SXM4-40GB",
        supports_bfloat16=True,
        found_by=(
            *(f"/dev/nvidia{index}" for index in range(4)),
            "/proc/driver/nvidia/gpus: NVIDIA A100-SXM4-40GB",
        ),
    )
    assert str(found) == (
        "NVIDIA A100-SXM4-40GB: 4 devices, bfloat16, found by /dev/nvidia0, /dev/nvidia1 and 3 more"
    )


def test_t4_box(machine):
    found = detect({}, machine.nvidia("Tesla T4", "Tesla T4").root)
    assert (found.kind, found.num_devices, found.supports_bfloat16) == ("gpu", 2, False)
    assert str(found).startswith("Tesla T4: 2 devices, no bfloat16, found by")


@pytest.mark.parametrize(
    ("models", "verdict"),
    [
        (["NVIDIA A100-SXM4-40GB", "Tesla T4"], False),
        (["NVIDIA A100-SXM4-40GB", "NVIDIA Mystery"], None),
        (["NVIDIA Mystery", "Tesla T4"], False),
    ],
)
def test_the_oldest_gpu_decides(machine, models, verdict):
    found = detect({}, machine.nvidia(*models).root)
    assert (found.name, found.supports_bfloat16) == (", ".join(models), verdict)


@pytest.mark.parametrize(
    ("visible", "count"),
    [("0", 1), ("0,2", 2), ("1, 3", 2), ("0,1,2,3", 4), ("0,9,1", 1), ("2,-1,0", 1), ("GPU-8932f937", 1)],
)
def test_cuda_visible_devices_counts(machine, visible, count):
    machine.nvidia(*["Tesla T4"] * 4)
    assert detect({"CUDA_VISIBLE_DEVICES": visible}, machine.root).num_devices == count


@pytest.mark.parametrize("hidden", ["", " ", "-1", "NoDevFiles", "-1,0", "99"])
def test_cuda_visible_devices_hides(machine, hidden):
    environ = {"CUDA_VISIBLE_DEVICES": hidden}
    assert detect(environ, machine.nvidia("Tesla T4").root).kind == "cpu"


@pytest.mark.parametrize(
    ("node", "name"), [("dxg", "GPU of the Windows host"), ("kfd", "AMD GPU"), ("nvidia0", "NVIDIA GPU")]
)
def test_gpu_known_by_its_device_only(machine, node, name):
    machine.nodes(f"dev/{node}")
    found = detect({}, machine.root)
    assert (found.kind, found.name, found.supports_bfloat16) == ("gpu", name, None)
    assert found.num_devices == (1 if node == "nvidia0" else None)
    assert found.found_by == (f"/dev/{node}",)
    assert detect({"CUDA_VISIBLE_DEVICES": ""}, machine.root).kind == "cpu"


def test_nvidia_driver_files_that_are_no_gpu(machine):
    assert detect({}, machine.nodes("dev/nvidiactl", "dev/nvidia-uvm").root).kind == "cpu"


# CPUs


def test_laptop(machine):
    found = detect({}, machine.root)
    assert found == Hardware(kind="cpu", num_devices=1, name="CPU, 8 cores")
    assert str(found) == "CPU, 8 cores: 1 device"
    assert find_tpu("auto", {}, machine.root) is None


def test_one_core(tmp_path):
    assert detect({}, Machine(tmp_path).cpus(1).root).name == "CPU, 1 core"


def test_empty_machine(tmp_path):
    assert detect({}, tmp_path / "nothing") == Hardware(kind="cpu", num_devices=1, name="CPU")


# Looking is safe


def test_defaults_look_at_this_machine(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    assert find_tpu().address == "my-tpu"
    assert detect().found_by[0] == "TPU_NAME=my-tpu"


def test_str_names_two_places_and_counts_the_rest():
    def show(places):
        return str(Hardware("cpu", num_devices=2, name="CPU", found_by=places))

    assert show(()) == "CPU: 2 devices"
    assert show(("a", "b")) == "CPU: 2 devices, found by a, b"
    assert show(("a", "b", "c")) == "CPU: 2 devices, found by a, b and 1 more"


def test_a_broken_byte_does_not_hide_the_rest_of_a_file(machine):
    machine.nvidia("Tesla T4")
    file = machine.root / "proc/driver/nvidia/gpus/0000:00:00.0/information"
    file.write_bytes(file.read_bytes() + b"Video BIOS: \xff\xfe")
    assert detect({}, machine.root).name == "Tesla T4"


def test_hardware_is_a_value(machine):
    found = detect({}, machine.root)
    assert dataclasses.replace(found, num_devices=8).num_devices == 8
    assert hash(found) == hash(detect({}, machine.root))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.kind = "tpu"


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError, NotADirectoryError, OSError])
def test_unreadable_files_are_ignored(machine, monkeypatch, error):
    machine.nvidia("Tesla T4").pci("0x0063")

    def fail(*args, **kwargs):
        raise error("no")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", fail)
        assert detect({}, machine.root).name == "NVIDIA GPU"
        patch.setattr(os, "listdir", fail)
        assert detect({}, machine.root) == Hardware(kind="cpu", num_devices=1, name="CPU")
        assert find_tpu("auto", {}, machine.root) is None


def test_folders_in_place_of_files_and_the_reverse(tmp_path):
    machine = Machine(tmp_path).file("dev").file("proc/driver/nvidia/gpus/0/information/x")
    machine.file("sys/bus/pci/devices/0/vendor/x").file("sys/bus/pci/devices/1").file("proc/cpuinfo/x")
    assert detect({}, machine.root).name == "CPU"


def test_a_root_that_no_system_accepts():
    assert detect({}, "a\0b").name == "CPU"


PLAIN = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "deadline": None}
GARBAGE = st.one_of(st.none(), st.integers(), st.binary(), st.text(st.characters()), st.just("v3-8\nx\x1b[0m"))


@settings(max_examples=200, **PLAIN)
@given(environ=st.dictionaries(st.sampled_from(VARIABLES), GARBAGE))
def test_no_value_of_a_variable_raises(machine, environ):
    found = detect(environ, machine.root)
    assert str(found).isprintable()  # one line, and nothing that moves a terminal's cursor
    address = find_tpu("auto", environ, machine.root)
    assert (found.kind == "tpu") == (address is not None)
    assert address is None or (address.address and address.found_by in found.found_by)


@settings(max_examples=100, **PLAIN)
@given(vendor=st.binary(), device=st.binary(), model=st.binary(), cpuinfo=st.binary())
def test_no_content_of_a_file_raises(machine, vendor, device, model, cpuinfo):
    machine.nvidia("Tesla T4").pci("0x0063")
    (machine.root / "sys/bus/pci/devices/0000:0063:00.0/vendor").write_bytes(vendor)
    (machine.root / "sys/bus/pci/devices/0000:0063:00.0/device").write_bytes(device)
    (machine.root / "proc/driver/nvidia/gpus/0000:00:00.0/information").write_bytes(b"Model: " + model)
    (machine.root / "proc/cpuinfo").write_bytes(cpuinfo)
    found = detect({}, machine.root)
    assert found.kind == "gpu"
    assert str(found).isprintable()
