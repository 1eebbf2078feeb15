"""The table of NVIDIA's GPUs, with the peaks of its own data sheets."""

from __future__ import annotations

import re
from typing import NamedTuple

_TERA = 1e12


class GpuPeak(NamedTuple):
    """The highest rate of matrix products of a GPU, without sparsity.

    Attributes:
        flops: FLOP/s in `dtype`, accumulated in float32.
        dtype: `"bfloat16"`, or `"float16"` for a GPU that has no bfloat16 units.
        source: NVIDIA's data sheet.
    """

    flops: float
    dtype: str
    source: str


_SITE = "https://www.nvidia.com/"
_DATA_CENTER = f"{_SITE}content/dam/en-zz/Solutions/Data-Center/"
_IMAGES = "https://images.nvidia.com/"
_SOURCES = {
    "P100": f"{_IMAGES}content/tesla/pdf/nvidia-tesla-p100-datasheet.pdf",
    "P100-PCIE": f"{_IMAGES}content/tesla/pdf/nvidia-tesla-p100-PCIe-datasheet.pdf",
    "V100": f"{_IMAGES}content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    "T4": f"{_DATA_CENTER}tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    "A100": f"{_DATA_CENTER}a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    "A10": f"{_DATA_CENTER}a10/pdf/a10-datasheet.pdf",
    "RTX-3090": f"{_SITE}content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    "RTX-4090": f"{_IMAGES}aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    "L4": f"{_SITE}en-us/data-center/l4/",
    "L40S": f"{_SITE}en-us/data-center/l40s/",
    "H100": f"{_SITE}en-us/data-center/h100/",
    "H200": f"{_SITE}en-us/data-center/h200/",
    "B200": f"{_SITE}en-us/data-center/hgx/",
}
# Where a sheet gives the rate with sparsity only, half of it. The names are those of the driver, with "-" for a blank
# and without the maker's. A part of a GPU ("MIG 1g.5gb"), a laptop's and any other name is not known.
_FIGURES = """
source     TFLOP/s  dtype     name
P100          21.2  float16   P100-SXM2-16GB
P100-PCIE     18.7  float16   P100-PCIE-1[26]GB
V100         125    float16   V100-SXM[23]-(16|32)GB
V100         112    float16   V100-PCIE-(16|32)GB
V100         130    float16   V100S-PCIE-32GB
T4            65    float16   T4
A100         312    bfloat16  A100-(SXM4|SXM|PCIE)-[48]0GB|A100-80GB-PCIe
A10          125    bfloat16  A10
RTX-3090      71    bfloat16  RTX-3090
RTX-4090     165.2  bfloat16  RTX-4090
L4           121    bfloat16  L4
L40S         362.05 bfloat16  L40S
H100         989.5  bfloat16  H100-80GB-HBM3
H100         756.5  bfloat16  H100-PCIe
H200         989.5  bfloat16  H200
B200        2250    bfloat16  B200
"""
_ROWS = [row.split(maxsplit=3) for row in _FIGURES.strip().splitlines()[1:]]
_MAKER = re.compile(r"NVIDIA |Tesla |GeForce ")


def gpu_peak(name: str) -> GpuPeak | None:
    """Return the peak of a GPU by the driver's name, such as `"NVIDIA A100-SXM4-40GB"`; `None` for an unknown one."""
    short = _MAKER.sub("", name.strip()).replace(" ", "-")
    for source, peak, dtype, names in _ROWS:
        if re.fullmatch(names, short):
            return GpuPeak(float(peak) * _TERA, dtype, _SOURCES[source])
    return None
