"""FLOPs of dots and convolutions, and of Pallas kernels; the TPU compiler makes most dots convolutions."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keras_tpu_ext.preflight._hlo.kernel_schedule import Visits
from keras_tpu_ext.preflight._hlo.module import Instruction
from keras_tpu_ext.preflight._hlo.shape import Shape

_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_GROUPS = re.compile(r"(feature|batch)_group_count=(\d+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
KERNEL = 'custom_call_target="tpu_custom_call"'
_SPLASH = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)_")
# Number of products with the keys' and with the values' depth in each pass: backward passes recompute the scores.
_PRODUCTS: Mapping[str, tuple[int, int]] = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2), "fused": (3, 2)}
# How `_runtime/jax/splash.py` names the part of the blocks that a mask needs, and the number of their rows.
_BLOCKS = re.compile(r"\bblocks_(\d+)_of_(\d+)_in_(\d+)\b")
_QUERY, _KEY, _VALUE = range(3)


def flops_of(instruction: Instruction, shapes: Mapping[str, Shape]) -> float:
    """Return the FLOPs of a convolution or a dot, two per multiply-add; 0 for other instructions."""
    if instruction.opcode == "convolution":
        return _convolution_flops(instruction, *(shapes[name] for name in instruction.operands[:2]))
    if instruction.opcode == "dot":
        lhs = shapes[instruction.operands[0]]
        contracted = _CONTRACTED.search(instruction.attributes)
        depth = math.prod(lhs.dimensions[int(i)] for i in contracted[1].split(",") if i) if contracted else 1
        return 2.0 * math.prod(instruction.shape.dimensions) * depth
    return 0.0


def _convolution_flops(instruction: Instruction, lhs: Shape, rhs: Shape) -> float:
    """Return two FLOPs per multiply-add with an input, none for padding, as xla/service/hlo_cost_analysis.cc does."""
    labels = _LABELS.search(instruction.attributes)
    if labels is None:
        return 0.0
    lhs_labels, rhs_labels, output_labels = labels.groups()
    output = instruction.shape
    groups = {name: int(count) for name, count in _GROUPS.findall(instruction.attributes)}
    window = _window(instruction.attributes)
    positions = 1
    for i in range(len(lhs_labels) - 2):
        label = str(i)
        sizes = (
            lhs.dimensions[lhs_labels.index(label)],
            rhs.dimensions[rhs_labels.index(label)],
            output.dimensions[output_labels.index(label)],
        )
        positions *= _valid_positions(*sizes, {name: values[i] for name, values in window.items() if i < len(values)})
    batch = lhs.dimensions[lhs_labels.index("b")] // groups.get("batch", 1)
    features = output.dimensions[output_labels.index("f")] * rhs.dimensions[rhs_labels.index("i")]
    return 2.0 * batch * features * positions


def _window(attributes: str) -> dict[str, list[str]]:
    found = _WINDOW.search(attributes)
    pairs = (part.split("=", 1) for part in found[1].split()) if found else ()
    return {name: value.split("x") for name, value in pairs}


def _valid_positions(size: int, kernel: int, output: int, window: Mapping[str, str]) -> int:
    """Return the number of pairs of an output and a kernel position that read an input, in one dimension."""
    stride, lhs_dilation, rhs_dilation = (int(window.get(name, 1)) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    low = int(window.get("pad", "0_0").split("_")[0])
    dilated = (size - 1) * lhs_dilation + 1
    count = 0
    for position in range(kernel):
        first = position * rhs_dilation - low
        if lhs_dilation == 1:
            # Outputs o with 0 <= o * stride + first < size.
            begin = max(0, -(first // stride))
            end = min(output, -(-(size - first) // stride))
            count += max(0, end - begin)
        else:
            reads = (first + o * stride for o in range(output))
            count += sum(0 <= read < dilated and not read % lhs_dilation for read in reads)
    return count


class KernelFlops(NamedTuple):
    """The work of one run of a kernel on one device."""

    flops: float  # FLOPs of its products
    padded: float  # the same with depths padded to the width of the matrix units


def is_kernel(instruction: Instruction) -> bool:
    """Return whether an instruction is a Pallas kernel."""
    return instruction.opcode == "custom-call" and KERNEL in instruction.attributes


def kernel_flops(instruction: Instruction, operands: Sequence[Shape], matrix_unit: int) -> KernelFlops:
    """Return the FLOPs that a Pallas kernel states, or those of JAX's attention kernel; 0 for any other."""
    estimate = instruction.backend_config.get("custom_call_config", {}).get("cost_estimate")
    if estimate:
        flops = float(estimate.get("flops", 0))
        return KernelFlops(flops, flops)
    found = _SPLASH.search(instruction.name)
    arrays = [shape.dimensions for shape in operands if len(shape.dimensions) >= 3 and shape.dtype in ("f32", "bf16")]
    if found is None or len(arrays) <= _VALUE:
        return KernelFlops(0.0, 0.0)
    scores = math.prod(arrays[_QUERY][:-1]) * arrays[_KEY][-2] * visits_of(instruction).products
    # The gradients of queries, for each row of blocks: then one kernel computes all gradients.
    is_fused = any(len(leaf.dimensions) > len(arrays[_KEY]) for leaf in instruction.shape.leaves())
    of_keys, of_values = _PRODUCTS["fused" if is_fused else found[1]]
    depths = arrays[_KEY][-1], arrays[_VALUE][-1]

    def flops_for(keys: int, values: int) -> float:
        return 2.0 * scores * (of_keys * keys + of_values * values)

    padded = (math.ceil(depth / matrix_unit) * matrix_unit for depth in depths)
    return KernelFlops(flops_for(*depths), flops_for(*padded))


def visits_of(instruction: Instruction) -> Visits:
    """Return how often the conditions of JAX's attention kernel hold; always, if it is another or unknown."""
    found = _BLOCKS.search(instruction.op_name)
    return Visits(int(found[1]) / int(found[2]), int(found[3]) / int(found[2])) if found else Visits()


def digest_of(kernel: str | Instruction) -> str:
    """Return a short name for a kernel: of its body, as the compiler gets it, or of an instruction that runs it."""
    body = kernel if isinstance(kernel, str) else kernel.backend_config.get("custom_call_config", {}).get("body", "")
    return hashlib.sha256(body.encode()).hexdigest()[:32]
