"""The peaks of NVIDIA's GPUs, by the names that drivers and frameworks have for them."""

import pytest

from keras_tpu_ext.callbacks._mfu import device_peak
from keras_tpu_ext.machine.gpu_table import gpu_peak

pytestmark = pytest.mark.gate_on("keras3_jax")
KNOWN = {
    "Tesla P100-PCIE-16GB": 18.7,
    "Tesla P100-SXM2-16GB": 21.2,
    "Tesla V100-SXM2-16GB": 125,
    "Tesla V100-PCIE-32GB": 112,
    "Tesla T4": 65,
    "NVIDIA A10": 125,
    "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "A100-SXM4-40GB": 312,
    "NVIDIA GeForce RTX 3090": 71,
    "GeForce RTX 3090": 71,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA L4": 121,
    "NVIDIA L40S": 362.05,
    "NVIDIA H100 80GB HBM3": 989.5,
    "NVIDIA H100 PCIe": 756.5,
    "NVIDIA H200": 989.5,
    "NVIDIA B200": 2250,
}
UNKNOWN = """NVIDIA A100-SXM4-40GB MIG 1g.5gb, NVIDIA GeForce RTX 4090 Laptop GPU, NVIDIA A10G, NVIDIA L40,
NVIDIA GB200, NVIDIA H100 NVL, NVIDIA GeForce RTX 3090 Ti, NVIDIA T4G, AMD Instinct MI300X, cpu, TPU v3, GPU"""


@pytest.mark.parametrize(("name", "tera"), KNOWN.items())
def test_a_known_gpu_has_a_peak_and_its_data_sheet(name, tera):
    found = gpu_peak(name)
    assert found.flops == pytest.approx(tera * 1e12)
    assert found.source.startswith(("https://www.nvidia.com/", "https://images.nvidia.com/"))
    assert (found.dtype == "float16") is name.startswith("Tesla")
    assert device_peak(name).flops == found.flops


@pytest.mark.parametrize("name", UNKNOWN.replace("\n", " ").split(", "))
def test_another_device_has_none(name):
    assert gpu_peak(name) is None
