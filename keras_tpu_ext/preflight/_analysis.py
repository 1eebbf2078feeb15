"""Memory, time and collectives of a compiled step, and the meaning of the compiler's errors."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.layer_names import Origin
from keras_tpu_ext._runtime.common.layouts import VariableLayout
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.common.out_of_memory import read_out_of_memory
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight._hlo.collectives import axes_of, collective_of, is_collective
from keras_tpu_ext.preflight._hlo.flops import is_kernel
from keras_tpu_ext.preflight._hlo.layer_resolver import LayerResolver
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.peak_memory import LiveBuffer, buffers_at_peak
from keras_tpu_ext.preflight._hlo.timeline import BOUNDS, Correction, OpCost, Timeline
from keras_tpu_ext.preflight._published import corrections_for, published_for
from keras_tpu_ext.preflight.results import (
    Bound,
    Buffer,
    CollectiveKind,
    Collectives,
    Fault,
    LayerTime,
    MemoryUse,
    Purpose,
    StepTime,
)
from keras_tpu_ext.preflight.targets import Target

_NUM_BUFFERS = 8
_ROLES = {"weight": "weights", "optimizer": "optimizer", "accumulator": "accumulator"}
_LEAST_VOCABULARY = 4096


class StepAnalysis:
    """Analyzes a compiled step."""

    def __init__(
        self,
        lowered: LoweredStep,
        compiled: Compiled,
        target: Target,
        corrections: Collection[Correction],
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        self._mesh = mesh or {}
        self._layouts = lowered.layouts
        self._purposes = Purposes(lowered.layouts, self._mesh, target.devices)
        self._facts = compiled.facts
        self._target = target
        self._module = Module.parse(compiled.hlo)
        self._wanted = corrections
        self._corrections = corrections_for(target.generation.name, corrections)
        self._timeline = Timeline(self._module, target, self._corrections, compiled.facts.get("kernels"))
        self._layers = LayerResolver(lowered.layers, lowered.roles, lowered.arguments)

    def memory(self) -> MemoryUse:
        """Return the HBM use of a device."""
        facts, needed = self._facts, _needed(self._facts)
        buffers = [self._buffer(live) for live in buffers_at_peak(self._module)]
        gradients = sum(buffer.bytes for buffer in buffers if buffer.purpose == "gradient")
        arguments, temporaries = facts["argument_bytes"], facts["temporary_bytes"]
        return MemoryUse(
            needed,
            self._target.generation.usable_hbm_bytes_per_core,
            arguments,
            temporaries,
            tuple(buffers[:_NUM_BUFFERS]),
            by_role=bytes_by_role(self._layouts, arguments, temporaries, gradients, facts["code_bytes"]),
        )

    def _buffer(self, live: LiveBuffer) -> Buffer:
        origin = self._origin(live)
        purpose = self._purposes.of(live, origin, self._module) if self._layouts else None
        cure = "" if purpose is None else cure_for(purpose, self._mesh, self._target.devices)
        return Buffer(live.bytes, origin.layer, str(live.shape), origin.backward, purpose, cure)

    def _origin(self, live: LiveBuffer) -> Origin:
        parts = self._layers.resolve_parts(live.instruction, self._module)
        same = (part.origin for part in parts if part.shape.dimensions == live.shape.dimensions)
        return next(same, parts[0].origin)

    def time(self) -> StepTime:
        """Return the time estimate of a step."""
        costs = self._timeline.costs
        seconds = sum(cost.seconds for cost in costs)
        by_compiler = sum(cost.seconds for cost in costs if cost.source == "compiler")
        by_kernels = sum(cost.seconds for cost in costs if is_kernel(cost.instruction))
        flops, accessed = sum(cost.flops for cost in costs), sum(cost.bytes_accessed for cost in costs)
        shares: dict[Bound, float] = dict.fromkeys(BOUNDS, 0.0)
        for cost in costs:
            shares[cost.bound] += cost.seconds / seconds if seconds else 0.0
        peak = self._target.generation.peak_bf16_flops_per_core
        published = published_for(self._target.generation.name, self._wanted)
        return StepTime(
            seconds=seconds,
            by_compiler=by_compiler / seconds if seconds else 0.0,
            flops=flops,
            mfu=flops / seconds / peak if seconds else 0.0,
            intensity=flops / accessed if accessed else 0.0,
            bound=max(shares, key=lambda name: shares[name]),
            shares=shares,
            unknown_loops=len(self._timeline.unknown_loops),
            by_kernels=by_kernels / seconds if seconds else 0.0,
            kernels_by_compiler=all(cost.source != "kernel" for cost in costs if is_kernel(cost.instruction)),
            seconds_range=published and (seconds * published.lowest, seconds * published.highest),
            measured=published.what if published else "",
            corrections=tuple(self._corrections),
            borrowed={name: line.measured_on for name, line in self._corrections.items() if line.measured_on},
        )

    def layers(self) -> tuple[LayerTime, ...]:
        """Return the time of each layer, the slowest first."""
        costs: dict[str, list[tuple[OpCost, bool]]] = defaultdict(list)
        for cost in self._timeline.costs:
            if cost.source != "none":
                for part in self._layers.resolve_parts(cost.instruction, self._module):
                    costs[part.origin.layer].append((cost.part(part.fraction), part.origin.backward))
        layers = [_layer_time(layer, some) for layer, some in costs.items()]
        return tuple(sorted(layers, key=lambda layer: layer.seconds, reverse=True))

    def collectives(self) -> Collectives:
        """Return the collectives of a step."""
        found: dict[tuple[str, tuple[str, ...]], list[tuple[OpCost, int]]] = defaultdict(list)
        for cost in self._timeline.costs:
            if is_collective(cost.instruction):
                one = collective_of(cost.instruction, self._module, self._target.devices)
                axes = axes_of(one.group, self._mesh) if self._mesh else ()
                found[one.kind, axes].append((cost, cost.runs * one.bytes))
        kinds = [self._collective_kind(kind, axes, some) for (kind, axes), some in found.items()]
        kinds.sort(key=lambda one: one.bytes, reverse=True)
        return Collectives(
            sum(one.count for one in kinds),
            sum(one.bytes for one in kinds),
            sum(one.seconds for one in kinds),
            tuple(kinds),
        )

    def _collective_kind(self, kind: str, axes: tuple[str, ...], some: list[tuple[OpCost, int]]) -> CollectiveKind:
        by_layer: dict[str, float] = defaultdict(float)
        for cost, size in some:
            for part in self._layers.resolve_parts(cost.instruction, self._module):
                by_layer[part.origin.layer] += size * part.fraction
        count, seconds = sum(cost.runs for cost, _ in some), sum(cost.seconds for cost, _ in some)
        most = max(by_layer, key=lambda layer: by_layer[layer])
        return CollectiveKind(kind, axes, count, sum(size for _, size in some), seconds, most)


def _layer_time(layer: str, costs: list[tuple[OpCost, bool]]) -> LayerTime:
    accessed = round(sum(cost.bytes_accessed for cost, _ in costs))
    return LayerTime(
        layer,
        sum(cost.seconds for cost, _ in costs),
        sum(cost.seconds * backward for cost, backward in costs),
        sum(cost.flops for cost, _ in costs),
        accessed,
        1 - sum(cost.unpadded_bytes for cost, _ in costs) / accessed if accessed else 0.0,
    )


def memory_on_cpu(compiled: Compiled, target: Target) -> MemoryUse:
    """Return the memory use of one of a CPU's devices, whose compiled program has no parts that are known here."""
    facts = compiled.facts
    available = target.generation.usable_hbm_bytes_per_core
    return MemoryUse(_needed(facts), available, facts["argument_bytes"], facts["temporary_bytes"])


def _needed(facts: Mapping[str, Any]) -> int:
    sizes = ("argument_bytes", "output_bytes", "temporary_bytes", "code_bytes")
    return sum(facts[size] for size in sizes) - facts["aliased_bytes"]


class Purposes:
    """Finds the purpose of buffers from their shapes and from the layers that write them."""

    def __init__(self, layouts: Sequence[VariableLayout], mesh: Mapping[str, int], devices: int) -> None:
        weights = [row for row in layouts if row.role == "weight" and len(row.shape) > 1]
        self._devices = devices
        self._is_sharded = any(size > 1 for size in mesh.values())
        self._weights = {_dimensions(shape) for row in weights for shape in _shapes(row, mesh)}
        words = {row.shape[0] for row in weights if row.path.endswith("embeddings")}
        parts = {math.prod(some) for count in range(3) for some in itertools.combinations(mesh.values(), count)}
        self._words = {size // part for size in words if size >= _LEAST_VOCABULARY for part in parts}

    def of(self, buffer: LiveBuffer, origin: Origin, module: Module) -> Purpose:
        """Return the purpose of a buffer."""
        shape = _dimensions(buffer.shape.dimensions)
        if origin.layer == "(optimizer)":
            return "update"
        if shape in self._weights:
            one = buffer.instruction
            collective = collective_of(one, module, self._devices).kind if is_collective(one) else ""
            if collective not in ("", "all-gather"):
                return "gradient"
            if self._is_sharded or origin.backward:
                return "gradient" if origin.backward and not collective else "gathered weight"
        if origin.layer == "(loss)" or self._words & set(shape):
            return "logits"
        return "activation"


def bytes_by_role(
    layouts: Iterable[VariableLayout],
    arguments: int | None = None,
    temporaries: int | None = None,
    gradients: int = 0,
    code: int = 0,
) -> dict[str, int]:
    """Return the bytes on a device by role; `arguments` and `temporaries` are `None` if the compiler does not say."""
    found: dict[str, int] = {}
    for row in layouts:
        role = _ROLES.get(row.role, "batch and other")
        found[role] = found.get(role, 0) + row.bytes_per_device
    if not found:
        return {}
    if arguments is not None:
        found["batch and other"] = max(arguments - sum(found[role] for role in _ROLES.values() if role in found), 0)
    if temporaries is not None:
        found["gradients"] = min(gradients, temporaries)
        found["activations"] = temporaries - found["gradients"]
        found["program"] = code
    return found


def cure_for(purpose: Purpose, mesh: Mapping[str, int], devices: int) -> str:
    """Return what to write to make a buffer smaller; empty if nothing simple does."""
    if purpose == "logits":
        return "a smaller batch, or a loss that takes a part of the sequence at a time"
    if purpose == "activation":
        again = "keras.RematScope around the lines that make the layers"
        return f"a smaller batch, or {again if _runtime.remat is None else 'kte.layers.remat(model)'}"
    if devices == 1:
        return ""
    if not mesh:
        return 'shard="fsdp"'
    if purpose == "gathered weight" and len([size for size in mesh.values() if size > 1]) < 2:
        return f'mesh=(("data", {devices // 2}), ("model", 2)), where no device needs all of a weight'
    return ""


def _shapes(row: VariableLayout, mesh: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Yield the shapes that a weight has on a device: its part, the whole, and gathered along only some axes."""
    choices = [(axis, None) if axis else (None,) for axis in row.spec]
    for spec in itertools.product(*choices):
        yield tuple(size // mesh.get(axis or "", 1) for size, axis in zip(row.shape, spec, strict=True))


def _dimensions(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the dimensions in a canonical order, since the compiler has its own."""
    return tuple(sorted(size for size in shape if size > 1))


def parse_out_of_memory(error: str, target: Target) -> MemoryUse | None:
    """Return the memory use that an out-of-memory error of the compiler states; `None` for other errors."""
    found = read_out_of_memory(error)
    if found is None:
        return None
    needed = None if found.asked is None else int(found.asked)
    return MemoryUse(needed, int(found.limit or target.generation.usable_hbm_bytes_per_core))


def parse_compile_error(error: str, lowered: LoweredStep) -> Fault:
    """Return the fault that a compile error states, with the layer of the first operation that it names."""
    layers = LayerResolver(lowered.layers, lowered.roles, lowered.arguments)
    named = (layers.resolve_name(name).layer for name in re.findall(r'"([^"\n]+)"', error))
    layer = next((name for name in named if not name.startswith("(")), "")
    return Fault(" ".join(error.split())[:400], layer)
