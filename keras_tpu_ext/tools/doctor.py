"""`DoctorReport`, and the checks of the machine, its packages and anything that prevents training on its TPU."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from keras_tpu_ext.hardware import Hardware, detect, find_tpu
from keras_tpu_ext.machine import system
from keras_tpu_ext.machine.versions import NEWEST_LIBTPU_FOR_TENSORFLOW, Versions, problem_of_packages
from keras_tpu_ext.output.display import counted, wrap
from keras_tpu_ext.output.report import Report

_LIBTPU = ".".join(map(str, NEWEST_LIBTPU_FOR_TENSORFLOW))
# The variables that only this service sets.
_SERVICES = (
    ("Kaggle", ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE")),
    ("Colab", ("COLAB_RELEASE_TAG", "COLAB_TPU_ADDR", "COLAB_BACKEND_VERSION")),
    ("a pod of Google Kubernetes Engine", ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",)),
)
_PACKAGES = (
    *("keras", "tf-keras", "tensorflow", "tensorflow-cpu", "tensorflow-tpu", "jax", "jaxlib", "libtpu"),
    *("tensorflow-addons", "keras-tpu-ext"),
)
_CHIPS = re.compile(r"/dev/(accel[0-9]+|vfio/[0-9]+)")


@dataclasses.dataclass(frozen=True)
class Finding:
    """A problem, or advice.

    Attributes:
        kind: `"problem"` if training will not work as intended, `"advice"` if it will.
        text: The problem or the advice.
        write: What to write or run instead; empty if there is nothing to do.
    """

    kind: Literal["problem", "advice"]
    text: str
    write: str = ""

    def __str__(self) -> str:
        return f"{self.text}. Write: {self.write}" if self.write else f"{self.text}."


@dataclasses.dataclass(frozen=True)
class DoctorReport(Report):
    """The result of `doctor`; print it, or show it in a notebook.

    Attributes:
        place: The machine, such as `"Kaggle"` or `"a Cloud TPU VM"`.
        hardware: The hardware that a program would run on.
        tpu: Where a TPU is reached, such as `"local"` or `"grpc://10.0.0.2:8470"`; empty if none was found.
        framework: Keras and its backend, such as `"Keras 3 on JAX"`.
        versions: The versions of the relevant packages that are installed.
        policy: Keras's current dtype policy.
        findings: Problems, then advice.
        next_step: The next thing to write or to run.
    """

    place: str
    hardware: Hardware
    tpu: str
    framework: str
    versions: dict[str, str]
    policy: str
    findings: tuple[Finding, ...]
    next_step: str

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return all(finding.kind != "problem" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        generation = self.hardware.generation
        hardware = {
            "kind": self.hardware.kind,
            "name": self.hardware.name,
            "devices": self.hardware.num_devices,
            "generation": None if generation is None else generation.name,
            "chips": self._chips(),
            "hbm_bytes_per_device": None if generation is None else generation.hbm_bytes_per_core,
            "found_by": list(self.hardware.found_by),
        }
        return {**super().to_dict(), "hardware": hardware}

    def __str__(self) -> str:
        rows = [("machine", self.place), ("hardware", self._hardware())]
        if self.tpu:
            rows.append(("TPU", f"reached at {self.tpu}"))
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rows += [("framework", f"{self.framework} ({versions})"), ("dtype policy", self.policy)]
        lines = [line for name, text in rows for line in wrap(f"{name:<14}{text}", 14)]
        for finding in self.findings:
            mark = "PROBLEM" if finding.kind == "problem" else finding.kind
            lines += ["", *wrap(f"{mark}: {finding.text}.", 4)]
            lines += [f"    Write: {finding.write}"] if finding.write else []  # on one line, to be copied
        return "\n".join([*lines, "", f"Next: {self.next_step}"])

    def _chips(self) -> int | None:
        generation, devices = self.hardware.generation, self.hardware.num_devices
        return None if generation is None or devices is None else devices // generation.cores_per_chip

    def _hardware(self) -> str:
        generation, chips = self.hardware.generation, self._chips()
        if generation is None:
            return str(self.hardware)
        per = f"{generation.hbm_bytes_per_core / 2**30:g} GiB of memory each"
        devices = counted(generation.cores_per_chip, "device")
        count = "" if chips is None else f"; {counted(chips, 'chip')} of {devices}"
        return f"{self.hardware}{count}, {per}"


def describe_place(environ: Mapping[str, str], hardware: Hardware) -> str:
    """Return a description of the machine, such as `"Kaggle"`."""
    for name, variables in _SERVICES:
        if any(system.get_variable(environ, variable) for variable in variables):
            return name
    if hardware.kind == "tpu" and any(found.startswith(("/dev/", "PCI")) for found in hardware.found_by):
        return "a Cloud TPU VM"
    return {"tpu": "a machine that reaches a TPU", "gpu": "a machine with a GPU"}.get(
        hardware.kind, "a machine without accelerators"
    )


def installed_versions() -> dict[str, str]:
    """Return the versions of the relevant packages that are installed."""
    return {name: version for name in _PACKAGES if (version := system.installed_version(name)) is not None}


def check_holders(root: str | os.PathLike[str]) -> Iterator[Finding]:
    """Yield the other processes that have a chip of this machine open and that this user may see."""
    for name in system.list_folder(root, "proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        folder = f"proc/{name}/fd"
        targets = [system.read_link(root, f"{folder}/{entry}") for entry in system.list_folder(root, folder)]
        if any(_CHIPS.fullmatch(target) for target in targets):
            command = system.one_line(system.read_text(root, f"proc/{name}/cmdline").replace("\0", " "))
            yield Finding(
                "problem",
                f"process {name} ({command or 'unknown'}) holds the TPU, and one process at a time can",
                f"kill {name}, or restart that notebook's kernel",
            )


def parse_problem(problem: str) -> Finding:
    """Return the finding for an error message, with the part after "Write:" as its cure."""
    cause, _, write = " ".join(problem.split()).partition(" Write: ")
    return Finding("problem", cause.rstrip("."), write)


def check_packages(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yield packages whose import ends the process, or that overwrite each other, whatever imports them."""
    found = Versions(
        tensorflow=versions.get("tensorflow"),
        tensorflow_cpu=versions.get("tensorflow-cpu"),
        tensorflow_tpu=versions.get("tensorflow-tpu"),
        libtpu=versions.get("libtpu"),
    )
    problem = problem_of_packages(found)
    if problem:
        yield parse_problem(problem)


def check_tpu_framework(framework: str, versions: Mapping[str, str], address: str) -> Iterator[Finding]:
    """Yield missing packages, and unreachable addresses, for a TPU at `address`."""
    if framework == "JAX":
        if address != "local":
            yield Finding(
                "problem",
                f"JAX reaches the TPU of its own machine only, and this one is at {address}",
                "os.environ['KERAS_BACKEND'] = 'tensorflow' before the first import of keras, or work on the TPU VM",
            )
        elif "libtpu" not in versions:
            yield Finding("problem", "a TPU is there, and JAX has no libtpu to use it with", "pip install 'jax[tpu]'")
    elif address == "local" and "tensorflow-tpu" not in versions:
        installed = " and ".join(name for name in versions if name.startswith("tensorflow")) or "TensorFlow"
        yield Finding(
            "problem",
            f"a TPU is there, and {installed} from PyPI has no kernels for TPUs",
            "KERAS_BACKEND=jax with pip install 'jax[tpu]', or: pip install tensorflow-tpu "
            f"'libtpu=={_LIBTPU}' -f https://storage.googleapis.com/libtpu-tf-releases/index.html",
        )


def check_paths(paths: Sequence[str], address: str, root: str | os.PathLike[str]) -> Iterator[Finding]:
    """Yield the paths that cannot be read and written from where the model trains; `gs://` is not contacted."""
    for path in paths:
        if path.startswith("gs://"):
            continue
        if address in ("", "local"):
            yield from _check_local_path(path, root)
            continue
        yield Finding(
            "problem",
            f"the TPU at {address} reads and writes by itself and cannot reach {path} on this machine's disk",
            "a path that begins with gs:// instead; or for checkpoints "
            "tf.train.CheckpointOptions(experimental_io_device='/job:localhost')",
        )


def _check_local_path(path: str, root: str | os.PathLike[str]) -> Iterator[Finding]:
    local = os.path.join(root, path.lstrip("/")) if os.path.isabs(path) else os.path.abspath(path)
    if os.path.exists(local):
        if not os.access(local, os.R_OK):
            yield Finding("problem", f"{path} is not yours to read", f"ls -ld {path}")
        return
    parent = os.path.dirname(local)
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    if os.path.isdir(parent) and os.access(parent, os.W_OK):
        yield Finding("advice", f"there is nothing at {path} yet")
    else:
        shown = f"/{os.path.relpath(parent, root)}" if os.path.isabs(path) else parent
        yield Finding("problem", f"there is nothing at {path}, and nothing can be written into {shown}")


def check_policy(policy: str, recommended: str, hardware: Hardware) -> Iterator[Finding]:
    """Yield a dtype policy that is not the recommended one."""
    if policy != recommended and hardware.kind != "cpu":
        yield Finding(
            "advice",
            f"the dtype policy is {policy}, and this hardware is made for {recommended}",
            'with kte.strategy_scope(precision="auto") as scope: ...',
        )


def import_failure_report(
    error: ImportError, *, environ: Mapping[str, str] | None = None, root: str | os.PathLike[str] = "/"
) -> DoctorReport:
    """Return the report of a machine on which this package cannot be imported; it needs no framework."""
    environ = os.environ if environ is None else environ
    hardware, address = detect(environ, root), find_tpu("auto", environ, root)
    problem = parse_problem(str(error))
    return DoctorReport(
        place=describe_place(environ, hardware),
        hardware=hardware,
        tpu="" if address is None else address.address,
        framework="none, keras_tpu_ext cannot be imported",
        versions=installed_versions(),
        policy="unknown",
        findings=(problem,),
        next_step=problem.write or "mend the problem above, and run keras-tpu-ext doctor again",
    )
