"""Evidence of a TPU: environment variables, device files and PCI ids."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from keras_tpu_ext.machine import system
from keras_tpu_ext.machine.tpu_table import TPU_GENERATIONS, TpuGeneration, parse_accelerator_type

_GOOGLE_PCI_VENDOR = "0x1ae0"
# Source: jax/_src/hardware_utils.py. v2 and v3 share one id. Google's network cards and disks have the same
# vendor and must not be taken for a TPU, so only these ids count.
_TPU_PCI_IDS: Mapping[str, tuple[str, ...]] = {
    "0x0027": ("v2", "v3"),
    "0x005e": ("v4",),
    "0x0062": ("v5p",),
    "0x0063": ("v5e",),
    "0x006f": ("v6e",),
    "0x0076": ("7x",),
}
# In the order in which `find_tpu` trusts them. A list in the last one is kept whole: TensorFlow's
# TPUClusterResolver splits it at the commas, and its first entry alone would lose the other workers.
_ADDRESS_VARIABLES = ("TPU_NAME", "COLAB_TPU_ADDR", "TPU_GRPC_URL", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
# What the drop-in puts into COLAB_TPU_ADDR, for programs that read it: the TPU is in this machine.
DROPIN_ADDRESS = "localhost:8470"
_LOCAL_VARIABLES = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_ID")


@dataclass(frozen=True)
class TpuAddress:
    """The address of a TPU.

    Args:
        address: `"local"`, a TPU's name, or a `grpc://` address, as `TPUClusterResolver(tpu=...)` takes it.
        found_by: Where the address comes from, such as `"TPU_NAME=local"`.

    Example:
        ```python
        import keras_tpu_ext as kte

        found = kte.hardware.find_tpu("grpc://10.0.0.2:8470")
        print(found.address)  # grpc://10.0.0.2:8470
        print(found.found_by)  # tpu='grpc://10.0.0.2:8470'
        ```
    """

    address: str
    found_by: str


@dataclass(frozen=True)
class TpuEvidence:
    """Every trace of a TPU: addresses from the environment, local traces, and one PCI id per local chip."""

    addresses: tuple[TpuAddress, ...]
    local: tuple[str, ...]
    accelerator_type: str
    pci_ids: tuple[str, ...]

    @property
    def found_by(self) -> tuple[str, ...]:
        """The source of each trace, addresses first."""
        return tuple(address.found_by for address in self.addresses) + self.local


def gather_tpu_evidence(environ: Mapping[str, str], root: str | os.PathLike[str]) -> TpuEvidence:
    """Gather every trace of a TPU; the only source of `detect` and `find_tpu`."""
    addresses = []
    for variable in _ADDRESS_VARIABLES:
        value = system.get_variable(environ, variable)
        if value and value != DROPIN_ADDRESS:
            wants_scheme = variable == "COLAB_TPU_ADDR" and "://" not in value
            address = f"grpc://{value}" if wants_scheme else value
            addresses.append(TpuAddress(address, found_by=system.one_line(f"{variable}={value}")))
    stated = {name: system.get_variable(environ, name) for name in _LOCAL_VARIABLES}
    local = [system.one_line(f"{name}={value}") for name, value in stated.items() if value]
    # The folder /dev/accel belongs to other makers' accelerators; only a TPU has /dev/accel0 itself.
    local += [f"/dev/{name}" for name in system.list_folder(root, "dev") if re.fullmatch(r"accel[0-9]+", name)]
    pci_ids = _tpu_pci_ids(root)
    local += [f"PCI {_GOOGLE_PCI_VENDOR}:{pci_id}" for pci_id in dict.fromkeys(pci_ids)]
    if addresses or local:  # other hardware uses vfio too, so alone it proves nothing
        groups = [name for name in system.list_folder(root, "dev/vfio") if re.fullmatch(r"[0-9]+", name)]
        local += [f"/dev/vfio/{name}" for name in groups]
    return TpuEvidence(tuple(addresses), tuple(local), stated["TPU_ACCELERATOR_TYPE"], pci_ids)


def _tpu_pci_ids(root: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the PCI device id of each TPU chip of this machine."""
    folder = "sys/bus/pci/devices"
    ids = []
    for name in system.list_folder(root, folder):
        if system.read_text(root, f"{folder}/{name}/vendor").strip() == _GOOGLE_PCI_VENDOR:
            ids.append(system.read_text(root, f"{folder}/{name}/device").strip())
    return tuple(pci_id for pci_id in ids if pci_id in _TPU_PCI_IDS)


def possible_slices(evidence: TpuEvidence) -> tuple[tuple[TpuGeneration, int], ...]:
    """Return the generations, each with its number of chips, that fit the evidence; empty if there is none."""
    stated = parse_accelerator_type(evidence.accelerator_type)
    seen = _TPU_PCI_IDS[evidence.pci_ids[0]] if evidence.pci_ids else ()
    # The chip itself takes precedence over the variable, which container images set once for all machines. If both
    # agree, the variable is used, because it also counts the chips of the other hosts.
    if stated and (not seen or stated[0].name in seen):
        return (stated,)
    return tuple((TPU_GENERATIONS[name], len(evidence.pci_ids)) for name in seen)
