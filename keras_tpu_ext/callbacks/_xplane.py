"""Read what a profiler recorded: an `XSpace`, the file of xprof, TensorBoard and JAX.

Its schema is public: tsl/profiler/protobuf/xplane.proto, and xla/service/hlo.proto for the programs in it. On a CPU
the planes say what ran in each thread, so operations are known by their stats or, on TensorFlow, by their names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple


class Message:
    """The fields of a protobuf message, by number; a field that is absent is 0, empty or `[]`.

    They are read without its class: https://protobuf.dev/programming-guides/encoding.
    """

    def __init__(self, data: bytes) -> None:
        self.numbers: dict[int, int] = {}  # the last value of each integer
        self.chunks: dict[int, list[bytes]] = {}  # all values of each string, message or bytes
        at = 0
        while at < len(data):
            key, at = _varint(data, at)
            field, kind = key >> 3, key & 7
            if kind == 0:
                self.numbers[field], at = _varint(data, at)
            elif kind == 2:
                size, at = _varint(data, at)
                self.chunks.setdefault(field, []).append(data[at : at + size])
                at += size
            elif kind in (1, 5):  # a float, which nothing here reads
                at += 8 if kind == 1 else 4
            else:
                raise ValueError(f"no protobuf message: a field of kind {kind}")
        if at != len(data):
            raise ValueError("no protobuf message: it is cut off")

    def number(self, field: int) -> int:
        """Return an integer."""
        return self.numbers.get(field, 0)

    def integers(self, field: int) -> list[int]:
        """Return a repeated integer."""
        found = [self.numbers[field]] if field in self.numbers else []
        for packed in self.chunks.get(field, []):
            at = 0
            while at < len(packed):
                value, at = _varint(packed, at)
                found.append(value)
        return found

    def text(self, field: int) -> str:
        """Return a string."""
        return self.chunks.get(field, [b""])[-1].decode(errors="replace")

    def each(self, field: int) -> list[Message]:
        """Return the messages of a repeated field."""
        return [Message(chunk) for chunk in self.chunks.get(field, [])]

    def table(self, field: int) -> dict[int, Message]:
        """Return a map from integers to messages."""
        return {entry.number(1): entry.each(2)[-1] for entry in self.each(field) if 2 in entry.chunks}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a position, and the position after it."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("no protobuf message: it is cut off")


_DEVICE = re.compile(r"/device:(TPU|GPU):\d+$")
# Spans of a CPU's thread in which it runs a compiled program, or TensorFlow's executor runs a graph.
_PROGRAMS = ("ThunkExecutor::Execute", "TfrtCpuExecutable::Execute", "CpuExecutable::Execute")
_EXECUTOR = "ExecutorState::Process"
_RESUMES = "ThunkExecutor::Execute"
_END = "end: "  # of an operation that other threads ended; on a CPU
_INPUT = "tf_data"  # what the threads of tf.data have in their names


class Span(NamedTuple):
    """A stretch of time, in picoseconds."""

    begin: int
    end: int


class Op(NamedTuple):
    """One run of an operation."""

    span: Span
    name: str  # such as `"fusion.3"` or `"MatMul"`
    # Name stacks, such as `"jit(train_step)/jvp(dense)/dot_general"`: its own, and those of what was fused into it.
    stacks: tuple[str, ...] = ()


@dataclasses.dataclass
class Device:
    """What one device ran; all CPU cores of a process are one device."""

    lines: list[list[Op]] = dataclasses.field(default_factory=list)  # of each thread or stream
    programs: list[Span] = dataclasses.field(default_factory=list)  # when it ran any program


@dataclasses.dataclass
class Recording:
    """What a profiler recorded."""

    devices: list[Device]
    steps: list[Span]  # the spans on the host that have the name of a step


def read_xplane(data: bytes, step_name: str) -> Recording:
    """Return what a profiler recorded; `step_name` is what the spans of the steps on the host are called.

    Raises:
        ValueError: If it is no such file.
    """
    planes = {plane.text(2): plane for plane in Message(data).each(1)}
    programs = _Programs(planes.get("/host:metadata"))
    devices = [_read_device(_Plane(planes[name]), programs) for name in sorted(filter(_DEVICE.match, planes))]
    devices = [device for device in devices if any(device.lines)]
    host = Device()
    steps: list[Span] = []
    if "/host:CPU" in planes:
        _read_host(_Plane(planes["/host:CPU"]), programs, step_name, host, steps)
    return Recording(devices or [host], sorted(steps))


class _Programs:
    """The name stacks of the operations of compiled programs, whose protos the profiler puts beside the trace."""

    def __init__(self, plane: Message | None) -> None:
        self._protos: dict[str, list[Message]] = {}  # by the name of the program
        for program in [] if plane is None else plane.table(4).values():
            self._protos.setdefault(program.text(2).partition("(")[0], []).append(program)
        self._read: dict[str, dict[str, tuple[str, ...]]] = {}

    def stacks(self, stats: Mapping[str, str], op: str) -> tuple[str, ...]:
        """Return the name stacks of an operation with such stats, and of what was fused into it.

        Programs are known by name: their numbers are others if they come from a compilation cache.
        """
        program = stats.get("hlo_module", "")
        if program not in self._read:
            self._read[program] = dict(stacks for one in self._protos.get(program, []) for stacks in _stacks_in(one))
        return self._read[program].get(op, ())


def _stacks_in(program: Message) -> Iterator[tuple[str, tuple[str, ...]]]:
    protos = [chunk for stat in program.each(5) for chunk in stat.chunks.get(6, [])]
    computations = [one for proto in protos for module in Message(proto).each(1) for one in module.each(3)]
    inside = {one.number(5): [metadata for op in one.each(2) for metadata in op.each(7)] for one in computations}
    for op in (op for one in computations for op in one.each(2)):
        called = [metadata for number in op.integers(38) for metadata in inside.get(number, [])]
        yield op.text(1), tuple(stack for metadata in [*op.each(7), *called] if (stack := metadata.text(2)))


class _Plane:
    """A plane, with the names of its stats and of its events."""

    def __init__(self, plane: Message) -> None:
        self.lines = plane.each(3)
        self.events = plane.table(4)
        self._names = {key: one.text(2) for key, one in plane.table(5).items()}

    def stats(self, *owners: Message, field: int) -> dict[str, str]:
        """Return the stats of events or their metadata, all as text."""
        found = {}
        for stat in (stat for owner in owners for stat in owner.each(field)):
            value = stat.text(5) or (self._names.get(stat.number(7), "") if 7 in stat.numbers else "")
            found[self._names.get(stat.number(1), "")] = value or str(stat.number(3) or stat.number(4))
        return found

    def of_line(self, line: Message) -> Iterable[tuple[Message, Message, Span]]:
        """Return each event of a line, with its metadata and its span."""
        start = 1000 * line.number(3)
        for event in line.each(4):
            begin = start + event.number(2)
            yield event, self.events.get(event.number(1), Message(b"")), Span(begin, begin + event.number(3))


def _read_device(plane: _Plane, programs: _Programs) -> Device:
    """Read a TPU, with a line of operations and one of programs, or a GPU, with a line for each stream."""
    device = Device()
    for line in plane.lines:
        name = line.text(2)
        if name == "XLA Modules":
            device.programs += [span for _, _, span in plane.of_line(line)]
        elif name == "XLA Ops" or name.startswith("Stream"):
            ops = []
            for event, metadata, span in plane.of_line(line):
                stats = plane.stats(metadata, field=5) | plane.stats(event, field=4)
                op = stats.get("hlo_op") or metadata.text(4) or metadata.text(2)
                stack = stats.get("tf_op", "").partition(":")[0]
                ops.append(Op(span, op, (stack,) if stack else programs.stacks(stats, op)))
            device.lines.append(ops)
    return device


def _read_host(plane: _Plane, programs: _Programs, step_name: str, host: Device, steps: list[Span]) -> None:
    """Read the threads of a CPU."""
    started: dict[str, tuple[list[Op], int]] = {}  # where the operations are that other threads may end
    ends: list[tuple[int, int, str]] = []
    for line in plane.lines:
        ops: list[Op] = []
        resumed = Span(0, 0)
        for event, metadata, span in sorted(plane.of_line(line), key=lambda found: found[2].end):
            name, kind = metadata.text(2), metadata.text(4)
            if name == step_name:
                steps.append(span)
            elif name.startswith(_PROGRAMS) or (name == _EXECUTOR and _INPUT not in line.text(2)):
                host.programs.append(span)
                resumed = span if name == _RESUMES else resumed
            elif name.startswith(_END):
                ends.append((resumed.begin, span.begin, plane.stats(event, field=4).get("_c", "")))
            elif kind and name.endswith(f":{kind}") and "::" not in name and _INPUT not in line.text(2):
                ops.append(Op(span, kind, (name.removesuffix(f":{kind}"),)))
            elif event.chunks.get(4) and "hlo_op" in (stats := plane.stats(event, field=4)):
                started[stats.get("_p", "")] = ops, len(ops)
                ops.append(Op(span, stats["hlo_op"], programs.stacks(stats, stats["hlo_op"])))
        host.lines.append(ops)
    for resumed_at, told_at, producer in ends:
        if producer in started:
            ops, i = started[producer]
            begin, returned_at = ops[i].span
            # An operation that ends in another thread first resumes the program there, and then tells its end.
            end = resumed_at if resumed_at >= returned_at else max(told_at, returned_at)
            ops[i] = ops[i]._replace(span=Span(begin, end))
