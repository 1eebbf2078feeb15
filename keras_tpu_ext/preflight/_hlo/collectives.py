"""Collectives of a compiled module: which instructions they are, and which devices take part."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext.preflight._hlo.module import COLLECTIVES, Instruction, Module
from keras_tpu_ext.preflight._hlo.shape import integers

# A fusion that starts a collective; other fusions run concurrently until one that ends it.
_ASYNC_FUSION = re.compile(r"^async-collective-(start|done)(.*)$")
# A fusion that sums over devices and keeps one part: the compiler's backend treats it as one collective.
_REDUCE_SCATTER = "all-reduce-scatter"

# The forms in which XLA writes groups of devices.
_LISTED = re.compile(r"\breplica_groups=\{\{([\d,]+)\}")
_PAIRS = re.compile(r"\bsource_target_pairs=\{(\{[\d,{}]*\})\}")
_COUNTED = re.compile(r"\breplica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_BY_AXES = re.compile(
    r"\breplica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)
_AXIS_SIZE = re.compile(r"'([^']+)'=(\d+)")
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


class Collective(NamedTuple):
    """A collective."""

    kind: str  # such as `"all-gather"`
    group: tuple[int, ...]  # the first group of devices that it joins
    bytes: int  # bytes of its result on one device, without padding


def is_collective(instruction: Instruction) -> bool:
    """Return whether it is a collective, or the start of an asynchronous one."""
    is_one = instruction.opcode.removesuffix("-start") in COLLECTIVES or async_part(instruction) == "start"
    return is_one or _is_reduce_scatter(instruction)


def async_part(instruction: Instruction) -> str:
    """Return whether an instruction is the `"start"` or the `"done"` of an asynchronous collective; else `""`."""
    fusion = _ASYNC_FUSION.match(instruction.name)
    if fusion is not None:
        return fusion[1]
    name, _, part = instruction.opcode.rpartition("-")
    return part if name in COLLECTIVES and part in ("start", "done") else ""


def start_of(done: Instruction) -> str:
    """Return the name of the instruction that starts a collective, given the one that ends it."""
    fusion = _ASYNC_FUSION.match(done.name)
    return f"async-collective-start{fusion[2]}" if fusion is not None else done.operands[0]


def collective_of(instruction: Instruction, module: Module, devices: int) -> Collective:
    """Return the collective that an instruction is or, if it is a fusion, contains, in a step on several devices."""
    found = instruction
    if found.opcode.removesuffix("-start") not in COLLECTIVES:
        inner = (one for one in module.called_instructions(instruction) if one.opcode in COLLECTIVES)
        found = next(inner, instruction)
    group = _first_group(found, devices)
    if _is_reduce_scatter(instruction):
        return Collective("reduce-scatter", group, instruction.written_shape.bytes)
    return Collective(found.opcode.removesuffix("-start"), group, found.written_shape.bytes)


def _is_reduce_scatter(instruction: Instruction) -> bool:
    return instruction.called_computations.get("calls", "").startswith(_REDUCE_SCATTER)


def _first_group(collective: Instruction, devices: int) -> tuple[int, ...]:
    """Return the first group of devices that a collective joins; all devices, if it names none."""
    attributes = collective.attributes
    if listed := _LISTED.search(attributes):
        return integers(listed[1])
    if pairs := _PAIRS.search(attributes):
        return _connected([integers(pair) for pair in re.findall(r"[\d,]+(?=\})", pairs[1])])
    if counted := _COUNTED.search(attributes):
        groups = integers(counted[1])
        ids = _counted_ids(counted[2], counted[3])
        return tuple(map(int, ids.reshape(-1, groups[-1])[0]))
    if by_axes := _BY_AXES.search(attributes):
        sizes = {name: int(size) for name, size in _AXIS_SIZE.findall(by_axes[1])}
        positions = _positions_along(sizes, by_axes[4])
        ids = _counted_ids(by_axes[2], by_axes[3]) if by_axes[2] else np.arange(math.prod(sizes.values()))
        return tuple(map(int, ids[positions]))
    return tuple(range(devices))


def axes_of(group: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes of a mesh along which the devices of a group differ."""
    coordinates = np.unravel_index(list(group), tuple(mesh.values()))
    return tuple(name for name, along in zip(mesh, coordinates, strict=True) if len(set(along.tolist())) > 1)


def _counted_ids(sizes: str, order: str | None) -> np.ndarray[Any, np.dtype[np.int_]]:
    """Return the numbers of devices in the order of an iota of these sizes, with transposed axes."""
    ids = np.arange(math.prod(integers(sizes))).reshape(integers(sizes))
    return ids.transpose(integers(order) if order else None).ravel()


def _positions_along(sizes: Mapping[str, int], axes: str) -> np.ndarray[Any, np.dtype[np.int_]]:
    """Return the positions in a mesh that differ from the first along some axes, or along parts of them."""
    positions = np.zeros(1, int)
    for name, before, part in _AXIS.findall(axes):
        inner = list(sizes).index(name) + 1
        stride, size = math.prod(list(sizes.values())[inner:]), sizes[name]
        if part:  # as in 'a':(2)4, the part of size 4 behind one of size 2
            stride, size = stride * size // (int(before) * int(part)), int(part)
        positions = (positions[:, None] + stride * np.arange(size)).ravel()
    return positions


def _connected(pairs: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the devices that other pairs connect with the first pair."""
    group = set(next((pair for pair in pairs if len(set(pair)) > 1), pairs[0]))
    while True:
        more = {device for pair in pairs if group & set(pair) for device in pair}
        if more <= group:
            return tuple(sorted(group))
        group |= more
