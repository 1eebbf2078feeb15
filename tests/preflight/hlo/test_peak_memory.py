"""What is in HBM when it is fullest, in small scheduled programs whose buffers can be counted by hand."""

import tracemalloc

import pytest

from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.peak_memory import buffers_at_peak

pytestmark = pytest.mark.gate_on("keras3_jax")

MIB = 2**20  # of f32[512,512], without padding in tiles of 8 x 128
BIG = "f32[512,512]{1,0:T(8,128)}"
ON_CHIP = "f32[512,512]{1,0:T(8,128)S(1)}"


def program(*lines, before=""):
    body = "\n".join(f"  {line}" for line in lines)
    return Module.parse(f"{before}\nENTRY %main (p: f32[512,512]) -> f32[512,512] {{\n{body}\n}}\n")


def at_peak(*lines, before=""):
    return [(buffer.instruction.name, buffer.bytes) for buffer in buffers_at_peak(program(*lines, before=before))]


def test_what_is_read_no_more_makes_room():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"%a = {BIG} negate(%p)",
        f"%b = {BIG} negate(%a)",
        f"%c = {BIG} negate(%b)",
        f"ROOT %d = {BIG} negate(%c)",
    )
    assert found == [("a", MIB), ("b", MIB)]  # at first, and as often as two are there at once


def test_what_is_read_late_stays():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"%a = {BIG} negate(%p)",
        f"%b = {BIG} negate(%a)",
        f"%c = {BIG} negate(%b)",
        f"ROOT %d = {BIG} add(%c, %a)",
    )
    assert found == [("a", MIB), ("b", MIB), ("c", MIB)]


def test_the_largest_is_first_and_padding_counts():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        "%a = f32[1]{0:T(128)} slice(%p)",
        "%b = f32[3,5]{1,0:T(8,128)} slice(%p)",
        f"ROOT %c = {BIG} pad(%a, %b)",
    )
    assert found == [("c", MIB), ("b", 4096), ("a", 512)]


def test_what_is_written_into_an_argument_takes_no_more_memory():
    """Of two results the second alone is new; so it is behind `get-tuple-element`, `bitcast` and a loop."""
    pair = f"({BIG}, {BIG})"
    lines = [
        f"%p = {BIG} parameter(0)",
        f"%f = {pair} fusion(%p), kind=kLoop, calls=%g",
        f"%old = {BIG} get-tuple-element(%f), index=0",
        f"%new = {BIG} get-tuple-element(%f), index=1",
        f"%same = {BIG} bitcast(%old)",
        f"ROOT %t = {pair} tuple(%same, %new)",
    ]
    donated = "HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation"
    assert at_peak(*lines) == [("f", MIB), ("f", MIB)]
    assert at_peak(*lines, before=donated) == [("f", MIB)]
    both = donated.replace("may-alias)", "may-alias), {1}: (1, {}, may-alias)")
    assert at_peak(*lines, before=both) == []
    lines[1:4] = [
        f"%a = {BIG} negate(%p)",
        f"%i = {pair} tuple(%a, %p)",
        f"%w = {pair} while(%i), condition=%g, body=%g",
        f"%old = {BIG} get-tuple-element(%w), index=0",
        f"%new = {BIG} negate(%old)",
    ]
    body = f"%g (q: {pair}) -> {pair} {{\n  ROOT %q = {pair} parameter(0)\n}}\n"
    assert at_peak(*lines, before=f"{donated}\n{body}") == [("new", MIB)]


def test_the_programs_result_stays_to_the_end():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"%a = {BIG} negate(%p)",
        f"%b = {BIG} negate(%p)",
        "%d = f32[1024,512]{1,0:T(8,128)} concatenate(%p, %p)",
        f"ROOT %t = ({BIG}, f32[1024,512]{{1,0:T(8,128)}}) tuple(%a, %d)",
    )
    assert found == [("d", 2 * MIB), ("a", MIB)]


def test_a_result_stays_where_it_is_not_the_last_in_the_schedule_too():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"ROOT %a = {BIG} negate(%p)",
        "%d = f32[1024,512]{1,0:T(8,128)} concatenate(%p, %p)",
        "%e = f32[1024,512]{1,0:T(8,128)S(1)} negate(%d)",
    )
    assert found == [("d", 2 * MIB), ("a", MIB)]


def test_a_result_keeps_what_only_has_another_name():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"%a = ({BIG}, f32[8]{{0}}) fusion(%p), kind=kLoop, calls=%f",
        f"%g = {BIG} get-tuple-element(%a), index=0",
        "%v = f32[262144]{0:T(1024)} bitcast(%g)",
        f"%b = {BIG} negate(%p)",
        f"%c = {BIG} negate(%b)",
        f"ROOT %d = {BIG} add(%c, %v)",
    )
    assert found == [("a", MIB), ("b", MIB), ("c", MIB), ("a", 32)]


def test_what_is_on_the_chip_takes_no_hbm():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"%a = {ON_CHIP} negate(%p)",
        f"%b = {ON_CHIP} negate(%a)",
        f"ROOT %c = {BIG} add(%a, %b)",
    )
    assert found == [("c", MIB)]


def test_a_copy_to_the_chip_takes_nothing_and_one_from_there_its_size_once():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"%s = ({ON_CHIP}, {BIG}, u32[]{{:S(2)}}) copy-start(%p)",
        f"%d = {ON_CHIP} copy-done(%s)",
        f"%s.1 = ({BIG}, {ON_CHIP}, u32[]{{:S(2)}}) copy-start(%d)",
        f"ROOT %d.1 = {BIG} copy-done(%s.1)",
    )
    assert found == [("s.1", MIB)]


def test_the_end_of_what_was_begun_is_in_its_memory():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"%s = ((f32[4096,4096]{{1,0:T(8,128)}}), {BIG}, s32[]{{:S(2)}}) slice-start(%p), calls=%c",
        f"%d = {BIG} slice-done(%s)",
        f"%r = {BIG} all-reduce-start(%d), to_apply=%add",
        f"%e = {BIG} all-reduce-done(%r)",
        f"ROOT %x = {ON_CHIP} negate(%e)",
    )
    assert found == [("s", MIB), ("r", MIB)]


def test_what_is_written_in_place_takes_no_new_memory():
    line = f"%b = {BIG} fusion(%a), kind=kLoop, calls=%f"
    lines = [f"%p = {BIG} parameter(0)", f"%a = {BIG} negate(%p)", line, f"ROOT %c = {ON_CHIP} negate(%b)"]
    assert at_peak(*lines) == [("a", MIB), ("b", MIB)]
    lines[2] += ", output_to_operand_aliasing={{}: (0, {})}"
    assert at_peak(*lines) == [("a", MIB)]


LOOP = f"""\
%body (state: ({BIG})) -> ({BIG}) {{
  %state = ({BIG}) parameter(0)
  %x = {BIG} get-tuple-element(%state), index=0
  %y = {BIG} negate(%x)
  %z = f32[1024,512]{{1,0:T(8,128)}} concatenate(%y, %x)
  %o = {ON_CHIP} slice(%z)
  ROOT %next = ({BIG}) tuple(%x)
}}

%condition (state.1: ({BIG})) -> pred[] {{
  %state.1 = ({BIG}) parameter(0)
  ROOT %go = pred[] constant(true)
}}
"""


def test_the_body_of_a_loop_adds_what_it_needs_and_the_loops_state_is_there_once():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"%a = {BIG} negate(%p)",
        f"%t = ({BIG}) tuple(%a)",
        f"%w = ({BIG}) while(%t), condition=%condition, body=%body",
        f"%g = {BIG} get-tuple-element(%w), index=0",
        f"ROOT %r = {BIG} negate(%g)",
        before=LOOP,
    )
    assert found == [("z", 2 * MIB), ("a", MIB), ("y", MIB)]


BRANCHES = f"""\
%small (s: {BIG}) -> {BIG} {{
  %s = {BIG} parameter(0)
  ROOT %minus = {BIG} negate(%s)
}}

%large (l: {BIG}) -> {BIG} {{
  %l = {BIG} parameter(0)
  %twice = f32[1024,512]{{1,0:T(8,128)}} concatenate(%l, %l)
  ROOT %half = {BIG} slice(%twice)
}}
"""


def test_of_the_branches_of_a_conditional_the_larger_counts_and_its_result_once():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        "%i = s32[] parameter(1)",
        f"%c = {BIG} conditional(%i, %p, %p), branch_computations={{%small, %large}}",
        f"ROOT %r = {ON_CHIP} negate(%c)",
        before=BRANCHES,
    )
    assert found == [("twice", 2 * MIB), ("half", MIB)]


def test_a_call_needs_what_is_in_it():
    found = at_peak(
        f"%p = {BIG} parameter(0)",
        f"ROOT %c = {BIG} call(%p), to_apply=%large",
        before=BRANCHES,
    )
    assert found == [("twice", 2 * MIB), ("half", MIB)]


def test_a_program_without_temporaries_has_none():
    assert at_peak(f"ROOT %p = {BIG} parameter(0)") == []


def test_a_long_chain_of_names_for_a_buffer_takes_little_memory():
    names = [f"%b{i} = {BIG} bitcast(%b{i - 1})" for i in range(1, 2000)]
    module = program(f"%p = {BIG} parameter(0)", f"%b0 = {BIG} negate(%p)", *names, f"ROOT %r = {BIG} negate(%b1999)")
    tracemalloc.start()
    try:
        assert [buffer.instruction.name for buffer in buffers_at_peak(module)] == ["b0", "r"]
        assert tracemalloc.get_traced_memory()[1] < 10 * MIB
    finally:
        tracemalloc.stop()
