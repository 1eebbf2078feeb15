"""The table of TPU generations, with Google's own figures, and the parser of slice names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_TERA = 1e12
_GIGA = 1e9
_MEGA = 1e6
_GIB = 2**30

_DOCS = "https://docs.cloud.google.com/tpu/docs/"
_CACM = "Jouppi et al., A Domain-Specific Supercomputer, CACM 63(7), 2020, https://doi.org/10.1145/3360307"
_V2_LAUNCH = "https://blog.google/products/google-cloud/google-cloud-offer-tpus-machine-learning/"
_V3_LAUNCH = "https://cloud.google.com/blog/products/ai-machine-learning/googles-scalable-supercomputers-for-machine-learning-cloud-tpu-pods-are-now-publicly-available-in-beta"


@dataclass(frozen=True)
class TpuGeneration:
    """One generation of Google's TPU; figures are per chip unless their name says otherwise.

    Args:
        name: `"v2"`, `"v3"`, `"v4"`, `"v5e"`, `"v5p"`, `"v6e"` or `"7x"`.
        peak_bf16_flops: Highest bfloat16 rate of a chip, in FLOP/s.
        hbm_bytes: High-bandwidth memory of a chip, in bytes.
        hbm_bandwidth: Rate between a chip and its memory, in bytes/s.
        cores_per_chip: Devices that a framework sees per chip. A v4 or v5p chip has two TensorCores
            that work as one device ("megacore"); a v2, v3 or 7x chip shows both of its two.
        tensorcores_per_chip: Physical TensorCores per chip; `v4-8` counts these.
        pod_chips: Chips of a whole pod.
        ici_bandwidth: Rate at which a chip sends to other chips of its slice over all of its links, in bytes/s.
        matrix_unit: Number of rows, and of columns, of each of its matrix units. Source: `mxu_column_size` in JAX's
            jax/_src/pallas/mosaic/tpu_info.py.
        clock_hz: Clock of a core in cycles/s, as assumed by libtpu's compiler: it converts the compiler's cycles to
            seconds. It is the rate that the compiler gives a large product, by the FLOPs that the matrix units do in
            a cycle.
        usable_hbm_bytes_per_core: Bytes of the memory of one framework device that a program may use.
        vector_units: Vector instructions that a TensorCore does in a cycle, each on 8 x 128 numbers, as libtpu writes
            into what it makes of a program.
        source: Where the figures are published.
        announced_peak_bf16_flops: The rate given at launch, in FLOP/s per chip; `None` if it is the same as
            `peak_bf16_flops`.
        note: Where sources differ, and which one was used; empty if they agree.

    Example:
        ```python
        import keras_tpu_ext as kte

        v3 = kte.hardware.TPU_GENERATIONS["v3"]
        print(v3.peak_bf16_flops_per_core / 1e12)  # 61.5 TFLOP/s
        print(v3.hbm_bytes_per_core / 2**30)  # 16.0 GiB
        print(v3.slice_name(chips=4))  # v3-8
        ```
    """

    name: str
    peak_bf16_flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    cores_per_chip: int
    tensorcores_per_chip: int
    pod_chips: int
    ici_bandwidth: float
    clock_hz: float
    usable_hbm_bytes_per_core: int
    source: str
    announced_peak_bf16_flops: float | None = None
    note: str = ""
    matrix_unit: int = 128
    vector_units: int = 4

    @property
    def vector_rate_per_core(self) -> float:
        """Operations on numbers of 32 bits that one framework device does in a second, at most."""
        tensorcores = self.tensorcores_per_chip // self.cores_per_chip
        return tensorcores * self.vector_units * 8 * 128 * self.clock_hz

    @property
    def peak_bf16_flops_per_core(self) -> float:
        """Highest bfloat16 rate of one framework device, in FLOP/s: the divisor of an MFU per device."""
        return self.peak_bf16_flops / self.cores_per_chip

    @property
    def hbm_bytes_per_core(self) -> int:
        """High-bandwidth memory of one framework device, in bytes."""
        return self.hbm_bytes // self.cores_per_chip

    @property
    def hbm_bandwidth_per_core(self) -> float:
        """Rate between one framework device and its memory, in bytes/s."""
        return self.hbm_bandwidth / self.cores_per_chip

    @property
    def device_kind(self) -> str:
        """JAX's name for its devices, such as `"TPU v5 lite"`."""
        return _DEVICE_KINDS.get(self.name, f"TPU {self.name}")

    def slice_name(self, chips: int) -> str:
        """Google's name for a slice of this many chips, such as `"v4-8"` for four chips of v4."""
        return f"{self.name}-{chips * self.tensorcores_per_chip}"


# Per chip: the bfloat16 peak; GiB of memory, and its bandwidth; devices that a framework sees; TensorCores; chips of
# a pod; GB/s to other chips; the clock; GiB that a program may use on a device; rows of a matrix unit; vector units;
# and the peak that was announced.
_FIGURES = """
     TFLOP/s  HBM  GB/s  cores  TensorCores   pod  ICI   MHz  usable  unit  vector  announced
v2        46   16   700      2            2   256  248   700    7.48   128       2         45
v3       123   32   900      2            2  1024  328   940   15.48   128       2        105
v4       275   32  1200      1            2  4096  300  1050   30.75   128       2          -
v5e      197   16   819      1            1   256  200  1500   15.75   128       4          -
v5p      459   95  2765      1            2  8960  600  1500   95.73   128       4          -
v6e      918   32  1638      1            1   256  400  1750   31.24   256       4          -
7x      2307  192  7380      2            2  9216  600  1900   94.74   256       4          -
"""
_SOURCES = {
    "v2": f"{_CACM}; launch: {_V2_LAUNCH}",
    "v3": f"{_DOCS}v3; {_CACM}; launch: {_V3_LAUNCH}",
    "v4": f"{_DOCS}v4",
    "v5e": f"{_DOCS}v5e",
    "v5p": f"{_DOCS}v5p; {_DOCS}tpu7x",
    "v6e": f"{_DOCS}v6e; {_DOCS}tpu7x",
    "7x": f"{_DOCS}tpu7x",
}
_NOTES = {
    "v2": "At launch 180 TFLOP/s and 64 GB per board of four chips, so 45 per chip; the 2020 paper says 46 (2 MXUs x "
    "128 x 128 x 2 FLOP x 700 MHz = 45.9). The later figure is the peak: an MFU against 45 could pass 100 %. A "
    "board's 64 GB are 64 GiB.",
    "v3": "At launch 420 TFLOP/s and 128 GB per board of four chips, so 105 per chip; the documentation and the 2020 "
    "paper say 123 (4 MXUs x 128 x 128 x 2 FLOP x 940 MHz = 123.2). The later figure is the peak: an MFU against "
    "105 could pass 100 %. A board's 128 GB are 128 GiB.",
    "v5e": "The page writes 16 GB for 16 GiB; versions of it say 819 GB/s or 800 GiB/s. 819 GB/s is taken.",
    "v5p": "Older versions of the page write 95 GB; newer ones 95 GiB. The largest job is 6144 chips.",
    "v6e": "The v6e page writes 32 GB, the tpu7x page 32 GiB; the bandwidth was once given as 1640 GB/s.",
    "7x": "The page's table says 192 GiB and 7380 GB/s, its text 192 GB and 7.37 TB/s.",
}


def _generation(row: str) -> TpuGeneration:
    """Return the generation of a row of the table."""
    name, peak, hbm, bandwidth, cores, tensorcores, pod, ici, clock, usable, unit, vector, announced = row.split()
    return TpuGeneration(
        name=name,
        peak_bf16_flops=float(peak) * _TERA,
        hbm_bytes=int(hbm) * _GIB,
        hbm_bandwidth=float(bandwidth) * _GIGA,
        cores_per_chip=int(cores),
        tensorcores_per_chip=int(tensorcores),
        pod_chips=int(pod),
        ici_bandwidth=float(ici) * _GIGA,
        clock_hz=float(clock) * _MEGA,
        usable_hbm_bytes_per_core=int(float(usable) * _GIB),
        source=_SOURCES[name],
        announced_peak_bf16_flops=None if announced == "-" else float(announced) * _TERA,
        note=_NOTES.get(name, ""),
        matrix_unit=int(unit),
        vector_units=int(vector),
    )


_ROWS = map(_generation, _FIGURES.strip("\n").splitlines()[1:])
TPU_GENERATIONS: Mapping[str, TpuGeneration] = MappingProxyType({row.name: row for row in _ROWS})

# Google says "v5litepod" for v5e, and "tpu7x" although every other generation starts with a "v".
_OTHER_NAMES = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "7x"}
_ACCELERATOR_TYPE = re.compile(r"(?:tpu[-_]?)?(v?[0-9][a-z]*)-([0-9]{1,6})", re.ASCII)


def parse_accelerator_type(text: str) -> tuple[TpuGeneration, int] | None:
    """Parse a slice's name, such as `"v3-8"`, `"v5litepod-8"`, `"v5e-8"` or `"tpu7x-8"`.

    The number counts TensorCores, of which a v2, v3, v4, v5p or 7x chip has two and a v5e or v6e chip one.
    Source: https://docs.cloud.google.com/tpu/docs/v3, .../v5p (2x2x1: 8 cores, 4 chips), .../v5e.

    Args:
        text: The name; capitals and surrounding blanks do not matter.

    Returns:
        The generation and the number of chips, or `None` if the text is not such a name.

    Example:
        ```python
        import keras_tpu_ext as kte

        generation, chips = kte.hardware.parse_accelerator_type("v3-8")
        print(generation.name, chips, chips * generation.cores_per_chip)  # v3 4 8
        print(kte.hardware.parse_accelerator_type("a100-8"))  # None
        ```
    """
    match = _ACCELERATOR_TYPE.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if match is None:
        return None
    generation = TPU_GENERATIONS.get(_OTHER_NAMES.get(match[1], match[1]))
    if generation is None:
        return None
    chips, rest = divmod(int(match[2]), generation.tensorcores_per_chip)
    return (generation, chips) if chips and not rest else None


# The names of JAX, less "TPU": https://github.com/jax-ml/jax, jax/_src/pallas/mosaic/tpu_info.py. "lite" is the "e".
_DEVICE_NAMES = {"v5 lite": "v5e", "v5": "v5p", "v6 lite": "v6e", "7x": "7x", "7": "7x", "v7x": "7x"}


_DEVICE_KINDS = {"cpu": "cpu", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "7x": "TPU7x"}


def generation_of_device(name: str) -> TpuGeneration | None:
    """Return the generation of a framework's device name, such as `"TPU v3"`; `None` if it is unknown.

    Example:
        ```python
        import keras_tpu_ext as kte

        generation = kte.hardware.generation_of_device("TPU v5 lite")  # as jax.devices()[0].device_kind is on a v5e
        print(generation.name, generation.peak_bf16_flops / 1e12)  # v5e 197.0
        print(kte.hardware.generation_of_device("cpu"))  # None
        ```
    """
    kind, _, rest = name.strip().lower().partition("tpu")
    rest = rest.strip()
    return None if kind else TPU_GENERATIONS.get(_DEVICE_NAMES.get(rest, rest))


# vCPUs of a virtual machine, by its number of chips. Source: `gcloud compute machine-types list`, as published in
# https://github.com/Cyclenerd/google-cloud-pricing-cost-calculator, tools/machinetypes.csv (ct3-hightpu-4t to
# ct6e-standard-8t). A v2-8 has the machine of a v3-8. A v6e-8 is listed with 180 and with 360, which are two threads
# on each core: 180 is taken. The machines of tpu7x are not in that list.
_VCPUS = {
    "v2": {4: 96},
    "v3": {4: 96},
    "v4": {4: 240},
    "v5e": {1: 24, 4: 112, 8: 224},
    "v5p": {4: 208},
    "v6e": {1: 44, 4: 180, 8: 180},
}


def host_vcpus(generation: str, chips: int) -> int | None:
    """Return the number of vCPUs of all hosts of a slice of a TPU generation; `None` if it is not known.

    Args:
        generation: Name of the generation, such as `"v5e"`.
        chips: Number of chips of the slice.
    """
    machines = _VCPUS.get(generation, {})
    fitting = [size for size in machines if chips % size == 0 and (chips <= 8 or size == 4)]
    return machines[max(fitting)] * (chips // max(fitting)) if fitting else None
