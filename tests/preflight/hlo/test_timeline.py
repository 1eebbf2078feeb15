"""Costs of the instructions of a step, in programs small enough to work it out by hand."""

import pytest

from keras_tpu_ext.hardware import TPU_GENERATIONS
from keras_tpu_ext.preflight._hlo.collectives import is_collective
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.timeline import Line, Timeline
from keras_tpu_ext.preflight.targets import Target, parse_target

pytestmark = pytest.mark.gate_on("keras3_jax")

V5E, V3 = TPU_GENERATIONS["v5e"], TPU_GENERATIONS["v3"]
BIG = "f32[512,512]{1,0:T(8,128)}"
ON_CHIP = "f32[512,512]{1,0:T(8,128)S(1)}"
MIB = 2**20
CYCLES = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
ADD = """\
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}
"""


def timeline(*lines, before="", generation=V5E, devices=8, target=None, corrections=None):
    body = "\n".join(f"  {line}" for line in lines)
    text = f"{ADD}\n{before}\nENTRY %main (p: f32[512,512]) -> f32[512,512] {{\n{body}\n}}\n"
    target = target or Target("", generation, devices // generation.cores_per_chip, "")
    return Timeline(Module.parse(text), target, corrections or {})


def cost(name, *lines, **options):
    (found,) = (one for one in timeline(*lines, **options).costs if one.instruction.name == name)
    return found


def test_cycles_that_are_no_estimate_are_replaced_by_products_and_bytes():
    line = f"%big = {BIG} fusion(%p), kind=kOutput, calls=%product, {CYCLES % (2**63 - 2048)}"
    product = """\
%product (a: f32[512,512]) -> f32[512,512] {
  %a = f32[512,512]{1,0:T(8,128)} parameter(0)
  ROOT %dot = f32[512,512]{1,0:T(8,128)} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    found = cost("big", f"%p = {BIG} parameter(0)", line, before=product)
    assert found.flops == 2 * 512**3
    assert found.seconds == max(found.flops / V5E.peak_bf16_flops_per_core, 2 * MIB / V5E.hbm_bandwidth_per_core)
    assert found.source in ("kernel", "hbm")


def test_cycles_of_the_compiler_are_seconds_by_the_clock():
    found = cost("n", f"%p = {BIG} parameter(0)", f"ROOT %n = {BIG} negate(%p), {CYCLES % 3000}")
    assert (found.source, found.runs, found.bytes_accessed, found.unpadded_bytes) == (
        "compiler",
        1,
        2 * MIB,
        2 * MIB,
    )
    assert found.seconds == pytest.approx(3000 / V5E.clock_hz)


def test_without_cycles_the_bytes_bound_the_time():
    lines = ["%p = f32[3,5]{1,0:T(8,128)} parameter(0)", f"ROOT %n = {BIG} pad(%p)"]
    found = cost("n", *lines)
    assert (found.source, found.bytes_accessed, found.unpadded_bytes) == ("hbm", MIB + 4096, MIB + 60)
    assert found.seconds == pytest.approx((MIB + 4096) / V5E.hbm_bandwidth)
    assert cost("n", *lines, generation=V3).seconds == pytest.approx((MIB + 4096) / (V3.hbm_bandwidth / 2))


def test_what_stays_on_the_chip_moves_nothing():
    found = cost("n", f"%p = {ON_CHIP} parameter(0)", f"ROOT %n = {ON_CHIP} negate(%p)")
    assert (found.source, found.seconds, found.bytes_accessed) == ("none", 0, 0)


@pytest.mark.parametrize(
    "line",
    [
        f"({BIG}) tuple(%p)",
        f"{BIG} bitcast(%p)",
        f"({ON_CHIP}, {ON_CHIP}, u32[]) copy-start(%on_chip)",
        f"{BIG} copy-done(%p)",
        f"{BIG} all-reduce-done(%p)",
        f"{BIG} parameter(1), {CYCLES % 5}",
    ],
)
def test_names_and_ends_take_no_time(line):
    found = cost("n", f"%p = {BIG} parameter(0)", f"%on_chip = {ON_CHIP} negate(%p)", f"ROOT %n = {line}")
    assert (found.source, found.seconds, found.flops, found.bytes_accessed) == ("none", 0, 0, 0)


# Copies beside the work

OF_COPY = MIB / V5E.hbm_bandwidth


def busy(name, seconds):
    """An instruction that takes so long, in copies, and none of HBM."""
    return f"%{name} = {ON_CHIP} negate(%on_chip), {CYCLES % round(seconds * OF_COPY * V5E.clock_hz)}"


def waits(*lines):
    """How long the program waits for each copy, in copies of a MiB."""
    lines = [f"%p = {BIG} parameter(0)", f"%on_chip = {ON_CHIP} parameter(1)", *lines]
    found = timeline(*lines, f"ROOT %end = {BIG} bitcast(%p)").costs
    return [one.seconds / OF_COPY for one in found if one.instruction.opcode in ("copy-start", "slice-start")]


def copy(name):
    return f"%{name} = ({ON_CHIP}, {BIG}, u32[]) copy-start(%p)"


def copied(name):
    return f"%{name}.done = {ON_CHIP} copy-done(%{name})"


def test_a_copy_takes_the_time_that_the_work_beside_it_does_not_hide():
    assert waits(copy("a"), busy("w", 2), copied("a")) == [0]
    assert waits(copy("a"), busy("w", 0.25), copied("a")) == pytest.approx([0.75], rel=1e-3)
    assert waits(busy("w", 2), copy("a"), copied("a")) == pytest.approx([1])


def test_copies_share_the_memory_with_each_other_and_with_the_work():
    assert waits(copy("a"), copy("b"), busy("w", 1.5), copied("b"), copied("a")) == pytest.approx([0, 0.5], abs=1e-3)
    moving = f"%w = {BIG} negate(%p), {CYCLES % round(2.25 * OF_COPY * V5E.clock_hz)}"  # two MiB of its own
    assert waits(copy("a"), moving, copied("a")) == pytest.approx([0.75], rel=1e-3)


def test_what_takes_part_of_an_array_copies_that_part():
    part = "f32[128,512]{1,0:T(8,128)S(1)}"
    start = f"%s = (({BIG}), {part}, s32[]) slice-start(%p), slice={{[0:128], [0:512]}}"
    assert waits(start, f"%s.done = {part} slice-done(%s)") == pytest.approx([0.25])


def test_no_step_takes_less_than_its_bytes():
    lines = [line for i in range(8) for line in (copy(f"c{i}"), busy(f"w{i}", 0.1))]
    lines += [copied(f"c{i}") for i in range(8)]
    assert sum(waits(*lines)) + 0.8 == pytest.approx(8, rel=1e-3)


# What limits an instruction


RANDOM = f"""\
%random (i: {BIG}) -> {BIG} {{
  %i = {BIG} parameter(0)
  %s = {BIG} shift-right-logical(%i, %i)
  %x = {BIG} xor(%i, %s)
  ROOT %m = {BIG} multiply(%x, %x)
}}
"""
SUMMING = RANDOM.replace("shift-right-logical", "erf").replace("xor", "add").replace("%random", "%summing")


@pytest.mark.parametrize(
    ("operation", "bound"),
    [
        ("negate(%p)", "memory"),
        ("fusion(%on_chip), kind=kLoop, calls=%random", "random bits"),
        ("fusion(%on_chip), kind=kLoop, calls=%summing", "vector units"),
        ("dot(%on_chip, %on_chip), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "matrix units"),
        ("all-reduce(%p), replica_groups=[1,8]<=[8], to_apply=%add", "collectives"),
        ('custom-call(%p), custom_call_target="tpu_custom_call"', "kernels"),
    ],
)
def test_what_limits_an_instruction(operation, bound):
    lines = [f"%p = {BIG} parameter(0)", f"%on_chip = {ON_CHIP} parameter(1)", f"ROOT %n = {ON_CHIP} {operation}"]
    assert cost("n", *lines, before=RANDOM + SUMMING).bound == bound


def test_random_bits_of_the_hardware_are_not_free():
    bits = "u32[1024,1024]{1,0:T(8,128)S(1)}"
    lines = [f"%p = {BIG} parameter(0)", "%k = u32[4]{0:T(128)S(1)} constant({1, 2, 3, 4})"]
    found = cost(
        "n", *lines, f"ROOT %n = (u32[4]{{0:T(128)S(1)}}, {bits}) rng-bit-generator(%k), algorithm=rng_default"
    )
    assert (found.source, found.bound) == ("vector", "random bits")
    assert found.seconds == pytest.approx(36 * (2**20 + 4) / (4 * 1024 * V5E.clock_hz))


PRODUCT = f"""\
%inner (i: {BIG}, k: {BIG}) -> {BIG} {{
  %i = {BIG} parameter(0)
  %k = {BIG} parameter(1)
  ROOT %c = {BIG} convolution(%i, %k), dim_labels=bf_io->bf
}}

%outer (a: {BIG}, b: {BIG}) -> {BIG} {{
  %a = {BIG} parameter(0)
  %b = {BIG} parameter(1)
  %f = {BIG} fusion(%a, %b), kind=kOutput, calls=%inner
  ROOT %d = {BIG} dot(%f, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


def test_flops_are_those_of_all_products_in_it():
    lines = [f"%p = {BIG} parameter(0)", f"ROOT %n = {BIG} fusion(%p, %p), kind=kOutput, calls=%outer"]
    assert cost("n", *lines, before=PRODUCT).flops == 2 * 2 * 512**3
    alone = f"ROOT %n = {BIG} dot(%p, %p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    assert cost("n", lines[0], alone).flops == 2 * 512**3


def loop(count):
    config = f', backend_config={{"known_trip_count":{{"n":"{count}"}}}}' if count else ""
    return f"%w{count} = ({BIG}) while(%t), condition=%condition, body=%body{config}"


LOOP = f"""\
%body (s: ({BIG})) -> ({BIG}) {{
  %s = ({BIG}) parameter(0)
  %x = {BIG} get-tuple-element(%s), index=0
  %y = {BIG} fusion(%x, %x), kind=kOutput, calls=%outer, {CYCLES % 100}
  ROOT %next = ({BIG}) tuple(%y)
}}

%condition (s.1: ({BIG})) -> pred[] {{
  %s.1 = ({BIG}) parameter(0)
  ROOT %go = pred[] compare(%s.1), {CYCLES % 7}
}}

%twice (s.2: ({BIG})) -> ({BIG}) {{
  %t = ({BIG}) parameter(0)
  ROOT {loop(3)}
}}
"""


def test_a_loop_does_all_in_it_as_often_as_it_runs():
    found = timeline(f"%t = ({BIG}) parameter(0)", f"ROOT {loop(10)}", before=PRODUCT + LOOP)
    by_name = {one.instruction.name: one for one in found.costs}
    assert by_name["y"].runs == by_name["go"].runs == 10
    assert by_name["y"].seconds == pytest.approx(1000 / V5E.clock_hz)
    assert by_name["go"].seconds == pytest.approx(70 / V5E.clock_hz)
    assert by_name["y"].flops == 10 * 4 * 512**3
    assert by_name["y"].bytes_accessed == by_name["y"].unpadded_bytes == 10 * 3 * MIB
    assert "w10" not in by_name
    assert found.unknown_loops == []


COUNTED = f"""\
%below (c: ({BIG}, s32[])) -> pred[] {{
  %c = ({BIG}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=1
  %limit = s32[] constant(6)
  ROOT %go = pred[] compare(%i, %limit), direction=LT, {CYCLES % 7}
}}

%count (s: ({BIG}, s32[])) -> ({BIG}, s32[]) {{
  %s = ({BIG}, s32[]) parameter(0)
  %x = {BIG} get-tuple-element(%s), index=0
  %y = {BIG} negate(%x), {CYCLES % 100}
  %j = s32[] get-tuple-element(%s), index=1
  %two = s32[] constant(2)
  %k = s32[] add(%j, %two), {CYCLES % 1}
  ROOT %next = ({BIG}, s32[]) tuple(%y, %k)
}}
"""


@pytest.mark.parametrize(("first", "runs", "unknown"), [("constant(1)", 3, []), ("parameter(1)", 1, ["w"])])
def test_a_loop_that_counts_does_all_in_it_as_often_as_it_counts(first, runs, unknown):
    state = f"({BIG}, s32[])"
    found = timeline(
        f"%p = {BIG} parameter(0)",
        f"%first = s32[] {first}",
        f"%t = {state} tuple(%p, %first)",
        f"ROOT %w = {state} while(%t), condition=%below, body=%count",
        before=COUNTED,
    )
    by_name = {one.instruction.name: one for one in found.costs}
    assert by_name["y"].runs == by_name["go"].runs == runs
    assert by_name["y"].seconds == pytest.approx(runs * 100 / V5E.clock_hz)
    assert by_name["go"].seconds == pytest.approx(runs * 7 / V5E.clock_hz)
    assert by_name["y"].bytes_accessed == runs * 2 * MIB
    assert found.unknown_loops == unknown


def test_a_loop_in_a_loop_runs_as_often_as_both_together():
    config = 'backend_config={"known_trip_count":{"n":"5"}}'
    outer = f"%o = ({BIG}) while(%t), condition=%condition, body=%twice, {config}"
    found = timeline(f"%t = ({BIG}) parameter(0)", f"ROOT {outer}", before=PRODUCT + LOOP)
    assert [one.runs for one in found.costs if one.instruction.name == "y"] == [15]


def test_a_loop_of_which_nobody_knows_counts_once_and_is_named():
    found = timeline(f"%t = ({BIG}) parameter(0)", f"ROOT {loop(0)}", before=PRODUCT + LOOP)
    assert [one.runs for one in found.costs if one.instruction.name == "y"] == [1]
    assert found.unknown_loops == ["w0"]


BRANCHES = f"""\
%cheap (c: ({BIG})) -> ({BIG}) {{
  %t = ({BIG}) parameter(0)
  ROOT {loop(0)}
}}

%dear (d: ({BIG})) -> ({BIG}) {{
  %d = ({BIG}) parameter(0)
  ROOT %slow = ({BIG}) fusion(%d), kind=kLoop, calls=%add, {CYCLES % 5000}
}}
"""


def test_of_branches_the_dearest_counts_with_its_loops_only():
    line = f"%c = ({BIG}) conditional(%i, %t, %t), branch_computations={{%cheap, %dear}}"
    lines = [f"%t = ({BIG}) parameter(0)", "%i = s32[] parameter(1)"]
    found = timeline(*lines, f"ROOT {line}", before=PRODUCT + LOOP + BRANCHES)
    assert [one.instruction.name for one in found.costs] == ["t", "i", "d", "slow"]
    assert found.unknown_loops == []
    other = BRANCHES.replace("5000", "5")
    found = timeline(*lines, loop(0), f"ROOT {line}", before=PRODUCT + LOOP + other)
    assert [one.instruction.name for one in found.costs if one.seconds] == ["go", "y", "go", "y"]
    assert found.unknown_loops == ["w0", "w0"]


def test_a_call_does_what_is_in_it():
    found = timeline(
        f"%t = ({BIG}) parameter(0)", f"ROOT %c = ({BIG}) call(%t), to_apply=%twice", before=PRODUCT + LOOP
    )
    assert [one.runs for one in found.costs if one.instruction.name == "y"] == [3]


# Collectives


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (f"{BIG} all-reduce(%p), to_apply=%add", 2 * MIB),
        (f"{BIG} all-reduce-start(%p), to_apply=%add", 2 * MIB),
        (f"({BIG}, {ON_CHIP}) all-reduce(%p, %p), to_apply=%add", 4 * MIB),
        ("f32[4096,512]{1,0:T(8,128)} all-gather(%p), dimensions={0}", 8 * MIB),
        (f"({BIG}, f32[4096,512]{{1,0:T(8,128)}}) all-gather-start(%p), dimensions={{0}}", 8 * MIB),
        ("f32[64,512]{1,0:T(8,128)} reduce-scatter(%p), dimensions={0}, to_apply=%add", MIB),
        (f"(({BIG}), f32[64,512]{{1,0:T(8,128)}}, u32[]) reduce-scatter-start(%p), calls=%add", MIB),
        (f"{BIG} all-to-all(%p), dimensions={{0}}", MIB),
    ],
)
def test_a_collective_takes_what_its_bytes_take_over_the_links(line, parts):
    """A ring of 8 sends 7/8 of what is gathered, or scattered; reducing for all is both."""
    found = cost("n", f"%p = {BIG} parameter(0)", f"ROOT %n = {line}, {CYCLES % 9}")
    assert found.source == "ici"
    assert found.seconds == pytest.approx(7 / 8 * parts / V5E.ici_bandwidth)


def test_the_cores_of_a_chip_share_its_links_and_padding_is_not_sent():
    lines = [
        "%p = f32[3,5]{1,0:T(8,128)} parameter(0)",
        "ROOT %n = f32[3,5]{1,0:T(8,128)} all-reduce(%p), to_apply=%add",
    ]
    assert cost("n", *lines, generation=V3).seconds == pytest.approx(2 * 7 / 8 * 60 / (V3.ici_bandwidth / 2))
    assert cost("n", *lines, devices=1).seconds == 0


def test_what_is_a_collective():
    lines = [f"%p = {BIG} parameter(0)", f"%s = {BIG} all-reduce-start(%p)", f"ROOT %d = {BIG} all-reduce-done(%s)"]
    assert [is_collective(one.instruction) for one in timeline(*lines).costs] == [False, True, False]


@pytest.mark.parametrize(("generation", "links"), [("v5e", 4), ("v5p", 6), ("v3", 2 * 4), ("7x", 2 * 6)])
@pytest.mark.parametrize(
    "line", [f"{BIG} collective-permute(%p)", f"({BIG}, {BIG}, u32[], u32[]) collective-permute-start(%p)"]
)
def test_what_goes_to_one_neighbour_takes_one_link_of_four_or_six(line, generation, links):
    """Two cores of a chip, as a v3 and a 7x have, share it; what was measured was no permutation."""
    generation = TPU_GENERATIONS[generation]
    lines = [f"%p = {BIG} parameter(0)", f"ROOT %n = {line}, source_target_pairs={{{{0,1}},{{1,0}}}}"]
    for corrections in ({}, {"collectives": Line(1e-5, 0.5)}):
        found = cost("n", *lines, generation=generation, corrections=corrections)
        assert (found.source, found.seconds) == ("ici", pytest.approx(MIB / (generation.ici_bandwidth / links)))


# Asynchronous collectives

MUCH = "f32[4096,512]{1,0:T(8,128)}"
GATHER = 7 / 8 * 8 * MIB / V5E.ici_bandwidth


def begin(name):
    return f"%{name} = ({BIG}, {MUCH}) all-gather-start(%p), dimensions={{0}}"


def end(name):
    return f"%{name}.done = {MUCH} all-gather-done(%{name})"


def work(part, name="work"):
    """Return a line that takes a part of the time of a gather."""
    return f"%{name} = {BIG} negate(%p), {CYCLES % round(part * GATHER * V5E.clock_hz)}"


def gather_parts(*lines, before=""):
    """Return the parts of the times of gathers that are left."""
    found = timeline(f"%p = {BIG} parameter(0)", *lines, before=before)
    return [one.seconds / GATHER for one in found.costs if is_collective(one.instruction)]


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ([begin("a"), end("a")], 1),
        ([begin("a"), work(0.25), end("a")], 0.75),
        ([begin("a"), work(0.25, "w"), work(0.5), end("a")], 0.25),
        ([begin("a"), work(1.5), end("a")], 0),
        ([work(1.5, "w"), begin("a"), end("a"), work(1.5)], 1),
        ([begin("a"), work(1.5)], 1),
    ],
)
def test_work_between_the_start_and_the_end_hides_a_collective(lines, left):
    assert gather_parts(*lines) == pytest.approx([left], abs=1e-4)


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ([begin("a"), begin("b"), end("a"), end("b")], [1, 1]),
        ([begin("a"), begin("b"), work(0.25), end("a"), end("b")], [0.75, 1]),
        ([begin("a"), begin("b"), work(1.5), end("a"), end("b")], [0, 0.5]),
        ([begin("a"), work(0.5, "w"), begin("b"), work(0.25), end("a"), end("b")], [0.25, 1]),
        ([begin("a"), begin("b"), end("a"), work(0.25), end("b")], [1, 0.75]),
        ([begin("a"), begin("b"), end("b"), end("a")], [0, 2]),
        ([begin("a"), begin("b"), work(0.25), end("b"), end("a")], [0, 1.75]),
        ([begin("a"), f"%s = {MUCH} all-gather(%p), dimensions={{0}}", end("a")], [1, 1]),
    ],
)
def test_two_collectives_at_once_take_turns(lines, left):
    assert gather_parts(*lines) == pytest.approx(left, abs=1e-4)


def test_two_permutations_at_once_go_to_two_neighbours():
    there, back = (f"%{name} = ({BIG}, {BIG}, u32[], u32[]) collective-permute-start(%p)" for name in "ab")
    ends = [f"%{name}.done = {BIG} collective-permute-done(%{name})" for name in "ab"]
    alone = sum(gather_parts(there, ends[0]))
    assert alone > 0
    assert gather_parts(there, back, *ends) == pytest.approx([alone, 0])
    assert gather_parts(there, ends[0], back, ends[1]) == pytest.approx([alone, alone])


CALLED = f"""\
%summed (i: {BIG}, t: token[]) -> {BIG} {{
  %t = token[] parameter(1)
  %i = {BIG} parameter(0)
  ROOT %r = {BIG} all-reduce(%i), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, to_apply=%add
}}, execution_thread="sparsecore"

%negated (n: {BIG}, t.1: token[]) -> {BIG} {{
  %t.1 = token[] parameter(1)
  %n = {BIG} parameter(0)
  ROOT %s = {BIG} negate(%n), {CYCLES % 7}
}}, execution_thread="sparsecore"
"""


def call(name, called):
    """Return the two lines of a call on a SparseCore."""
    attributes = f'async_execution_thread="sparsecore", to_apply=%{called}'
    return (
        f"%{name} = (({BIG}, token[]), {BIG}) call-start(%p, %t), {attributes}",
        f"%{name}.done = {BIG} call-done(%{name})",
    )


def test_a_collective_on_a_sparse_core_is_as_any_asynchronous_one():
    start, done = call("c", "summed")
    lines = [f"%p = {BIG} parameter(0)", "%t = token[] after-all()", start, work(0.1), f"ROOT {done}"]
    found = cost("c", *lines, before=CALLED)
    of_four = 2 * 3 / 4 * MIB / V5E.ici_bandwidth
    assert (found.source, found.instruction.operands) == ("ici", ("p",))
    assert found.seconds == pytest.approx(of_four - 0.1 * GATHER, rel=1e-3)
    assert cost("c.done", *lines, before=CALLED).source == "none"


def test_other_work_on_a_sparse_core_is_counted_as_work():
    start, done = call("c", "negated")
    lines = [f"%p = {BIG} parameter(0)", "%t = token[] after-all()", start, f"ROOT {done}"]
    found = timeline(*lines, before=CALLED)
    assert {one.instruction.name: one.seconds for one in found.costs if one.seconds} == {"s": 7 / V5E.clock_hz}


def test_in_a_loop_a_collective_is_hidden_in_each_iteration():
    lines = "\n  ".join([f"%p = {BIG} parameter(0)", begin("a"), work(0.25), f"ROOT {end('a')}"])
    body = f"%around (p: {BIG}) -> {BIG} {{\n  {lines}\n}}\n"
    loop = "%w = f32[] while(%p), condition=%add, body=%around"
    known = 'backend_config={"known_trip_count":{"n":"10"}}'
    assert gather_parts(f"ROOT {loop}, {known}", before=body) == pytest.approx([7.5], abs=1e-3)


SCATTERING = f"""\
%all-reduce-scatter.1 (i: {BIG}) -> f32[64,512] {{
  %i = {BIG} parameter(0)
  %r = {BIG} all-reduce(%i), replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %d = f32[64,512]{{1,0:T(8,128)}} dynamic-slice(%r), dynamic_slice_sizes={{64,512}}
}}
"""


def test_a_fusion_that_sums_and_keeps_a_part_is_a_reduce_scatter():
    line = "ROOT %n = f32[64,512]{1,0:T(8,128)} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1"
    found = cost("n", f"%p = {BIG} parameter(0)", line, before=SCATTERING)
    assert found.source == "ici"
    assert found.seconds == pytest.approx(7 / 8 * MIB / V5E.ici_bandwidth)


GATHERING = f"""\
%gathering (g: {BIG}) -> f32[2048,512] {{
  %g = {BIG} parameter(0)
  ROOT %all = f32[2048,512]{{1,0:T(8,128)}} all-gather(%g), replica_groups=[2,4]<=[8], dimensions={{0}}
}}
"""


def test_a_fusion_that_begins_a_collective_takes_as_long_as_it_and_one_that_ends_it_nothing():
    result = "f32[2048,512]{1,0:T(8,128)}"
    lines = [
        f"%p = {BIG} parameter(0)",
        f"%async-collective-start.2 = ({BIG}, {result}, u32[]) fusion(%p), calls=%gathering, {CYCLES % 5}",
        f"%g = {result} get-tuple-element(%async-collective-start.2), index=1",
        work(0.25),
        f"ROOT %async-collective-done.2 = {result} fusion(%g), calls=%gathering, {CYCLES % 5}",
    ]
    start = cost("async-collective-start.2", *lines, before=GATHERING)
    of_four = 3 / 4 * 4 * MIB / V5E.ici_bandwidth
    assert start.source == "ici"
    assert start.seconds == pytest.approx(of_four - 0.25 * GATHER, rel=1e-3)
    assert cost("async-collective-done.2", *lines, before=GATHERING).source == "none"


# Lookups and updates

TABLE, ROWS = "f32[8192,128]{1,0:T(8,128)}", "f32[16,128]{1,0:T(8,128)}"
FUSED = f"""\
%look (t: {TABLE}, i: s32[16]) -> {ROWS} {{
  %t = {TABLE} parameter(0)
  %i = s32[16]{{0:T(128)}} parameter(1)
  ROOT %g = {ROWS} gather(%t, %i), offset_dims={{1}}
}}

%change (t.1: {TABLE}, i.1: s32[16], u: {ROWS}) -> {TABLE} {{
  %t.1 = {TABLE} parameter(0)
  %i.1 = s32[16]{{0:T(128)}} parameter(1)
  %u = {ROWS} parameter(2)
  ROOT %s = {TABLE} scatter(%t.1, %i.1, %u), to_apply=%add
}}

%changes (t.2: {TABLE}, t.3: {TABLE}, u.1: {ROWS}) -> ({TABLE}, {TABLE}) {{
  %t.2 = {TABLE} parameter(0)
  %t.3 = {TABLE} parameter(1)
  %u.1 = {ROWS} parameter(2)
  %a.1 = {TABLE} dynamic-update-slice(%t.2, %u.1)
  %a.2 = {TABLE} dynamic-update-slice(%t.3, %u.1)
  ROOT %both = ({TABLE}, {TABLE}) tuple(%a.1, %a.2)
}}
"""
OPERANDS = [
    f"%table = {TABLE} parameter(0)",
    "%ids = s32[16]{0:T(128)} parameter(1)",
    f"%rows = {ROWS} parameter(2)",
]
IDS, ROW_BYTES = 512, 16 * 512


def test_a_lookup_reads_rows_and_not_the_table():
    fused = cost("n", *OPERANDS, f"ROOT %n = {ROWS} fusion(%table, %ids), kind=kCustom, calls=%look", before=FUSED)
    assert (fused.bytes_accessed, fused.unpadded_bytes) == (IDS + 2 * ROW_BYTES, 64 + 2 * ROW_BYTES)
    alone = cost("n", *OPERANDS, f"ROOT %n = {ROWS} gather(%table, %ids)")
    assert (alone.bytes_accessed, alone.unpadded_bytes) == (fused.bytes_accessed, fused.unpadded_bytes)


def test_a_lookup_of_more_than_the_table_reads_it_once():
    line = f"ROOT %n = {TABLE} gather(%rows, %ids)"
    assert cost("n", *OPERANDS, line).bytes_accessed == IDS + ROW_BYTES + 8192 * 512


def test_a_lookup_in_hbm_for_what_is_on_the_chip_reads_the_rows():
    line = "ROOT %n = f32[16,128]{1,0:T(8,128)S(1)} dynamic-slice(%table, %ids)"
    assert cost("n", *OPERANDS, line).bytes_accessed == IDS + ROW_BYTES


def test_an_update_in_place_reads_and_writes_rows_and_not_the_table():
    line = f"ROOT %n = {TABLE} fusion(%table, %ids, %rows), kind=kCustom, calls=%change"
    assert cost("n", *OPERANDS, line, before=FUSED).bytes_accessed == 2 * (IDS + ROW_BYTES)
    alone = cost("n", *OPERANDS, f"ROOT %n = {TABLE} dynamic-update-slice(%table, %rows)")
    assert alone.bytes_accessed == 2 * ROW_BYTES


def test_updates_of_two_tables_move_neither_of_them():
    line = f"ROOT %n = ({TABLE}, {TABLE}) fusion(%table, %table, %rows), kind=kLoop, calls=%changes"
    assert cost("n", *OPERANDS, line, before=FUSED).bytes_accessed == 2 * ROW_BYTES


def test_an_update_of_what_is_as_large_as_the_table_writes_all_of_it():
    found = cost("n", *OPERANDS, f"ROOT %n = {TABLE} dynamic-update-slice(%table, %table)")
    assert found.bytes_accessed == 3 * 8192 * 512


QKV = "bf16[8,4,256,64]{3,2,1,0:T(8,128)(2,1)}"
TARGET = 'custom_call_target="tpu_custom_call"'
SCORES = 8 * 4 * 256 * 256


def kernel(name, more="", generation=V5E):
    lines = [f"%{one} = {QKV} parameter({i})" for i, one in enumerate("qkv")]
    mask = "%m = s8[1,1,1]{2,1,0} parameter(3)"
    call = f"ROOT %{name} = {QKV} custom-call(%m, %m, %q, %k, %v), {TARGET}{more}"
    return cost(name, *lines, mask, call, generation=generation)


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("splash_mha_fwd_residuals.1", 2),
        ("splash_mha_dq_no_residuals", 3),
        ("splash_mha_dkv_segmented_no_residuals.7", 4),
    ],
)
def test_attention_kernels_count_by_their_products(name, products):
    found = kernel(name)
    assert found.flops == products * 2 * SCORES * 64
    # A depth of 64 takes a whole matrix unit of 128, or of 256.
    for generation, fills in ((V5E, 2), (TPU_GENERATIONS["v6e"], 4)):
        by_products = fills * found.flops / generation.peak_bf16_flops
        by_bytes = found.bytes_accessed / generation.hbm_bandwidth
        one = kernel(name, generation=generation)
        assert one.seconds == pytest.approx(max(by_products, by_bytes))
        assert one.source == ("kernel" if by_products > by_bytes else "hbm")


def test_blocks_that_a_mask_leaves_out_do_not_count():
    found = kernel(
        "splash_mha_fwd_residuals.1", ', metadata={op_name="jit(step)/jvp(att)/blocks_10_of_16_in_4/pallas_call"}'
    )
    assert found.flops == 2 * 2 * SCORES * 64 * 10 / 16


def test_a_kernel_with_an_estimate_of_its_own_counts_by_it():
    estimate = ', backend_config={"custom_call_config":{"cost_estimate":{"flops":123456789012,"bytes_accessed":7}}}'
    found = kernel("any", estimate)
    assert (found.source, found.flops) == ("kernel", 123456789012)
    assert found.seconds == pytest.approx(123456789012 / V5E.peak_bf16_flops)


def test_other_kernels_count_by_their_bytes():
    found = kernel("any")
    assert (found.source, found.flops) == ("hbm", 0)
    assert found.seconds == pytest.approx(found.bytes_accessed / V5E.hbm_bandwidth)


COPIES = {"copies": Line(2e-6, 0.8)}
MOVED = pytest.approx(2e-6 + 2 * MIB / (0.8 * V5E.hbm_bandwidth))


def fusion(*lines, kind="kLoop"):
    """Return a computation of these lines, and the fusion of it."""
    inner = "\n".join(f"  {line}" for line in (f"%i = {BIG} parameter(0)", *lines))
    before = f"%inner (i: {BIG}) -> {BIG} {{\n{inner}\n}}\n"
    return before, f"ROOT %n = {BIG} fusion(%p), kind={kind}, calls=%inner, {CYCLES % 30_000}"


def test_a_copy_takes_what_was_measured_where_that_is_asked_for():
    lines = [f"%p = {BIG} parameter(0)", f"ROOT %n = {BIG} copy(%p), {CYCLES % 30_000}"]
    found = cost("n", *lines, corrections=COPIES)
    assert (found.source, found.seconds) == ("measured", MOVED)
    assert cost("n", *lines).seconds == pytest.approx(30_000 / V5E.clock_hz)
    assert cost("n", *lines, corrections={"collectives": Line(2e-6, 0.8)}).source == "compiler"


ERFS = [f"%e{j} = {BIG} erf(%i)" for j in range(3)]
WIDE = "f32[64,512,512]{2,1,0:T(8,128)}"


@pytest.mark.parametrize(
    ("lines", "source"),
    [
        ([f"ROOT %o = {BIG} negate(%i)"], "measured"),
        ([f"%a = {BIG} exponential(%i)", f"%b = {BIG} convert(%a)", f"ROOT %o = {BIG} divide(%b, %i)"], "measured"),
        (["%s = f32[512]{0:T(512)} reduce(%i, %i), to_apply=%add", f"ROOT %o = {BIG} broadcast(%s)"], "measured"),
        ([*ERFS, f"ROOT %o = {BIG} broadcast(%e2)"], "measured"),
        ([*ERFS, f"ROOT %o = {BIG} negate(%e2)"], "compiler"),
        ([f"%w = {WIDE} broadcast(%i)", f"ROOT %o = {BIG} reduce(%w, %i), to_apply=%add"], "compiler"),
        ([f"ROOT %o = {BIG} transpose(%i), dimensions={{1,0}}"], "compiler"),
        ([f"ROOT %o = {BIG} sort(%i), dimensions={{1}}"], "compiler"),
        ([f"ROOT %o = {BIG} convolution(%i, %i), dim_labels=bf_io->bf"], "compiler"),
    ],
)
def test_what_memory_limits_takes_no_longer_than_a_copy(lines, source):
    """The vector units do 60 operations in the time in which a number comes and goes: as many as three `erf` are."""
    before, line = fusion(*lines)
    found = cost("n", f"%p = {BIG} parameter(0)", line, before=before, corrections=COPIES)
    assert found.source == source
    assert found.seconds == (MOVED if source == "measured" else pytest.approx(30_000 / V5E.clock_hz))


@pytest.mark.parametrize(("read", "written", "size"), [(ON_CHIP, ON_CHIP, 2), (BIG, ON_CHIP, 1), (ON_CHIP, BIG, 1)])
def test_what_stays_on_the_chip_takes_no_longer_than_in_memory_and_beside_it(read, written, size):
    lines = [f"%p = {read} parameter(0)", f"ROOT %n = {written} negate(%p), "]
    found, less = (cost("n", lines[0], lines[1] + CYCLES % cycles, corrections=COPIES) for cycles in (30_000, 300))
    assert found.seconds == pytest.approx(2e-6 + size * MIB / (0.8 * V5E.hbm_bandwidth))
    assert (found.source, less.source) == ("measured", "compiler")


@pytest.mark.parametrize(
    ("name", "links"), [("v6e-8", 2 / 4), ("v6e-256", 1), ("v5e-1", 0), ("7x-8", 2 / 6), ("v5p-128", 1)]
)
def test_a_small_slice_has_fewer_links(name, links):
    assert parse_target(name).used_links == pytest.approx(links)


def test_a_collective_takes_what_was_measured_over_the_links_that_the_slice_has():
    lines = [f"%p = {BIG} parameter(0)", f"ROOT %n = {BIG} all-reduce(%p), to_apply=%add"]
    target = parse_target("v6e-8")
    found = cost("n", *lines, target=target, corrections={"collectives": Line(1e-5, 0.5)})
    sent = 2 * 7 / 8 * MIB
    assert found.seconds == pytest.approx(1e-5 + sent / (0.5 * target.generation.ici_bandwidth * 2 / 4))
    one = parse_target("v6e-1")
    assert cost("n", *lines, target=one, corrections={"collectives": Line(1e-5, 0.5)}).seconds == 0


@pytest.mark.parametrize(
    "groups", ["{{0,2,4,6},{1,3,5,7}}", "[2,4]<=[4,2]T(1,0)", "mesh['axis_0'=2,'axis_1'=4] {'axis_1'}"]
)
def test_a_collective_of_groups_is_a_ring_of_each(groups):
    line = f"ROOT %n = {BIG} all-reduce(%p), replica_groups={groups}, to_apply=%add"
    assert cost("n", f"%p = {BIG} parameter(0)", line).seconds == pytest.approx(2 * 3 / 4 * MIB / V5E.ici_bandwidth)


@pytest.mark.parametrize("kind", ["f32[512,512]{0,1:T(8,128)}", "(f32[512,512]{0,1:T(8,128)}, f32[])"])
def test_a_copy_into_another_layout_is_the_compilers(kind):
    lines = [f"%p = {BIG} parameter(0)", f"ROOT %n = {kind} copy(%p), {CYCLES % 30_000}"]
    assert cost("n", *lines, corrections=COPIES).source == "compiler"


def test_sizes_that_were_not_measured_are_the_compilers():
    small = "f32[8,128]{1,0:T(8,128)}"
    lines = [f"%p = {small} parameter(0)", f"ROOT %n = {small} copy(%p), {CYCLES % 300}"]
    found = cost("n", *lines, corrections=COPIES)
    assert (found.source, found.seconds) == ("compiler", pytest.approx(300 / V5E.clock_hz))
