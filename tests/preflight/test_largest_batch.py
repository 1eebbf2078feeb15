"""The largest batch that fits, on steps whose need of memory the test makes up."""

from types import SimpleNamespace

import pytest

from keras_tpu_ext._runtime.common.lowering import LoweredStep, LoweringError
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight._largest_batch import with_largest_batch
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.results import MemoryUse
from keras_tpu_ext.preflight.targets import parse_target

pytestmark = pytest.mark.gate_on("keras3_jax")

V5E = parse_target("v5e-8")
AVAILABLE = V5E.generation.usable_hbm_bytes_per_core
MIB, GIB = 2**20, 2**30
EMPTY = "ENTRY %main (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8]{0} parameter(0)\n}\n"
STEP = LoweredStep(b"", True, 8, 64, (), {}, {})


def report(batch, needed, fixed=0, available=AVAILABLE):
    """Return that of a batch: its own bytes are among the arguments, beside weights and state."""
    example = 3 * MIB
    arguments = None if needed is None else fixed + batch * example
    memory = MemoryUse(needed, available, arguments)
    return PreflightReport("m", "v5e-8", "JAX", 8, 8, 8 * batch, batch, memory=memory, host_bytes=8 * batch * example)


def step(compile):
    return SimpleNamespace(target=V5E, compile=compile)


def never(examples):
    raise LoweringError("nothing is to be compiled")


class Compiler:
    """Compiles for a need of memory by the batch of a replica, and keeps what it was asked."""

    def __init__(self, need, has_figures=True):
        self.need = need
        self.has_figures = has_figures
        self.asked = []

    def __call__(self, examples):
        assert examples % 8 == 0
        batch = examples // 8
        self.asked.append(batch)
        needed = self.need(batch)
        if needed > AVAILABLE:
            used = f"Used {needed / GIB:.2f}G of {AVAILABLE / GIB:.2f}G hbm." if self.has_figures else ""
            return STEP, Compiled("", {}, f"RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. {used}")
        facts = {
            "argument_bytes": needed,
            "output_bytes": 0,
            "aliased_bytes": 0,
            "temporary_bytes": 0,
            "code_bytes": 0,
        }
        return STEP, Compiled(EMPTY, facts)


def exact(need):
    """Return the largest batch that fits, of those that are asked for: above 8 multiples of 8."""
    return max(batch for batch in (*range(1, 8), *range(8, 20_000, 8)) if need(batch) <= AVAILABLE)


# Worked out from one compile


@pytest.mark.parametrize(
    ("batch", "fixed", "per_example"),
    [(8, 2 * GIB, 30 * MIB), (128, 2 * GIB, 30 * MIB), (1024, 2 * GIB, 30 * MIB), (1, 0, GIB), (64, GIB, 3 * GIB)],
)
def test_it_is_where_a_line_from_weights_and_state_reaches_the_memory(batch, fixed, per_example):
    def need(size):
        return fixed + size * per_example

    found = with_largest_batch(report(batch, need(batch), fixed), step(never), search=False)
    assert found.largest_per_replica_batch == exact(need)
    assert not found.largest_was_compiled


def test_weights_that_do_not_fit_leave_room_for_no_batch():
    assert with_largest_batch(report(8, 25 * GIB, 20 * GIB), step(never), search=False).largest_per_replica_batch == 0


def test_nothing_is_worked_out_where_the_compiler_gave_no_figures():
    assert with_largest_batch(report(8, None), step(never), search=False).largest_per_replica_batch is None


def test_nothing_is_worked_out_where_a_batch_seems_to_take_nothing():
    assert (
        with_largest_batch(report(8, GIB, fixed=2 * GIB), step(never), search=False).largest_per_replica_batch is None
    )


@pytest.mark.parametrize(("needed", "is_told"), [(AVAILABLE // 101, False), (AVAILABLE // 99, True)])
def test_nothing_is_worked_out_from_a_step_that_hardly_needs_memory(needed, is_told):
    """What it computes stays in the core's own memory, so that HBM would seem to hold 291304 examples of 12 KiB."""
    found = with_largest_batch(report(8, needed), step(never), search=False)
    assert (found.largest_per_replica_batch is not None) is is_told


@pytest.mark.parametrize(("extra", "asked"), [(0, [464]), (3 * GIB, [464, 344]), (9 * GIB, [464, 344, 232])])
def test_a_batch_that_does_not_fit_comes_with_the_buffers_of_one_that_does(extra, asked):
    compiler = Compiler(lambda size: 2 * GIB + size * 30 * MIB + (extra if size > asked[-1] else 0))
    found = with_largest_batch(report(1024, 2 * GIB + 1024 * 30 * MIB, 2 * GIB), step(compiler), search=False)
    assert compiler.asked == asked
    assert (found.largest_per_replica_batch, found.largest_was_compiled) == (asked[-1], True)
    assert found.memory.buffers_batch == asked[-1]
    assert found.memory.needed == 2 * GIB + 1024 * 30 * MIB
    assert not found.ok


def test_a_batch_that_fits_asks_for_no_other_compile():
    found = with_largest_batch(report(8, GIB), step(never), search=False)
    assert found.ok
    assert found.memory.buffers_batch is None


# Found by compiling


@pytest.mark.parametrize("per_example", [20 * MIB, 100 * MIB, GIB + MIB, 3 * GIB])
@pytest.mark.parametrize("batch", [1, 8, 128, 1024])
def test_it_is_found_where_memory_grows_with_the_batch(batch, per_example):
    def need(size):
        return 2 * GIB + size * per_example

    compiler = Compiler(need)
    found = with_largest_batch(report(batch, need(batch), 2 * GIB), step(compiler), search=True)
    assert found.largest_per_replica_batch == exact(need)
    assert found.largest_was_compiled
    assert batch not in compiler.asked
    assert len(compiler.asked) <= 3


@pytest.mark.parametrize("batch", [8, 64, 512])
def test_it_is_found_where_memory_grows_by_jumps(batch):
    def need(size):
        return GIB + -(-size // 48) * 48 * 60 * MIB

    compiler = Compiler(need)
    found = with_largest_batch(report(batch, need(batch), GIB), step(compiler), search=True)
    assert need(found.largest_per_replica_batch) <= AVAILABLE
    assert found.largest_per_replica_batch >= 0.9 * exact(need)
    assert len(set(compiler.asked)) == len(compiler.asked) <= 6


def test_nothing_is_tried_between_two_that_are_next_to_each_other():
    compiler = Compiler(lambda size: GIB + (size * 14 * GIB) // 16)
    found = with_largest_batch(report(17, compiler.need(17), GIB), step(compiler), search=True)
    assert (found.largest_per_replica_batch, compiler.asked) == (16, [16])


def test_a_batch_that_was_compiled_and_fits_is_never_undercut():
    found = with_largest_batch(
        report(64, AVAILABLE, GIB), step(Compiler(lambda size: size * AVAILABLE // 64)), search=True
    )
    assert (found.largest_per_replica_batch, found.largest_was_compiled) == (64, True)


def test_none_is_found_where_not_even_one_example_fits():
    compiler = Compiler(lambda size: 20 * GIB + size * GIB)
    found = with_largest_batch(report(8, 28 * GIB, 20 * GIB), step(compiler), search=True)
    assert (found.largest_per_replica_batch, found.largest_was_compiled) == (None, False)
    assert compiler.asked == [1]


def test_without_figures_compiling_still_finds_one_that_fits():
    compiler = Compiler(lambda size: GIB + size * GIB, has_figures=False)
    found = with_largest_batch(report(16, None), step(compiler), search=True)
    assert found.largest_was_compiled
    assert 1 <= found.largest_per_replica_batch <= 14
    assert compiler.need(found.largest_per_replica_batch) <= AVAILABLE


def test_another_error_counts_as_a_batch_that_does_not_fit():
    def fails(examples):
        return STEP, Compiled("", {}, "INVALID_ARGUMENT: of something else")

    found = with_largest_batch(report(8, 2 * GIB, GIB), step(fails), search=True)
    assert (found.largest_per_replica_batch, found.largest_was_compiled) == (8, True)
