"""Detection of the hardware of this machine, from its environment and files alone.

Nothing here imports a framework, starts a device or raises because of what it finds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.machine import system
from keras_tpu_ext.machine.tpu_evidence import TpuAddress as TpuAddress
from keras_tpu_ext.machine.tpu_evidence import gather_tpu_evidence, possible_slices
from keras_tpu_ext.machine.tpu_table import TPU_GENERATIONS as TPU_GENERATIONS
from keras_tpu_ext.machine.tpu_table import TpuGeneration as TpuGeneration
from keras_tpu_ext.machine.tpu_table import generation_of_device as generation_of_device
from keras_tpu_ext.machine.tpu_table import parse_accelerator_type as parse_accelerator_type
from keras_tpu_ext.output.display import HtmlSentence, counted

__all__ = [
    "TpuAddress",
    "TPU_GENERATIONS",
    "TpuGeneration",
    "generation_of_device",
    "parse_accelerator_type",
    "Hardware",
    "detect",
    "find_tpu",
]

_NVIDIA_FOLDER = "proc/driver/nvidia/gpus"
# NVIDIA GPUs by name, and whether they compute in bfloat16. The order matters: "RTX 2000 Ada" is not RTX 20 series,
# and "Quadro RTX 4000" is not RTX 40 series.
_GPU_BFLOAT16 = (
    (re.compile(r"\b(?:Ada|Blackwell|RTX 2050|RTX A\d{3,4})\b", re.IGNORECASE), True),
    (re.compile(r"\b(?:A2|A10G?|A16|A30X?|A40|A100X?|A800|L4|L20|L40[SG]?)\b", re.IGNORECASE), True),
    (re.compile(r"\b(?:H20|H100|H200|H800|GH200|B100|B200|B300|GB10|GB200|GB300)\b", re.IGNORECASE), True),
    (re.compile(r"\b(?:Quadro|TITAN|GTX|RTX 20[678]0)\b", re.IGNORECASE), False),
    (re.compile(r"\b(?:K10|K20[XMCS]*|K40[MCS]?|K80|K520|M4|M6|M10|M40|M60)\b", re.IGNORECASE), False),
    (re.compile(r"\b(?:P4|P6|P40|P100|V100[SDLX]*|T4G?)\b", re.IGNORECASE), False),
    (re.compile(r"\bRTX [345]0\d0\b", re.IGNORECASE), True),
)


@dataclass(frozen=True)
class Hardware(HtmlSentence):
    """The hardware that a program would run on.

    Args:
        kind: `"tpu"`, `"gpu"` or `"cpu"`.
        num_devices: Devices as a framework counts them, for a TPU those of the whole slice; `None` if unknown.
        name: Name to show, such as `"TPU v5e-8"`, `"NVIDIA A100-SXM4-40GB"` or `"CPU, 8 cores"`.
        generation: The TPU generation; `None` for other hardware, or if unknown.
        supports_bfloat16: Whether it computes in bfloat16; `None` if unknown.
        found_by: Where it was found, such as `"TPU_ACCELERATOR_TYPE=v5litepod-8"` or `"/dev/accel0"`.

    Example:
        ```python
        import keras_tpu_ext as kte

        hardware = kte.hardware.detect()
        print(hardware.kind, hardware.name, hardware.num_devices, hardware.supports_bfloat16)
        t4 = kte.hardware.Hardware("gpu", 2, "Tesla T4", supports_bfloat16=False)
        print(t4)  # Tesla T4: 2 devices, no bfloat16
        print(kte.precision.recommended_policy(t4))  # mixed_float16
        ```
    """

    kind: Literal["tpu", "gpu", "cpu"]
    num_devices: int | None
    name: str
    generation: TpuGeneration | None = None
    supports_bfloat16: bool | None = None
    found_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = "an unknown number of devices"
        if self.num_devices is not None:
            count = counted(self.num_devices, "device")
        parts = [count]
        if self.supports_bfloat16 is not None:
            parts.append("bfloat16" if self.supports_bfloat16 else "no bfloat16")
        if self.found_by:
            more = f" and {len(self.found_by) - 2} more" if len(self.found_by) > 2 else ""
            parts.append("found by " + ", ".join(self.found_by[:2]) + more)
        return f"{self.name}: {', '.join(parts)}"


def detect(environ: Mapping[str, str] | None = None, root: str | os.PathLike[str] = "/") -> Hardware:
    """Detect the hardware of this machine: a TPU, else a GPU, else the CPU.

    It does not open any device: a TPU held by another process is still found. Unreadable files are ignored.

    Args:
        environ: Environment variables; those of this process by default.
        root: Folder to use as the root of the file system; `"/"` by default.

    Example:
        ```python
        import keras_tpu_ext as kte

        print(kte.hardware.detect())
        print(kte.hardware.detect({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}))  # TPU v5e-8: 8 devices, bfloat16, ...
        ```
    """
    environ = os.environ if environ is None else environ
    return _detect_tpu(environ, root) or _detect_gpu(environ, root) or _detect_cpu(root)


def find_tpu(
    tpu: str | bool = "auto", environ: Mapping[str, str] | None = None, root: str | os.PathLike[str] = "/"
) -> TpuAddress | None:
    """Resolve the user's `tpu` argument to an address; `None` if no TPU is wanted or found.

    Args:
        tpu: `"auto"` (default) looks in `TPU_NAME`, `COLAB_TPU_ADDR`, `TPU_GRPC_URL` and
            `KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`, then for a TPU of this machine; `"local"`, a TPU's name or a `grpc://`
            address is used as it is; `False` means none.
        environ: Environment variables; those of this process by default. Empty values count as unset.
        root: Folder to use as the root of the file system; `"/"` by default.

    Raises:
        ArgumentError: If `tpu` is an empty string, `True` or not a string.

    Example:
        ```python
        import keras_tpu_ext as kte

        print(kte.hardware.find_tpu())  # None where there is no TPU
        found = kte.hardware.find_tpu(environ={"COLAB_TPU_ADDR": "10.0.0.2:8470"})
        print(found.address, "by", found.found_by)
        ```
    """
    if tpu is False:
        return None
    if not isinstance(tpu, str) or not tpu.strip():
        needed = '"auto", "local", a TPU\'s name, a grpc:// address or False'
        write = 'tpu="auto" to look for a TPU, tpu="grpc://10.0.0.2:8470" to name one, or tpu=False to use none'
        raise check.argument_error("strategy_scope", "tpu", needed, repr(tpu), write)
    if tpu.strip() != "auto":
        return TpuAddress(tpu.strip(), found_by=f"tpu={tpu!r}")
    evidence = gather_tpu_evidence(os.environ if environ is None else environ, root)
    if evidence.addresses:
        return evidence.addresses[0]
    return TpuAddress("local", found_by=evidence.local[0]) if evidence.local else None


def _detect_tpu(environ: Mapping[str, str], root: str | os.PathLike[str]) -> Hardware | None:
    evidence = gather_tpu_evidence(environ, root)
    if not evidence.found_by:
        return None
    slices = possible_slices(evidence)
    names = " or ".join(generation.slice_name(chips) for generation, chips in slices)
    # v2 and v3 cannot be told apart by PCI id, but their number of devices is the same.
    counts = {generation.cores_per_chip * chips for generation, chips in slices}
    return Hardware(
        kind="tpu",
        num_devices=counts.pop() if len(counts) == 1 else None,
        name=f"TPU {names}".strip(),
        generation=slices[0][0] if len(slices) == 1 else None,
        supports_bfloat16=True,
        found_by=evidence.found_by,
    )


def _detect_gpu(environ: Mapping[str, str], root: str | os.PathLike[str]) -> Hardware | None:
    devices = system.list_folder(root, "dev")
    nodes = tuple(f"/dev/{name}" for name in devices if re.fullmatch(r"nvidia[0-9]+", name))
    models = _nvidia_models(root)
    others = tuple(f"/dev/{name}" for name in ("dxg", "kfd") if name in devices)
    count = _cuda_visible(environ, len(nodes) or len(models))
    if count == 0 or not (nodes or models or others):
        return None
    if not nodes and not models:
        # Windows (WSL2) and AMD reveal neither a number nor a name without starting the device.
        name = "GPU of the Windows host" if "/dev/dxg" in others else "AMD GPU"
        return Hardware("gpu", None, name, found_by=others)
    kinds = tuple(dict.fromkeys(models))
    return Hardware(
        kind="gpu",
        num_devices=count,
        name=", ".join(kinds) or "NVIDIA GPU",
        supports_bfloat16=_all_support_bfloat16(kinds),
        found_by=nodes + tuple(f"/{_NVIDIA_FOLDER}: {model}" for model in kinds),
    )


def _nvidia_models(root: str | os.PathLike[str]) -> list[str]:
    """Return the name of each GPU that the NVIDIA driver lists."""
    found = []
    for folder in system.list_folder(root, _NVIDIA_FOLDER):
        information = system.read_text(root, f"{_NVIDIA_FOLDER}/{folder}/information")
        match = re.search(r"^Model:(.*)$", information, re.MULTILINE)
        found.append(system.one_line(match[1]) if match else "")
    return [model for model in found if model]


def _all_support_bfloat16(models: tuple[str, ...]) -> bool | None:
    """Whether every GPU does: a mixed machine has one dtype policy, so its oldest GPU decides."""
    verdicts = {_model_supports_bfloat16(model) for model in models}
    if False in verdicts:
        return False
    return True if verdicts == {True} else None


def _model_supports_bfloat16(model: str) -> bool | None:
    """Whether a GPU of this name computes in bfloat16; `None` for an unknown name.

    NVIDIA GPUs do from compute capability 8.0 (Ampere) on. Source: NVIDIA Ampere GPU Architecture Tuning
    Guide, https://docs.nvidia.com/cuda/archive/13.0.0/ampere-tuning-guide/index.html, "Improved Tensor Core
    Operations"; the families are those of https://developer.nvidia.com/cuda-gpus.
    """
    return next((verdict for names, verdict in _GPU_BFLOAT16 if names.search(model)), None)


def _cuda_visible(environ: Mapping[str, str], found: int) -> int | None:
    """Return the number of GPUs in `CUDA_VISIBLE_DEVICES`, up to its first invalid entry; `None` if it is unknown."""
    if not isinstance(environ.get("CUDA_VISIBLE_DEVICES"), str):
        return found or None
    listed = 0
    for entry in environ["CUDA_VISIBLE_DEVICES"].split(","):
        entry = entry.strip()
        beyond = found and re.fullmatch(r"[0-9]{1,6}", entry) and int(entry) >= found
        if not entry or entry.startswith("-") or entry == "NoDevFiles" or beyond:
            break
        listed += 1
    return min(listed, found) if found or not listed else None


def _detect_cpu(root: str | os.PathLike[str]) -> Hardware:
    cores = len(re.findall(r"^processor\s*:", system.read_text(root, "proc/cpuinfo"), re.MULTILINE))
    if not cores and os.fspath(root) == "/":  # macOS and Windows have no /proc
        cores = os.cpu_count() or 0
    name = f"CPU, {counted(cores, 'core')}" if cores else "CPU"
    # Frameworks show one CPU device, however many cores it has.
    return Hardware("cpu", num_devices=1, name=name)


def __dir__() -> list[str]:
    return __all__
