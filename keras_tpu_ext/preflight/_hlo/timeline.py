"""Estimated time, FLOPs and bytes of each instruction that a compiled step runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from keras_tpu_ext.preflight._hlo.collectives import async_part, collective_of, is_collective, start_of
from keras_tpu_ext.preflight._hlo.flops import digest_of, flops_of, is_kernel, kernel_flops, visits_of
from keras_tpu_ext.preflight._hlo.kernel_schedule import KernelCycles
from keras_tpu_ext.preflight._hlo.loops import trip_count
from keras_tpu_ext.preflight._hlo.module import Computation, Instruction, Module
from keras_tpu_ext.preflight._hlo.shape import Shape
from keras_tpu_ext.preflight.results import Bound
from keras_tpu_ext.preflight.targets import Target

# These do nothing at run time.
_NO_OPS = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id add-dependency opt-barrier
    domain get-dimension-size iota""".split()  # noqa: SIM905
)
# Copies between the memories of a chip, which overlap with other instructions.
_COPY_START, _COPY_DONE = ("copy-start", "slice-start"), ("copy-done", "slice-done")
_ASYNC = ("async-start", "async-update", "async-done")
_LOOKUPS, _UPDATES = ("gather", "dynamic-slice"), ("scatter", "dynamic-update-slice")
# Operations of the vector units on each number, roughly: XLA expands the others into these. A random word is
# Threefry's 20 rounds for two words, and the words of the key: of a hardware's generator less is not known.
_OPERATIONS = {
    **dict.fromkeys(
        "add subtract multiply maximum minimum negate abs compare select and or not xor clamp convert reduce "  # noqa: SIM905
        "shift-left shift-right-logical shift-right-arithmetic floor ceil sign is-finite popcnt".split(),
        1,
    ),
    **dict.fromkeys("exponential rsqrt sqrt logistic tanh".split(), 4),  # noqa: SIM905
    **dict.fromkeys("divide log exponential-minus-one log-plus-one cbrt remainder".split(), 8),  # noqa: SIM905
    **dict.fromkeys("power erf sine cosine tan atan2".split(), 20),  # noqa: SIM905
    "rng-bit-generator": 36,
}
# Those that make random bits; each xor and shift goes with an addition or a product.
_OF_RANDOM_BITS = {"rng-bit-generator": 36, "xor": 2, "shift-left": 2, "shift-right-logical": 2}
# What reads and writes numbers in their order, with operations of which the vector units' time is known.
_IN_ORDER = _NO_OPS | _OPERATIONS.keys() | {"broadcast", "concatenate", "copy", "fusion", "pad", "slice"}

Correction = Literal["copies", "collectives"]
BOUNDS: tuple[Bound, ...] = get_args(Bound)


class Line(NamedTuple):
    """A line through times measured on real chips: `latency_s + bytes / (efficiency * nominal bandwidth)`."""

    latency_s: float  # seconds that it takes for zero bytes
    efficiency: float  # fraction of the nominal bandwidth that is reached
    measured_on: str = ""  # the generation on whose chips, if not on those of the generation that uses it

    def seconds(self, size: float, bandwidth: float) -> float:
        """Return the time for `size` bytes, with the nominal bandwidth in bytes/s."""
        return self.latency_s + size / (self.efficiency * bandwidth)


# The corrections to apply.
Corrections = Mapping[Correction, Line]

Source = Literal["compiler", "schedule", "measured", "kernel", "vector", "hbm", "ici", "none"]


class OpCost(NamedTuple):
    """The cost of an instruction on one device, summed over its runs in a step."""

    instruction: Instruction
    runs: int  # number of runs in a step
    seconds: float  # estimated time; for an asynchronous collective or copy, how long the program waits for its end
    # Source of the estimate: the compiler's cycles; its instructions of a Pallas kernel (`"schedule"`); measured
    # copies; products at the peak of the matrix units, of another kernel or of what the compiler has no estimate for
    # (`"kernel"`), its random bits (`"vector"`), or its bytes, if they take longer, as those of a copy that nothing
    # hides (`"hbm"`); bytes over the interconnect (`"ici"`); or `"none"` for what takes no time of its own.
    source: Source
    bound: Bound  # what limits it, as in a roofline model
    flops: float  # FLOPs of its dots and convolutions
    bytes_accessed: float  # bytes read from and written to HBM, padding included
    unpadded_bytes: float  # the same without padding

    def part(self, fraction: float) -> OpCost:
        """Return the cost of a fraction of the instruction."""
        return self._replace(
            seconds=self.seconds * fraction,
            flops=self.flops * fraction,
            bytes_accessed=self.bytes_accessed * fraction,
            unpadded_bytes=self.unpadded_bytes * fraction,
        )


@dataclasses.dataclass
class _InProgress:
    """An asynchronous collective that has started."""

    index: int  # its index in the list of costs
    end: float  # seconds from the first instruction of its computation until it ends


class _Copies:
    """Asynchronous copies to or from HBM: one after the other, while what runs beside them leaves it idle."""

    def __init__(self) -> None:
        self._left: dict[str, float] = {}  # seconds that each still needs of HBM, by its name

    def start(self, name: str, seconds: float) -> None:
        self._left[name] = seconds

    def proceed(self, idle: float) -> None:
        """Let HBM be idle for some seconds but for the copies."""
        for name, left in self._left.items():
            done = min(left, idle)
            self._left[name], idle = left - done, idle - done

    def finish(self, name: str) -> dict[str, float]:
        """End a copy, and those before it; return how long the program waits for each, by its name."""
        if name not in self._left:
            return {}
        ended = list(self._left)[: list(self._left).index(name) + 1]
        return {one: self._left.pop(one) for one in ended}


class Timeline:
    """The instructions that a step runs on one device."""

    def __init__(
        self,
        module: Module,
        target: Target,
        corrections: Corrections,
        kernels: Mapping[str, Sequence[float]] | None = None,  # by their digests, the numbers of `KernelCycles`
    ) -> None:
        self._module = module
        self._kernels = kernels or {}
        self._target = target
        self._generation = target.generation
        self._corrections = corrections
        # Names of loops whose trip count the compiler does not know; they are counted as one iteration.
        self.unknown_loops: list[str] = []
        self.costs = tuple(self._walk(module.entry, 1))  # the instructions' costs, in the order in which they run

    def _walk(self, computation: Computation, runs: int) -> list[OpCost]:
        """Return the costs of a computation that runs several times, including its loops and branches."""
        costs: list[OpCost] = []
        now = 0.0  # seconds, in all runs together
        started: dict[str, _InProgress] = {}
        copies, indices = _Copies(), dict[str, int]()
        for instruction in computation.instructions:
            part, wait = async_part(instruction), 0.0
            if part == "start":
                [cost] = self._costs_of(computation, instruction, runs)
                started[instruction.name] = _InProgress(len(costs), self._end(instruction, cost, now, started))
                costs.append(cost)
                continue
            if part == "done" and start_of(instruction) in started:
                collective = started.pop(start_of(instruction))
                wait = max(collective.end - now, 0.0)
                costs[collective.index] = costs[collective.index]._replace(seconds=wait)
                copies.proceed(wait)
            elif instruction.opcode in _COPY_DONE:
                for name, left in copies.finish(instruction.operands[0]).items():
                    costs[indices[name]] = costs[indices[name]]._replace(seconds=left)
                    wait += left
            added = list(self._costs_of(computation, instruction, runs))
            if instruction.opcode in _COPY_START:
                copies.start(instruction.name, self._by_bytes(added[0]))
                indices[instruction.name] = len(costs)
            else:
                copies.proceed(sum(max(cost.seconds - self._by_bytes(cost), 0.0) for cost in added))
            now += wait + sum(cost.seconds for cost in added)
            for collective in started.values():  # others use the same links
                collective.end += sum(cost.seconds for cost in added if cost.source == "ici")
            costs += added
        return costs

    def _by_bytes(self, cost: OpCost) -> float:
        """Return how long the bytes of an instruction take HBM."""
        return cost.bytes_accessed / self._generation.hbm_bandwidth_per_core

    def _end(self, start: Instruction, cost: OpCost, now: float, started: Mapping[str, _InProgress]) -> float:
        """Return when a collective that starts now ends, after those in progress; a permutation has its own link."""
        if collective_of(start, self._module, self._target.devices).kind == "collective-permute":
            return now + cost.seconds
        return max([now, *(collective.end for collective in started.values())]) + cost.seconds

    def _costs_of(self, computation: Computation, instruction: Instruction, runs: int) -> Iterator[OpCost]:
        if instruction.opcode == "while":
            trips = trip_count(instruction, computation, self._module)
            if trips is None:
                self.unknown_loops.append(instruction.name)
            for role in ("condition", "body"):
                inner = self._module.computations[instruction.called_computations[role]]
                yield from self._walk(inner, runs * (1 if trips is None else trips))
        elif instruction.opcode == "conditional":
            yield from self._longest_branch(instruction, runs)
        elif instruction.opcode in ("call", "call-start"):
            yield from self._walk(self._module.computations[instruction.called_computations["to_apply"]], runs)
        else:
            yield self._cost(computation, instruction, runs)

    def _longest_branch(self, instruction: Instruction, runs: int) -> list[OpCost]:
        before, branches = self.unknown_loops, []
        for name in instruction.called_computations.values():
            self.unknown_loops = []
            branches.append((self._walk(self._module.computations[name], runs), self.unknown_loops))
        longest, unknown = max(branches, key=lambda branch: sum(cost.seconds for cost in branch[0]))
        self.unknown_loops = before + unknown
        return longest

    def _cost(self, computation: Computation, instruction: Instruction, runs: int) -> OpCost:
        is_done = instruction.opcode.endswith("-done") or async_part(instruction) == "done"
        if instruction.opcode in _NO_OPS or instruction.opcode in _ASYNC or is_done:
            return OpCost(instruction, runs, 0.0, "none", "memory", 0.0, 0, 0)
        flops = runs * self._flops(computation, instruction)
        padded, unpadded = (runs * size for size in self._bytes_accessed(computation, instruction))
        if instruction.opcode in _COPY_START:
            return OpCost(instruction, runs, 0.0, "hbm" if padded else "none", "memory", 0.0, padded, unpadded)
        if is_collective(instruction):
            seconds = runs * self._collective_seconds(instruction)
            return OpCost(instruction, runs, seconds, "ici", "collectives", flops, padded, unpadded)
        if is_kernel(instruction):
            return self._kernel_cost(computation, instruction, runs, padded, unpadded)
        bandwidth = self._generation.hbm_bandwidth_per_core
        vector = vector_work(instruction, computation, self._module)
        by_unit: dict[Bound, float] = {
            "matrix units": flops / self._generation.peak_bf16_flops_per_core,
            "random bits" if 2 * vector.random > vector.operations else "vector units": (
                runs * vector.operations / self._generation.vector_rate_per_core
            ),
            "memory": padded / bandwidth,
        }
        bound = max(by_unit, key=lambda unit: by_unit[unit])

        def cost(seconds: float, source: Source) -> OpCost:
            return OpCost(instruction, runs, seconds, source if seconds else "none", bound, flops, padded, unpadded)

        if instruction.estimated_cycles is None:
            # Of the vector units only random bits: what they do else is part of what a fusion is given cycles for.
            of_units = max(by_unit["matrix units"], by_unit.get("random bits", 0.0))
            if by_unit["memory"] >= of_units:
                return cost(by_unit["memory"], "hbm")
            return cost(of_units, "kernel" if by_unit["matrix units"] == of_units else "vector")
        seconds = runs * instruction.estimated_cycles / self._generation.clock_hz
        copies = self._corrections.get("copies")
        if copies is not None and (size := self._bytes_as_copy(computation, instruction, vector.operations)):
            # For sizes below the measured ones the compiler's estimate is used, which has no latency.
            measured = runs * copies.seconds(size, bandwidth)
            if measured < seconds:
                return cost(measured, "measured")
        return cost(seconds, "compiler")

    def _bytes_as_copy(self, computation: Computation, instruction: Instruction, operations: float) -> int:
        """Return the bytes that an instruction takes as long for as a copy does; 0 if it does more than a copy."""
        shapes = (*computation.operand_shapes(instruction), instruction.shape)
        leaves = [leaf for shape in shapes for leaf in shape.leaves()]
        layouts = {(leaf.dimensions, (leaf.minor_to_major, leaf.tiles[:1])) for leaf in leaves}
        in_order = len(layouts) == len(dict(layouts)) and self._opcodes(instruction) <= _IN_ORDER
        in_hbm = sum(leaf.padded_bytes for leaf in leaves if leaf.memory_space == 0)
        # Both memories are used at the same time, and the one on the chip is not the slower one.
        size = max(in_hbm, sum(leaf.padded_bytes for leaf in leaves) - in_hbm)
        by_operations = operations / self._generation.vector_rate_per_core
        return size if in_order and size / self._generation.hbm_bandwidth_per_core >= by_operations else 0

    def _kernel_cost(
        self, computation: Computation, instruction: Instruction, runs: int, padded: float, unpadded: float
    ) -> OpCost:
        operands = computation.operand_shapes(instruction)
        kernel = kernel_flops(instruction, operands, self._generation.matrix_unit)
        by_units = runs * kernel.padded / self._generation.peak_bf16_flops_per_core
        source: Source = "kernel"
        if (known := self._kernels.get(digest_of(instruction))) is not None:
            cycles = KernelCycles(*known).at(visits_of(instruction))
            by_units, source = runs * cycles / self._generation.clock_hz, "schedule"
        by_bytes = padded / self._generation.hbm_bandwidth_per_core
        seconds = max(by_bytes, by_units)
        source = "none" if not seconds else source if by_units > by_bytes else "hbm"
        return OpCost(instruction, runs, seconds, source, "kernels", runs * kernel.flops, padded, unpadded)

    def _flops(self, computation: Computation, instruction: Instruction) -> float:
        called = self._module.called_computations(instruction)
        inner = sum(flops_of(one, each.shapes) for each in called for one in each.instructions)
        return flops_of(instruction, computation.shapes) + inner

    def _opcodes(self, instruction: Instruction) -> set[str]:
        return {instruction.opcode, *(one.opcode for one in self._module.called_instructions(instruction))}

    def _bytes_accessed(self, computation: Computation, instruction: Instruction) -> tuple[int, int]:
        """Return the bytes read from and written to HBM, with and without padding."""
        written = instruction.written_shape
        if instruction.opcode == "slice-start":  # which reads no more than it writes
            spaces = [leaf.memory_space for leaf in (*instruction.shape.tuple_shapes[0].leaves(), *written.leaves())]
            sides = sum(space == 0 for space in spaces)
            return sides * written.padded_bytes, sides * written.bytes
        shapes = (*computation.operand_shapes(instruction), written)
        arrays = [leaf for shape in shapes for leaf in shape.leaves() if leaf.memory_space == 0]
        opcodes = self._opcodes(instruction)
        if opcodes & {*_LOOKUPS, *_UPDATES}:
            arrays = _accessed_rows(arrays, instruction, opcodes)
        return sum(shape.padded_bytes for shape in arrays), sum(shape.bytes for shape in arrays)

    def _collective_seconds(self, instruction: Instruction) -> float:
        """Return the time of a collective as a ring: the least, over all links of a chip, or the measured time.

        A permutation sends to one neighbour over one link, and was not measured.

        Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69(2), 2009.
        """
        kind, group, size = collective_of(instruction, self._module, self._target.devices)
        if kind == "collective-permute":  # to one neighbour
            return size / (self._target.link_bandwidth / self._generation.cores_per_chip)
        members = len(group)
        if kind == "reduce-scatter":  # its result is one device's part
            size *= members
        rounds = 2 if kind == "all-reduce" else 1
        sent = rounds * (members - 1) / members * size
        bandwidth = self._generation.ici_bandwidth / self._generation.cores_per_chip
        measured = self._corrections.get("collectives")
        if measured is None or not sent:
            return sent / bandwidth
        return measured.seconds(sent, bandwidth * self._target.used_links)


def _accessed_rows(arrays: list[Shape], instruction: Instruction, opcodes: set[str]) -> list[Shape]:
    """Return the arrays that a lookup or an update accesses: rows, not the whole table."""
    results = [shape.padded_bytes for shape in instruction.shape.leaves()]
    if opcodes & {*_UPDATES}:
        # An update in place reads and writes only the updated rows.
        small = [shape for shape in arrays if shape.padded_bytes < max(results)]
        return small * 2 if small else arrays
    tables = [shape for shape in arrays if shape.padded_bytes >= sum(results)]
    if not tables:
        return arrays
    table = max(tables, key=lambda shape: shape.padded_bytes)
    return [*(shape for shape in arrays if shape is not table), *instruction.shape.leaves()]


class VectorWork(NamedTuple):
    """Operations on numbers of 32 bits, in one run of an instruction."""

    operations: float
    random: float  # those of them that make random bits, as far as they can be told


def vector_work(instruction: Instruction, computation: Computation, module: Module) -> VectorWork:
    """Return the work of an instruction of a computation, or of what it calls if it is a fusion."""
    inner = [(computation, instruction)]
    if instruction.opcode == "fusion":
        inner = [(called, one) for called in module.called_computations(instruction) for one in called.instructions]
    operations = random = 0
    for called, one in inner:
        shapes = called.operand_shapes(one) if one.opcode == "reduce" else [one.shape]
        numbers = sum(math.prod(leaf.dimensions) for shape in shapes for leaf in shape.leaves())
        operations += _OPERATIONS.get(one.opcode, 0) * numbers
        random += _OF_RANDOM_BITS.get(one.opcode, 0) * numbers
    return VectorWork(operations, min(random, operations))
