"""The cost of a Pallas kernel: from the estimate that it carries, or from what JAX's attention kernel does."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from keras_tpu_ext.preflight._hlo.module import Instruction
from keras_tpu_ext.preflight._hlo.shape import Shape

_TARGET = 'custom_call_target="tpu_custom_call"'
_SPLASH = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)_")
# Number of products with the keys' and with the values' depth in each pass: backward passes recompute the scores.
_PRODUCTS: Mapping[str, tuple[int, int]] = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2)}
# The name that `_runtime/jax/splash.py` gives the part of the blocks that a mask leaves.
_BLOCKS = re.compile(r"\bblocks_(\d+)_of_(\d+)\b")
_QUERY, _KEY, _VALUE = range(3)


class KernelCost(NamedTuple):
    """The work of one run of a kernel on one device."""

    flops: float  # FLOPs of its products
    padded_flops: float  # the same with depths padded to the width of the matrix units
    # `"estimate"` for the kernel's own, `"products"` for what it does, `"bytes"` if neither is known.
    source: Literal["estimate", "products", "bytes"]


def is_kernel(instruction: Instruction) -> bool:
    """Return whether an instruction is a Pallas kernel."""
    return instruction.opcode == "custom-call" and _TARGET in instruction.attributes


def kernel_cost(instruction: Instruction, operands: Sequence[Shape], matrix_unit: int) -> KernelCost:
    """Return the cost of a Pallas kernel."""
    estimate = instruction.backend_config.get("custom_call_config", {}).get("cost_estimate")
    if estimate:
        flops = float(estimate.get("flops", 0))
        return KernelCost(flops, flops, "estimate")
    found = _SPLASH.search(instruction.name)
    arrays = [shape.dimensions for shape in operands if len(shape.dimensions) >= 3 and shape.dtype in ("f32", "bf16")]
    if found is None or len(arrays) <= _VALUE:
        return KernelCost(0.0, 0.0, "bytes")
    scores = math.prod(arrays[_QUERY][:-1]) * arrays[_KEY][-2] * _visited(instruction)
    of_keys, of_values = _PRODUCTS[found[1]]
    depths = arrays[_KEY][-1], arrays[_VALUE][-1]

    def flops_for(keys: int, values: int) -> float:
        return 2.0 * scores * (of_keys * keys + of_values * values)

    padded = (math.ceil(depth / matrix_unit) * matrix_unit for depth in depths)
    return KernelCost(flops_for(*depths), flops_for(*padded), "products")


def _visited(instruction: Instruction) -> float:
    """Return the fraction of all blocks that the kernel visits; 1 if unknown."""
    found = _BLOCKS.search(instruction.op_name)
    return int(found[1]) / int(found[2]) if found else 1.0
