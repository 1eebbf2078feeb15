"""TPU slices by name, such as `"v5e-8"`, and their XLA topologies."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from typing import Any

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.hardware import TPU_GENERATIONS, TpuGeneration, parse_accelerator_type

# Generations with another name in XLA.
_XLA_NAMES = {"7x": "tpu7x"}
_2D_TORUS = ("v2", "v3", "v5e", "v6e")  # the others are 3D
_MEGACORE = ("v4",)  # the topology must ask for it
_SINGLE_CHIP = ("v5e", "v6e")  # also sold as one chip
_WRITE = 'Write target="v5e-8", or v2-8, v3-8, v4-8, v5p-8, v6e-8, 7x-8, or a pod such as "v5e-256".'


@dataclasses.dataclass(frozen=True)
class Target:
    """A TPU slice to compile for."""

    name: str  # name such as `"v5e-8"`
    generation: TpuGeneration  # TPU generation
    chips: int  # number of chips
    topology: str  # XLA's name, such as `"v5e:2x4"`
    # Fraction of a chip's links that a ring over the slice uses: two along an axis that is closed, one along an open
    # axis, none along an axis of one chip.
    used_links: float = 1.0
    topology_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # further options for XLA's topology

    @property
    def is_cpu(self) -> bool:
        """Whether it is this machine's CPU, for which there is no estimate of time."""
        return self.topology == "cpu"

    @property
    def devices(self) -> int:
        """Number of devices as a framework counts them, each of which is a replica."""
        return self.chips * self.generation.cores_per_chip

    @property
    def link_bandwidth(self) -> float:
        """Rate at which a chip sends to one of its four or six neighbours, in bytes/s."""
        return self.generation.ici_bandwidth / (4 if self.generation.name in _2D_TORUS else 6)


def parse_target(name: str) -> Target:
    """Parse the name of a TPU slice; the number in it counts TensorCores, as in Google's names."""
    text = name.strip().lower() if isinstance(name, str) else ""
    if (cpu := re.fullmatch(r"cpu(?:-([1-9]\d{0,3}))?", text)) is not None:
        return _cpu(int(cpu[1] or 1))
    if text.removeprefix("tpu").removeprefix("v") == "7x":
        text = "7x-8"  # one host
    found = parse_accelerator_type(text)
    if found is None:
        known = ", ".join(TPU_GENERATIONS)
        near = next((f"{one}-{text.removeprefix(one)}" for one in TPU_GENERATIONS if text.startswith(one)), "")
        write = f'Write target="{near}".' if parse_accelerator_type(near) else _WRITE
        raise ArgumentError(f"There is no TPU slice {name!r}; the generations are {known}. {write}")
    generation, chips = found
    shape = _torus_shape(generation, chips)
    if shape is None:
        cores = generation.tensorcores_per_chip
        sizes = [f"{generation.name}-{2**i * cores}" for i in range(14) if _torus_shape(generation, 2**i)]
        known = ", ".join(sizes)
        raise ArgumentError(
            f'There is no slice {name!r}: {generation.name} comes as {known}. Write target="{sizes[-1]}".'
        )
    topology = f"{_XLA_NAMES.get(generation.name, generation.name)}:{'x'.join(map(str, shape))}"
    options: dict[str, Any] = {}
    if chips < 4 or (chips == 8 and generation.name in _SINGLE_CHIP):
        options["chips_per_host_bounds"] = [*shape, 1, 1][:3]  # on one host, as at Kaggle; others have four to a host
    if generation.name in _MEGACORE:
        options["chip_config_name"] = "megacore"  # two cores are one device, as in JAX
    links = _used_links(generation, shape)
    return Target(generation.slice_name(chips), generation, chips, topology, links, options)


def _cpu(devices: int) -> Target:
    """Return this machine's CPU as a slice; it has memory, and none of the rates of which a time is estimated."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // devices
    generation = TpuGeneration("cpu", 0.0, memory, 0.0, 1, 1, devices, 0.0, 0.0, memory, source="")
    return Target(f"cpu-{devices}", generation, devices, "cpu")


def _used_links(generation: TpuGeneration, shape: tuple[int, ...]) -> float:
    """Return the fraction of its links that a chip uses in rings over a slice of this shape.

    The axes are rings in a whole pod with two dimensions, and in slices of at least 4x4x4 with three.
    Source: https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm.
    """
    closed = math.prod(shape) == generation.pod_chips if len(shape) == 2 else min(shape) >= 4
    links = sum(2 if closed else 1 for size in shape if size > 1)
    return links / (2 * len(shape))


def _torus_shape(generation: TpuGeneration, chips: int) -> tuple[int, ...] | None:
    """Return the shape of the torus of a slice, as square as possible; `None` if there is no such slice."""
    exponent = chips.bit_length() - 1
    if chips != 2**exponent or chips > generation.pod_chips:
        return None
    if generation.name in _2D_TORUS:
        if chips < 4 and (chips > 1 or generation.name not in _SINGLE_CHIP):
            return None
        return (2 ** (exponent // 2), 2 ** math.ceil(exponent / 2))
    if chips < 4:
        return None
    if chips == 4:
        return (2, 2, 1)
    return tuple(sorted(2 ** (exponent // 3 + (i < exponent % 3)) for i in range(3)))
