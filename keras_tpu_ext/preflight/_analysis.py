"""From a compiled module to the parts of a report."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight._hlo.layer_resolver import Origins
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.peak_memory import buffers_at_peak
from keras_tpu_ext.preflight._hlo.timeline import Timeline, Work, is_collective
from keras_tpu_ext.preflight.results import Buffer, Collectives, Fault, LayerTime, MemoryUse, StepTime
from keras_tpu_ext.preflight.targets import Target

_SHOWN_BUFFERS = 8
# As older and as newer compilers put it.
_TOO_LITTLE = (
    re.compile(r"Used ([\d.]+)([KMGTP]) of ([\d.]+)([KMGTP]) hbm"),
    re.compile(r"total memory required for [\w ]+\(([\d.]+)([KMGTP])\) exceeds available HBM \(([\d.]+)([KMGTP])\)"),
)
_SPACE = re.compile(r"Ran out of memory in memory space (\w+)")
_UNIT = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


class Analysis:
    """What a compiled step takes.

    Args:
        lowered: The step before it was compiled.
        compiled: What the compiler made of it, without an error.
        target: What it was compiled for.
    """

    def __init__(self, lowered: LoweredStep, compiled: Compiled, target: Target) -> None:
        self._lowered = lowered
        self._facts = compiled.facts
        self._target = target
        self._module = Module.parse(compiled.hlo)
        self._timeline = Timeline(self._module, target.generation, target.devices)
        self._origins = Origins(lowered.layers, lowered.roles, lowered.arguments)

    def memory(self) -> MemoryUse:
        """Return what it needs of HBM."""
        facts = self._facts
        needed = facts["argument_bytes"] + facts["output_bytes"] - facts["aliased_bytes"]
        needed += facts["temporary_bytes"] + facts["code_bytes"]
        buffers = []
        for live in buffers_at_peak(self._module)[:_SHOWN_BUFFERS]:
            origin = self._origins.of(live.instruction, self._module)
            buffers.append(Buffer(live.bytes, origin.layer, str(live.shape), origin.backward))
        available = self._target.generation.usable_hbm_bytes_per_core
        return MemoryUse(needed, available, facts["argument_bytes"], facts["temporary_bytes"], tuple(buffers))

    def time(self) -> StepTime:
        """Return how long a step takes."""
        work = self._timeline.work
        seconds = sum(one.seconds for one in work)
        stated = sum(one.seconds for one in work if one.source == "compiler")
        flops, moved = sum(one.flops for one in work), sum(one.moved for one in work)
        shares = self._shares(seconds)
        peak = self._target.generation.peak_bf16_flops_per_core
        return StepTime(
            seconds=seconds,
            by_compiler=stated / seconds if seconds else 0.0,
            flops=flops,
            mfu=flops / seconds / peak if seconds else 0.0,
            intensity=flops / moved if moved else 0.0,
            bound=max(shares, key=lambda name: shares[name]),  # type: ignore[arg-type]
            shares=shares,
            unknown_loops=len(self._timeline.unknown_loops),
        )

    def layers(self) -> tuple[LayerTime, ...]:
        """Return what each layer takes, the dearest first."""
        found: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(float))
        for one in self._timeline.work:
            if one.source == "nothing":
                continue
            origin = self._origins.of(one.instruction, self._module)
            sums = found[origin.layer]
            sums["seconds"] += one.seconds
            sums["backward"] += one.seconds if origin.backward else 0.0
            sums["flops"] += one.flops
            sums["moved"] += one.moved
            sums["logical"] += one.logical
        layers = [
            LayerTime(
                name,
                sums["seconds"],
                sums["backward"],
                sums["flops"],
                int(sums["moved"]),
                1 - sums["logical"] / sums["moved"] if sums["moved"] else 0.0,
            )
            for name, sums in found.items()
        ]
        return tuple(sorted(layers, key=lambda layer: layer.seconds, reverse=True))

    def collectives(self) -> Collectives:
        """Return what the devices exchange."""
        found = [one for one in self._timeline.work if is_collective(one.instruction)]
        size = sum(one.times * one.instruction.made.bytes for one in found)
        return Collectives(sum(one.times for one in found), size, sum(one.seconds for one in found))

    def _shares(self, seconds: float) -> dict[str, float]:
        """Return which part of the time is bound by what.

        An operation with products is bound by the matrix units where these alone need more of its time than its bytes
        need of the memory.
        """
        generation = self._target.generation
        found = {"matrix units": 0.0, "memory": 0.0, "collectives": 0.0}

        def bound(work: Work) -> str:
            if work.source == "network":
                return "collectives"
            by_units = work.flops / generation.peak_bf16_flops_per_core
            by_memory = work.moved / generation.hbm_bandwidth_per_core
            return "matrix units" if by_units > by_memory else "memory"

        for work in self._timeline.work:
            found[bound(work)] += work.seconds / seconds if seconds else 0.0
        return found


def out_of_memory(error: str, target: Target) -> MemoryUse | None:
    """Return what the compiler says where the memory is too small; `None` where its error is another one."""
    if "RESOURCE_EXHAUSTED" not in error and "Ran out of memory" not in error:
        return None
    space = _SPACE.search(error)
    if space is not None and space[1] != "hbm":  # on the chip, of which no smaller batch has to need less
        return None
    found = next((match for pattern in _TOO_LITTLE if (match := pattern.search(error))), None)
    if found is None:
        return MemoryUse(None, target.generation.usable_hbm_bytes_per_core)
    needed = float(found[1]) * _UNIT[found[2]]
    return MemoryUse(int(needed), int(float(found[3]) * _UNIT[found[4]]))


def compile_fault(error: str, lowered: LoweredStep) -> Fault:
    """Return what the compiler's error says, with the layer of the first operation that it names."""
    origins = Origins(lowered.layers, lowered.roles, lowered.arguments)
    named = (origins.of_name(name).layer for name in re.findall(r'"([^"\n]+)"', error))
    layer = next((name for name in named if not name.startswith("(")), "")
    return Fault(" ".join(error.split())[:400], layer)
