"""FLOPs of the convolutions and products in compiled HLO, where products are convolutions without windows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from keras_tpu_ext.preflight._hlo.module import Instruction
from keras_tpu_ext.preflight._hlo.shape import Shape

_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_GROUPS = re.compile(r"(feature|batch)_group_count=(\d+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def flops_of(instruction: Instruction, shapes: Mapping[str, Shape]) -> float:
    """Return the FLOPs of one instruction, two for each multiply-add; 0 for all but products and convolutions.

    Args:
        instruction: A convolution or a dot.
        shapes: The shapes of what it reads, by name.
    """
    if instruction.opcode == "convolution":
        return _of_convolution(instruction, *(shapes[name] for name in instruction.operands[:2]))
    if instruction.opcode == "dot":
        left = shapes[instruction.operands[0]]
        contracted = _CONTRACTED.search(instruction.attributes)
        depth = math.prod(left.sizes[int(i)] for i in contracted[1].split(",") if i) if contracted else 1
        return 2.0 * math.prod(instruction.shape.sizes) * depth
    return 0.0


def _of_convolution(instruction: Instruction, left: Shape, right: Shape) -> float:
    """Return two FLOPs for each pair of an output and a kernel position that meets an input, and no padding.

    So counts XLA's own analysis: xla/service/hlo_cost_analysis.cc.
    """
    labels = _LABELS.search(instruction.attributes)
    if labels is None:
        return 0.0
    of_left, of_right, of_output = labels.groups()
    output = instruction.shape
    groups = {name: int(count) for name, count in _GROUPS.findall(instruction.attributes)}
    window = _window(instruction.attributes)
    pairs = 1
    for i in range(len(of_left) - 2):
        label = str(i)
        here = {name: values[i] for name, values in window.items() if i < len(values)}
        sizes = (
            left.sizes[of_left.index(label)],
            right.sizes[of_right.index(label)],
            output.sizes[of_output.index(label)],
        )
        pairs *= _pairs(*sizes, here)
    batch = left.sizes[of_left.index("b")] // groups.get("batch", 1)
    return 2.0 * batch * output.sizes[of_output.index("f")] * right.sizes[of_right.index("i")] * pairs


def _window(attributes: str) -> dict[str, list[str]]:
    found = _WINDOW.search(attributes)
    pairs = (part.split("=", 1) for part in found[1].split()) if found else ()
    return {name: value.split("x") for name, value in pairs}


def _pairs(size: int, kernel: int, output: int, window: Mapping[str, str]) -> int:
    """Return how many pairs of an output and a kernel position meet an input, in one dimension."""
    stride, left_dilation, right_dilation = (
        int(window.get(name, 1)) for name in ("stride", "lhs_dilate", "rhs_dilate")
    )
    low = int(window.get("pad", "0_0").split("_")[0])
    dilated = (size - 1) * left_dilation + 1
    count = 0
    for position in range(kernel):
        first = position * right_dilation - low
        if left_dilation == 1:
            # Outputs o with 0 <= o * stride + first < size.
            begin = max(0, -(first // stride))
            end = min(output, -(-(size - first) // stride))
            count += max(0, end - begin)
        else:
            places = (first + o * stride for o in range(output))
            count += sum(0 <= place < dilated and not place % left_dilation for place in places)
    return count
