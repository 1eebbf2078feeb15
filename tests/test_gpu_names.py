"""Names of GPUs, as NVIDIA's driver writes them, and whether each computes in bfloat16."""

import pytest

from keras_tpu_ext.hardware import _model_supports_bfloat16

pytestmark = pytest.mark.gate_on("keras3_jax")

BEFORE_AMPERE = """
    Tesla K80, Tesla P4, Tesla P40, Tesla P100-PCIE-16GB, Tesla V100-SXM2-32GB, Tesla T4, NVIDIA T4G,
    Tesla M60, GeForce GTX 970, NVIDIA GeForce GTX 1080 Ti, NVIDIA GeForce GTX 1660 SUPER,
    NVIDIA GeForce RTX 2080 Ti, NVIDIA GeForce RTX 2060 SUPER, Quadro RTX 4000, Quadro RTX 8000,
    Quadro P2000, NVIDIA TITAN V, TITAN Xp, TITAN RTX, GRID V100D-8Q
"""
AMPERE_AND_LATER = """
    NVIDIA A100-SXM4-40GB, NVIDIA A100-SXM4-40GB MIG 1g.5gb, NVIDIA A10, NVIDIA A10G, NVIDIA A30, NVIDIA A40,
    NVIDIA A2, NVIDIA A16, NVIDIA L4, NVIDIA L40, NVIDIA L40S, NVIDIA H100 80GB HBM3, NVIDIA H200,
    NVIDIA B200, NVIDIA GH200 480GB, NVIDIA GB200, NVIDIA H20, NVIDIA A800-SXM4-80GB, NVIDIA GeForce RTX 3090,
    NVIDIA GeForce RTX 4070 Laptop GPU, NVIDIA GeForce RTX 5090, NVIDIA GeForce RTX 2050, NVIDIA RTX A2000,
    NVIDIA RTX A6000, NVIDIA RTX 2000 Ada Generation, NVIDIA RTX 4000 SFF Ada Generation,
    NVIDIA RTX PRO 6000 Blackwell Workstation Edition
"""
NOT_KNOWN = "NVIDIA GeForce MX450, NVIDIA T1000, NVIDIA Graphics Device, AMD Instinct MI300X, Unknown"
EXPECTED = {
    model.strip(): verdict
    for models, verdict in ((BEFORE_AMPERE, False), (AMPERE_AND_LATER, True), (NOT_KNOWN, None))
    for model in models.split(",")
}


@pytest.mark.parametrize(("model", "verdict"), EXPECTED.items())
def test_bfloat16_by_model(model, verdict):
    assert _model_supports_bfloat16(model) is verdict
