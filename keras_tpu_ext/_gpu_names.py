"""What the name of an NVIDIA GPU tells about bfloat16."""

from __future__ import annotations

import re

# The order matters: "RTX 2000 Ada" is no RTX 20 series, and "Quadro RTX 4000" no RTX 40 series.
_VERDICTS = (
    (re.compile(r"\b(?:Ada|Blackwell|RTX 2050|RTX A\d{3,4})\b", re.IGNORECASE), True),
    (re.compile(r"\b(?:A2|A10G?|A16|A30X?|A40|A100X?|A800|L4|L20|L40[SG]?)\b", re.IGNORECASE), True),
    (re.compile(r"\b(?:H20|H100|H200|H800|GH200|B100|B200|B300|GB10|GB200|GB300)\b", re.IGNORECASE), True),
    (re.compile(r"\b(?:Quadro|TITAN|GTX|RTX 20[678]0)\b", re.IGNORECASE), False),
    (re.compile(r"\b(?:K10|K20[XMCS]*|K40[MCS]?|K80|K520|M4|M6|M10|M40|M60)\b", re.IGNORECASE), False),
    (re.compile(r"\b(?:P4|P6|P40|P100|V100[SDLX]*|T4G?)\b", re.IGNORECASE), False),
    (re.compile(r"\bRTX [345]0\d0\b", re.IGNORECASE), True),
)


def model_supports_bfloat16(model: str) -> bool | None:
    """Whether a GPU of this name computes in bfloat16; `None` for a name that is not known.

    NVIDIA GPUs do from compute capability 8.0 (Ampere) on. Source: NVIDIA Ampere GPU Architecture Tuning
    Guide, https://docs.nvidia.com/cuda/archive/13.0.0/ampere-tuning-guide/index.html, "Improved Tensor Core
    Operations"; the families are those of https://developer.nvidia.com/cuda-gpus.

    Args:
        model: The name as the driver gives it, such as `"NVIDIA A100-SXM4-40GB"` or `"Tesla T4"`.
    """
    return next((verdict for names, verdict in _VERDICTS if names.search(model)), None)
