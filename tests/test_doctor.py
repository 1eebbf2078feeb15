"""What `doctor` says of machines: folders and variables as those of Kaggle, Colab, TPU VMs, a GPU box and a laptop.

They were written from what those places are documented to set (see `machine/tpu_evidence.py`), and what users of
theirs set anew from what they found there; not copied from machines.
"""

import json
import os
import sys

import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime import message_terms
from keras_tpu_ext._runtime.common.saved_programs import SavedProgram, Signature
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.preflight._saved import SavedFile, machine_of
from keras_tpu_ext_command import main

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

IS_JAX = message_terms.framework == "JAX"
JAX_IMAGE = {"keras": "3.15.1", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1", "tensorflow-cpu": "2.21.0"}
TF_IMAGE = {"keras": "3.15.1", "tensorflow-tpu": "2.20.0", "libtpu": "0.0.31"}
GOOGLE = "0x1ae0"


@pytest.fixture
def machine(tmp_path):
    """Return what makes a machine: devices, PCI ids of chips, and processes with what they have open."""

    def make(devices=(), pci="", chips=0, processes=()):
        for device in devices:
            path = tmp_path / "dev" / device
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        for i in range(chips):
            folder = tmp_path / f"sys/bus/pci/devices/0000:00:{i:02x}.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(GOOGLE)
            (folder / "device").write_text(pci)
        for pid, command, open_files in processes:
            folder = tmp_path / "proc" / str(pid)
            (folder / "fd").mkdir(parents=True)
            (folder / "cmdline").write_text(command.replace(" ", "\0"))
            for number, file in enumerate(open_files):
                os.symlink(file, folder / "fd" / str(number))
        return tmp_path

    return make


def in_one_line(report):
    return " ".join(str(report).split())


def own_image():
    return JAX_IMAGE if IS_JAX else TF_IMAGE


def test_kaggle_with_a_tpu(machine):
    root = machine(devices=[f"vfio/{i}" for i in range(8)], pci="0x0063", chips=8)
    environ = {
        "KAGGLE_KERNEL_RUN_TYPE": "Interactive",
        "ISTPUVM": "1",
        "PJRT_DEVICE": "TPU",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1",
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434,8435,8436,8437,8438",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    report = kte.doctor(environ=environ, root=root, versions=own_image())
    assert (report.place, report.tpu, report.hardware.generation.name) == ("Kaggle", "local", "v5e")
    assert report.ok, str(report)
    assert report.framework == f"{message_terms.keras} on {message_terms.framework}"
    assert "8 chips of 1 device, 16 GiB of memory each" in in_one_line(report)
    assert report.next_step.startswith('with kte.strategy_scope(require="tpu"')


def test_a_tpu_vm_counts_chips_and_cores(machine):
    root = machine(devices=[f"accel{i}" for i in range(4)], pci="0x0027", chips=4)
    environ = {"TPU_ACCELERATOR_TYPE": "v3-8"}
    report = kte.doctor(environ=environ, root=root, versions=own_image())
    assert report.place == "a Cloud TPU VM"
    assert "4 chips of 2 devices, 16 GiB of memory each" in in_one_line(report)
    assert json.loads(json.dumps(report.to_dict()))["hardware"]["chips"] == 4


def test_a_framework_that_cannot_use_the_tpu_is_told_what_can(machine):
    versions = {"keras": "3.15.1", "tensorflow-cpu": "2.21.0", "jax": "0.10.2"}
    report = kte.doctor(environ={}, root=machine(devices=["accel0"], pci="0x0063", chips=1), versions=versions)
    assert not report.ok
    (problem,) = (finding for finding in report.findings if finding.kind == "problem")
    if IS_JAX:
        assert problem.text == "a TPU is there, and JAX has no libtpu to use it with"
        assert problem.write == "pip install 'jax[tpu]'"
    else:
        assert problem.text == "a TPU is there, and tensorflow-cpu from PyPI has no kernels for TPUs"
        assert "pip install tensorflow-tpu 'libtpu==0.0.31'" in problem.write
    assert report.next_step == problem.write


def test_colab_with_a_tpu_behind_the_network(machine):
    environ = {"COLAB_RELEASE_TAG": "release", "COLAB_TPU_ADDR": "10.0.0.2:8470"}
    paths = ["gs://bucket/train", "/content/checkpoints"]
    report = kte.doctor(environ=environ, root=machine(), versions=own_image(), paths=paths)
    assert (report.place, report.tpu) == ("Colab", "grpc://10.0.0.2:8470")
    texts = [str(finding) for finding in report.findings if finding.kind == "problem"]
    assert not any("BUCKET" in text for text in texts)
    assert any("cannot reach /content/checkpoints on this machine's disk" in text for text in texts)
    assert not any("gs://bucket/train" in text for text in texts)
    assert any("JAX reaches the TPU of its own machine only" in text for text in texts) == IS_JAX


def test_who_holds_the_chip_is_named(machine):
    processes = [(4711, "python train.py", ["/dev/null", "/dev/accel0"]), (4712, "sshd", ["/dev/null"])]
    root = machine(devices=["accel0"], pci="0x0027", chips=1, processes=processes)
    report = kte.doctor(environ={}, root=root, versions=own_image())
    assert "PROBLEM: process 4711 (python train.py) holds the TPU, and one process at a time can" in in_one_line(
        report
    )
    assert "4712" not in str(report)
    assert report.next_step == "kill 4711, or restart that notebook's kernel"


def test_this_process_does_not_hold_its_own_chip(machine):
    processes = [(os.getpid(), "python notebook.py", ["/dev/accel0"])]
    root = machine(devices=["accel0"], pci="0x0027", chips=1, processes=processes)
    assert "holds the TPU" not in str(kte.doctor(environ={}, root=root, versions=own_image()))


def test_a_gpu_that_the_framework_does_not_see(machine):
    report = kte.doctor(environ={}, root=machine(devices=["nvidia0"]), versions={"keras": "3.15.1"})
    assert report.place == "a machine with a GPU"
    assert "PROBLEM: a GPU is there, and the framework sees none.\n    Write: check that `nvidia-smi`" in str(report)


def test_a_laptop_is_led_to_the_compiler(machine):
    report = kte.doctor(environ={}, root=machine(), versions={"keras": "3.15.1"})
    assert report.ok
    assert (report.place, report.tpu, report.findings) == ("a machine without accelerators", "", ())
    assert report.next_step.startswith("pip install 'jax[tpu]'  # and keras-tpu-ext preflight")
    assert "Next: pip install &#x27;jax[tpu]&#x27;" in report._repr_html_()
    report = kte.doctor(environ={}, root=machine(), versions=JAX_IMAGE)
    assert report.next_step == "keras-tpu-ext preflight --help  # it asks the TPU compiler from here"


def test_paths_are_looked_at_on_a_machine_of_any_kind(machine, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    paths = ["/data", "/data/new/deep", "gs://bucket/train", "file", "/file/checkpoints", "file/more"]
    report = kte.doctor(environ={}, root=machine(), versions={}, paths=paths)
    assert not report.ok
    assert [(finding.kind, finding.text) for finding in report.findings] == [
        ("problem", "there is nothing at /file/checkpoints, and nothing can be written into /file"),
        ("problem", f"there is nothing at file/more, and nothing can be written into {tmp_path / 'file'}"),
        ("advice", "there is nothing at /data/new/deep yet"),
    ]


def test_what_may_not_be_read_is_a_problem(machine, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    (problem,) = kte.doctor(environ={}, root=machine(), versions={}, paths=["/data"]).findings
    assert (problem.kind, problem.text, problem.write) == ("problem", "/data is not yours to read", "ls -ld /data")


def test_it_fits_80_columns_but_for_what_is_to_be_copied(machine):
    processes = [(4711, "python train.py " + "--option " * 20, ["/dev/accel0"])]
    root = machine(devices=["accel0"], pci="0x0027", chips=1, processes=processes)
    lines = str(kte.doctor(environ={}, root=root, versions=own_image(), paths=["/nothing/here"])).splitlines()
    assert len(lines) > 8
    assert not [line for line in lines if len(line) > 80 and not line.startswith(("    Write: ", "Next: "))]


def test_another_dtype_policy_is_advice_and_no_problem(machine):
    root = machine(devices=["accel0"], pci="0x0063", chips=1)
    report = kte.doctor(environ={}, root=root, versions=own_image())
    assert report.ok
    assert "advice: the dtype policy is float32, and this hardware is made for mixed_bfloat16" in in_one_line(report)


def test_nothing_is_started_unless_that_is_asked_for(machine, monkeypatch):
    started = []
    monkeypatch.setattr(
        sys.modules["keras_tpu_ext.doctor"], "strategy_scope", lambda **options: started.append(options) or "scope"
    )
    root = machine(devices=["accel0"], pci="0x0063", chips=1)
    kte.doctor(environ={}, root=root, versions=own_image())
    assert started == []
    report = kte.doctor(environ={}, root=root, versions=own_image(), start=True)
    assert started == [{"require": "tpu", "tpu": "local"}]
    assert "advice: the TPU was started: scope" in str(report)


def test_the_command_prints_it_and_exits_by_the_verdict(capsys, monkeypatch):
    monkeypatch.setenv("COLAB_TPU_ADDR", "10.0.0.2:8470")
    assert main(["doctor", "/tmp/data"]) == 1
    assert "cannot reach /tmp/data" in in_one_line(capsys.readouterr().out)
    assert main(["doctor", "/tmp/data", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["tpu"] == "grpc://10.0.0.2:8470"


def test_packages_that_break_each_other_are_told_on_every_framework(machine):
    versions = {**own_image(), "tensorflow-tpu": "2.20.0", "libtpu": "0.0.51"}
    report = kte.doctor(environ={}, root=machine(), versions=versions)
    assert not report.ok
    assert "PROBLEM: tensorflow-tpu 2.20.0 ends the process when it is imported with libtpu 0.0.51" in in_one_line(
        report
    )
    assert report.next_step == "pip install 'libtpu==0.0.31'"


def test_whether_a_compiled_file_fits_is_told_before_the_tpu_is_started(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(_runtime, "saved_programs", _runtime.saved_programs or object())
    path, signature = tmp_path / "step.kte", Signature("m", "0" * 64, (), "")
    program = SavedProgram("train", 1, signature, 1.0, b"code")

    def told(platform, kind, **changes):
        found = machine_of({"platform": platform, "device kind": kind, "build": "", "devices": "", "mesh": ""})
        sha256 = SavedFile("v5e-8", {**found, **changes}, (program,)).write(path)
        environ = {"TPU_ACCELERATOR_TYPE": "v5litepod-8"}
        found = kte.doctor(environ=environ, root=machine(), versions=own_image(), compiled=(path, sha256)).findings
        return next(finding for finding in found if "step.kte" in finding.text)

    found = told("tpu", "TPU v5 lite")
    assert found.kind == "advice"
    assert found.text.endswith(
        "fits this machine, as far as is known before it is started. It has the programs train"
    )
    found = told("tpu", "TPU v3", jax="0.0.1")
    assert found.kind == "problem"
    assert "for v5e-8, do not fit this machine: device kind: expected v3, found v5 lite; jax: expected" in found.text
    assert "platform: expected cpu, found tpu" in told("cpu", "cpu").text


def test_a_wrong_compiled_argument_is_an_error(machine):
    with pytest.raises(ArgumentError, match="doctor: `compiled` must be a file with its SHA-256"):
        kte.doctor(environ={}, root=machine(), compiled="step.kte")
