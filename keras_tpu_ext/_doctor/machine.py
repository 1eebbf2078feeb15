"""What a machine tells beside its hardware: what it is, what is installed, and who holds its TPU."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from keras_tpu_ext import _look
from keras_tpu_ext.hardware import Hardware

# What tells a place, by the variables that only it sets.
_PLACES = (
    ("Kaggle", ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE")),
    ("Colab", ("COLAB_RELEASE_TAG", "COLAB_TPU_ADDR", "COLAB_BACKEND_VERSION")),
    ("a pod of Google Kubernetes Engine", ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",)),
)
_PACKAGES = (
    *("keras", "tf-keras", "tensorflow", "tensorflow-cpu", "tensorflow-tpu", "jax", "jaxlib", "libtpu"),
    *("tensorflow-addons", "keras-tpu-ext"),
)
_CHIPS = re.compile(r"/dev/(accel[0-9]+|vfio/[0-9]+)")


class Holder(NamedTuple):
    """A process that holds the TPU of this machine."""

    pid: int
    command: str


def place_of(environ: Mapping[str, str], hardware: Hardware) -> str:
    """Return what machine this is, in words."""
    for name, variables in _PLACES:
        if any(_look.value(environ, variable) for variable in variables):
            return name
    if hardware.kind == "tpu" and any(found.startswith(("/dev/", "PCI")) for found in hardware.found_by):
        return "a Cloud TPU VM"
    return {"tpu": "a machine that reaches a TPU", "gpu": "a machine with a GPU"}.get(
        hardware.kind, "a machine without accelerators"
    )


def installed() -> dict[str, str]:
    """Return the versions of the packages that matter, as far as this Python has them."""
    return {name: version for name in _PACKAGES if (version := _look.version(name)) is not None}


def holders(root: str | os.PathLike[str]) -> list[Holder]:
    """Return the processes that have a chip open, as far as this user may see them; without this process."""
    found = []
    for name in _look.names(root, "proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        folder = f"proc/{name}/fd"
        if any(_CHIPS.fullmatch(_target(root, f"{folder}/{entry}")) for entry in _look.names(root, folder)):
            command = _look.one_line(_look.read(root, f"proc/{name}/cmdline").replace("\0", " "))
            found.append(Holder(int(name), command or "unknown"))
    return found


def _target(root: str | os.PathLike[str], link: str) -> str:
    try:
        return os.readlink(os.path.join(root, link))
    except (OSError, ValueError):
        return ""
