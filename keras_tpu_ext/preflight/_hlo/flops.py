"""FLOPs of convolutions and dots; the TPU compiler makes most dots convolutions without a window."""

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
            places = (first + o * stride for o in range(output))
            count += sum(0 <= place < dilated and not place % lhs_dilation for place in places)
    return count
