"""What can be compiled for: TPU slices by the names that users know, `"v5e-8"` say."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.hardware import TPU_GENERATIONS, TpuGeneration, parse_accelerator_type

# How XLA calls the generations in the name of a topology.
_PREFIX = {"7x": "tpu7x"}
_FLAT = ("v2", "v3", "v5e", "v6e")  # chips in a 2D grid; those of the others are in a 3D one
# Sums that a SparseCore takes over come back in a form that jaxlib 0.10.2 cannot read; so the TensorCore takes them.
_FLAGS = {"7x": "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=false"}
_MEGACORE = ("v4",)  # where that has to be said
_SINGLE = ("v5e", "v6e")  # which come as a single chip too
_WRITE = 'Write target="v5e-8", or v2-8, v3-8, v4-8, v5p-8, v6e-8, 7x-8, or a pod such as "v5e-256".'


@dataclasses.dataclass(frozen=True)
class Target:
    """A TPU slice to compile for.

    Attributes:
        name: Such as `"v5e-8"`.
        generation: Its TPU generation.
        chips: Number of chips.
        topology: What XLA calls it, such as `"v5e:2x4"`.
        topology_options: What else has to be said for it.
        flags: Flags of the compiler's, before those of the user's own `LIBTPU_INIT_ARGS`.
    """

    name: str
    generation: TpuGeneration
    chips: int
    topology: str
    topology_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    flags: str = ""

    @property
    def devices(self) -> int:
        """Number of devices as a framework sees them, which is that of replicas."""
        return self.chips * self.generation.cores_per_chip


def parse_target(name: str) -> Target:
    """Return the slice of that name; the number counts TensorCores, as in Google's own names.

    Raises:
        ArgumentError: If there is no such slice, or not in this size.
    """
    text = name.strip().lower() if isinstance(name, str) else ""
    if text.removeprefix("tpu").removeprefix("v") == "7x":
        text = "7x-8"  # one host
    found = parse_accelerator_type(text)
    if found is None:
        known = ", ".join(TPU_GENERATIONS)
        raise ArgumentError(f"There is no TPU slice {name!r}; the generations are {known}. {_WRITE}")
    generation, chips = found
    grid = _grid(generation, chips)
    if grid is None:
        cores = generation.tensorcores_per_chip
        sizes = ", ".join(f"{generation.name}-{2**i * cores}" for i in range(14) if _grid(generation, 2**i))
        raise ArgumentError(f"There is no slice {name!r}: {generation.name} comes as {sizes}. {_WRITE}")
    topology = f"{_PREFIX.get(generation.name, generation.name)}:{'x'.join(map(str, grid))}"
    options: dict[str, Any] = {} if chips >= 4 else {"chips_per_host_bounds": [*grid, 1, 1][:3]}
    if generation.name in _MEGACORE:
        options["chip_config_name"] = "megacore"  # the two cores of a chip as one device, as JAX has them
    return Target(generation.slice_name(chips), generation, chips, topology, options, _FLAGS.get(generation.name, ""))


def _grid(generation: TpuGeneration, chips: int) -> tuple[int, ...] | None:
    """Return the grid of a slice of so many chips, the squarest that there is; `None` where there is none."""
    exponent = chips.bit_length() - 1
    if chips != 2**exponent or chips > generation.pod_chips:
        return None
    if generation.name in _FLAT:
        if chips < 4 and (chips > 1 or generation.name not in _SINGLE):
            return None
        return (2 ** (exponent // 2), 2 ** math.ceil(exponent / 2))
    if chips < 4:
        return None
    if chips == 4:
        return (2, 2, 1)
    return tuple(sorted(2 ** (exponent // 3 + (i < exponent % 3)) for i in range(3)))
