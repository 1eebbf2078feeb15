"""What the time in a trace went to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from keras_tpu_ext._runtime.common.layer_names import OTHER, LayerNames, Origin
from keras_tpu_ext.callbacks._xplane import Device, Op, Span
from keras_tpu_ext.callbacks.trace_report import CATEGORIES, TraceOperation

# As XLA, NCCL and TensorFlow call them.
_COLLECTIVE = re.compile(
    r"all.?(reduce|gather|to.?all)|reduce.?scatter|collective|nccl|cross.?replica.?sum", re.IGNORECASE
)
_PICOSECONDS = 1e-12


class _Moment(NamedTuple):
    """A stretch of time in which nothing begins or ends."""

    seconds: float
    ops: list[Op]  # what runs on each line: the operation that began last there, which may be inside others
    in_program: bool  # whether a program runs


def divide(devices: list[Device], window: Span, names: LayerNames) -> tuple[dict[str, float], list[TraceOperation]]:
    """Return the seconds of each category in a window, and those of each operation, the costliest first.

    Both are means over the devices. Of operations that run at once each gets an equal part of that time, so that all
    of them together get the time in which any runs.
    """
    seconds = dict.fromkeys(CATEGORIES, 0.0)
    found: dict[tuple[str, Origin], list[float]] = {}  # how often, and how long
    for device in devices:
        for moment in _moments(device, window):
            seconds[_category(moment)] += moment.seconds / len(devices)
            for op in moment.ops:
                found.setdefault((op.name, _origin(op, names)), [0, 0.0])[1] += (
                    moment.seconds / len(moment.ops) / len(devices)
                )
        for op in (op for line in device.lines for op in line if window.begin <= op.span.begin < window.end):
            found.setdefault((op.name, _origin(op, names)), [0, 0.0])[0] += 1 / len(devices)
    whole = (window.end - window.begin) * _PICOSECONDS
    rows = [
        TraceOperation(name, origin.layer, origin.backward, round(count), took, took / whole)
        for (name, origin), (count, took) in found.items()
    ]
    return seconds, sorted(rows, key=lambda row: row.seconds, reverse=True)


def _category(moment: _Moment) -> str:
    if not moment.ops:
        return "idle" if moment.in_program else "host"
    return "collectives" if all(_COLLECTIVE.search(op.name) for op in moment.ops) else "compute"


def _origin(op: Op, names: LayerNames) -> Origin:
    """Return the layer of an operation, or of the first of those that were fused into it that has one."""
    origins = [names.resolve_name(stack) for stack in op.stacks]
    return next((origin for origin in origins if origin.layer != OTHER), Origin(OTHER))


def _moments(device: Device, window: Span) -> Iterator[_Moment]:
    """Yield the moments of a window, in order."""
    spans = [(op.span, line, op) for line, ops in enumerate(device.lines) for op in ops]
    program = len(device.lines), Op(Span(0, 0), "")
    changes: list[tuple[int, bool, int, Op]] = [(window.end, True, *program)]  # which ends the last moment
    for span, line, op in [*spans, *((span, *program) for span in device.programs)]:
        begin, end = max(span.begin, window.begin), min(span.end, window.end)
        if begin < end:
            changes += [(begin, True, line, op), (end, False, line, op)]
    stacks: list[list[Op]] = [[] for _ in range(len(device.lines) + 1)]
    now = window.begin
    for time, begins, line, op in sorted(changes, key=lambda change: change[:2]):
        if time > now:
            on_top = [stack[-1] for stack in stacks[:-1] if stack]
            yield _Moment((time - now) * _PICOSECONDS, on_top, in_program=bool(stacks[-1]))
            now = time
        stacks[line].append(op) if begins else stacks[line].remove(op)
