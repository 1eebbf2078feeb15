"""Collectives of a compiled module: which instructions they are, and which devices take part."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from keras_tpu_ext.preflight._hlo.module import Instruction, Module

_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# A fusion that starts a collective, beside which other fusions run until one that ends it.
_ASYNC_FUSION = re.compile(r"^async-collective-(start|done)(.*)$")

# The forms in which XLA writes groups of devices.
_LISTED = re.compile(r"\breplica_groups=\{\{([\d,]+)\}")
_PAIRS = re.compile(r"\bsource_target_pairs=\{(\{[\d,{}]*\})\}")
_COUNTED = re.compile(r"\breplica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_BY_AXES = re.compile(r"\breplica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_AXIS_SIZE = re.compile(r"'([^']+)'=(\d+)")
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def is_collective(instruction: Instruction) -> bool:
    """Return whether it is a collective, or the start of an asynchronous one."""
    return instruction.opcode.removesuffix("-start") in _COLLECTIVES or async_part(instruction) == "start"


def async_part(instruction: Instruction) -> str:
    """Return whether an instruction is the `"start"` or the `"done"` of an asynchronous collective; else `""`."""
    fusion = _ASYNC_FUSION.match(instruction.name)
    if fusion is not None:
        return fusion[1]
    name, _, part = instruction.opcode.rpartition("-")
    return part if name in _COLLECTIVES and part in ("start", "done") else ""


def start_of(done: Instruction) -> str:
    """Return the name of the instruction that starts a collective, given the one that ends it."""
    fusion = _ASYNC_FUSION.match(done.name)
    return f"async-collective-start{fusion[2]}" if fusion is not None else done.operands[0]


def collective_in(instruction: Instruction, module: Module) -> Instruction:
    """Return the collective that an instruction is or, as a fusion, has in it."""
    if instruction.opcode.removesuffix("-start") in _COLLECTIVES:
        return instruction
    inner = (one for one in module.called_instructions(instruction) if one.opcode in _COLLECTIVES)
    return next(inner, instruction)


def kind_of(collective: Instruction) -> str:
    """Return what a collective is called, such as `"all-gather"`."""
    return collective.opcode.removesuffix("-start")


def first_group(collective: Instruction, devices: int) -> tuple[int, ...]:
    """Return the first group of devices that a collective joins; all devices, if it names none."""
    listed = _LISTED.search(collective.attributes)
    if listed is not None:
        return _numbers(listed[1])
    pairs = _PAIRS.search(collective.attributes)
    if pairs is not None:
        all_pairs = [_numbers(pair) for pair in re.findall(r"[\d,]+(?=\})", pairs[1])]
        return next((pair for pair in all_pairs if len(set(pair)) > 1), all_pairs[0])
    counted = _COUNTED.search(collective.attributes)
    if counted is not None:
        groups, sizes = _numbers(counted[1]), _numbers(counted[2])
        order = _numbers(counted[3]) if counted[3] else tuple(range(len(sizes)))
        ids = np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(groups)
        return tuple(map(int, ids.reshape(-1, groups[-1])[0]))
    by_axes = _BY_AXES.search(collective.attributes)
    if by_axes is not None:
        return _group_along({name: int(size) for name, size in _AXIS_SIZE.findall(by_axes[1])}, by_axes[2])
    return tuple(range(devices))


def axes_of(group: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes of a mesh along which the devices of a group differ."""
    places = np.unravel_index(list(group), tuple(mesh.values()))
    return tuple(name for name, along in zip(mesh, places, strict=True) if len(set(along.tolist())) > 1)


def _group_along(sizes: Mapping[str, int], axes: str) -> tuple[int, ...]:
    """Return the devices that differ along some axes of a mesh, or along parts of them, and in no other way."""
    ids = np.zeros(1, int)
    for name, before, part in _AXIS.findall(axes):
        place = list(sizes).index(name)
        stride, size = math.prod(list(sizes.values())[place + 1 :]), sizes[name]
        if part:  # as in 'a':(2)4, the part of size 4 behind one of size 2
            stride, size = stride * size // (int(before) * int(part)), int(part)
        ids = (ids[:, None] + stride * np.arange(size)).ravel()
    return tuple(map(int, ids))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
