"""Reading compiled HLO: what stands in it, found in few lines as the TPU compiler prints them."""

import pytest

from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.shape import parse_shape

pytestmark = pytest.mark.gate_on("keras3_jax")

TEXT = """\
HloModule jit_train_step, is_scheduled=true, entry_computation_layout={(f32[64]{0:T(128)})->f32[64]{0:T(128)}}

FileNames
1 "/tmp/model.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=4 end_column=151}


%add.clone (x.1: f32[], y.1: f32[]) -> f32[] {
  %y.1 = f32[]{:T(128)} parameter(1)
  %x.1 = f32[]{:T(128)} parameter(0)
  ROOT %add.41 = f32[]{:T(128)} add(%x.1, %y.1)
}

%inner (p: f32[64]) -> f32[64] {
  %p = f32[64]{0:T(128)} parameter(0)
  ROOT %negate.1 = f32[64]{0:T(128)} negate(%p), metadata={op_name="jit(train_step)/neg"}
}

%fused_computation.66 (param_0.181: f32[64], param_1: f32[64]) -> (f32[64], f32[64]) {
  %param_0.181 = f32[64]{0:T(128)} parameter(0)
  %nested = f32[64]{0:T(128)} fusion(%param_0.181), kind=kLoop, calls=%inner
  %param_1 = f32[64]{0:T(128)} parameter(1)
  ROOT %tuple.3 = (f32[64]{0:T(128)}, f32[64]{0:T(128)}) tuple(%nested, %param_1)
}

ENTRY %main.12_spmd (param.4: f32[64]) -> f32[64] {
  %param.4 = f32[64]{0:T(128)} parameter(0), metadata={op_name="state[0][1]"}
  %copy-start.5 = (f32[64]{0:T(128)S(1)}, f32[64]{0:T(128)}, u32[]{:S(2)}) copy-start(%param.4), \
backend_config={"dma_priority":1}
  %copy-done.5 = f32[64]{0:T(128)S(1)} copy-done(%copy-start.5)
  %all-reduce.1 = f32[64]{0:T(128)S(1)} all-reduce(%copy-done.5), channel_id=1, \
replica_groups=mesh['axis_0'=8] {'axis_0'}, to_apply=%add.clone, \
metadata={op_name="jit(train_step)/jvp(\\"a\\")/add" stack_frame_id=4}
  %fusion.32 = (f32[64]{0:T(128)S(1)}, /*index=1*/f32[64]{0:T(128)}) fusion(%copy-done.5, /*index=1*/%all-reduce.1), \
kind=kLoop, calls=%fused_computation.66, backend_config={"flag_configs":[], \
"window_config":{"kernel_window_bounds":["3","3"],"estimated_cycles":"65145"}}
  ROOT %get-tuple-element.9 = f32[64]{0:T(128)} get-tuple-element(%fusion.32), index=1
  %later = f32[64]{0:T(128)} negate(%param.4)
}
"""


KERNEL = """\
ENTRY %main (q: bf16[4]) -> bf16[4] {
  %q = bf16[4]{0} parameter(0)
  %kernel.1 = bf16[4]{0} custom-call(%q), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 256}"
}}, metadata={op_name="jit(step)/jvp(att)/kernel"}, \
backend_config={"custom_call_config":{"cost_estimate":{"flops":8}}}
  ROOT %negate.1 = bf16[4]{0} negate(%kernel.1)
}
"""


def test_metadata_of_a_kernel_goes_over_several_lines():
    entry = Module.parse(KERNEL).entry
    assert [one.name for one in entry.instructions] == ["q", "kernel.1", "negate.1"]
    kernel = entry.by_name["kernel.1"]
    assert kernel.op_name == "jit(step)/jvp(att)/kernel"
    assert kernel.backend_config["custom_call_config"]["cost_estimate"] == {"flops": 8}


@pytest.fixture
def module():
    return Module.parse(TEXT)


def test_all_computations_are_there_and_one_is_the_entry(module):
    assert list(module.computations) == ["add.clone", "inner", "fused_computation.66", "main.12_spmd"]
    assert module.entry is module.computations["main.12_spmd"]


def test_instructions_are_in_their_order(module):
    names = ["param.4", "copy-start.5", "copy-done.5", "all-reduce.1", "fusion.32", "get-tuple-element.9", "later"]
    assert [one.name for one in module.entry.instructions] == names
    opcodes = ["parameter", "copy-start", "copy-done", "all-reduce", "fusion", "get-tuple-element", "negate"]
    assert [one.opcode for one in module.entry.instructions] == opcodes


def test_the_root_is_where_it_says_so_and_else_the_last(module):
    assert module.entry.root.name == "get-tuple-element.9"
    bare = Module.parse(TEXT.replace("ROOT ", ""))
    assert bare.entry.root.name == "later"


def test_an_instruction_has_its_shape_operands_and_name(module):
    fusion = module.entry.by_name["fusion.32"]
    assert fusion.operands == ("copy-done.5", "all-reduce.1")
    assert fusion.shape == parse_shape("(f32[64]{0:T(128)S(1)}, f32[64]{0:T(128)})")
    assert module.entry.by_name["param.4"].op_name == "state[0][1]"
    assert module.entry.by_name["all-reduce.1"].op_name == r"jit(train_step)/jvp(\"a\")/add"
    assert fusion.op_name == ""


def test_cycles_are_those_that_the_compiler_estimates(module):
    assert module.entry.by_name["fusion.32"].estimated_cycles == 65145
    assert module.entry.by_name["all-reduce.1"].estimated_cycles is None


def test_what_it_calls_is_found_at_any_depth(module):
    fusion = module.entry.by_name["fusion.32"]
    assert fusion.called_computations == {"calls": "fused_computation.66"}
    assert [one.name for one in module.called_instructions(fusion)] == [
        "param_0.181",
        "nested",
        "p",
        "negate.1",
        "param_1",
        "tuple.3",
    ]
    assert module.entry.by_name["all-reduce.1"].called_computations == {"to_apply": "add.clone"}
    assert list(module.called_instructions(module.entry.by_name["param.4"])) == []


def only(line):
    text = f"ENTRY %main (p: f32[]) -> f32[] {{\n  {line}\n}}\n"
    (instruction,) = Module.parse(text).entry.instructions
    return instruction


def test_a_loop_has_a_condition_a_body_and_a_count():
    line = "%while.1 = (s32[], f32[8]{0}) while(%tuple.1), condition=%cond.1, body=%body.1"
    config = ', backend_config={"known_trip_count":{"n":"10"},"known_induction_variable":{"tuple_index":"0"}}'
    assert only(line + config).called_computations == {"condition": "cond.1", "body": "body.1"}
    assert only(line + config).trip_count == 10
    assert only(line).trip_count is None


@pytest.mark.parametrize("config", ["{", '{"known_trip_count":{}}', '{"known_init_step":{"init":"0"}}'])
def test_a_config_that_says_nothing_of_loops_or_is_cut_off_is_no_error(config):
    assert (
        only(f"%while.1 = f32[8]{{0}} while(%a), condition=%c, body=%b, backend_config={config}").trip_count is None
    )


@pytest.mark.parametrize(
    ("behind", "called"),
    [
        ("branch_computations={%one, %two.1, %three}", {"branch 0": "one", "branch 1": "two.1", "branch 2": "three"}),
        ("true_computation=%yes, false_computation=%no", {"true_computation": "yes", "false_computation": "no"}),
    ],
)
def test_the_branches_of_a_conditional_are_in_their_order(behind, called):
    found = only(f"%conditional.1 = f32[8]{{0}} conditional(%index, %a, %b), {behind}").called_computations
    assert list(found.items()) == list(called.items())


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("(f32[64]{0:S(1)}, f32[64]{0}, u32[]{:S(2)}) copy-start(%a)", "f32[64]{0:S(1)}"),
        ("((f32[64]{0}), f32[8]{0}, s32[]) slice-start(%a), calls=%c", "f32[8]{0}"),
        ("(f32[8]{0}, f32[64]{0}) all-gather-start(%a), dimensions={0}", "f32[64]{0}"),
        ("(f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%a)", "f32[8]{0}"),
        ("(f32[8]{0}, f32[4]{0}) all-reduce-start(%a, %b), to_apply=%add", "(f32[8]{0}, f32[4]{0})"),
        ("f32[8]{0} all-reduce-start(%a), to_apply=%add", "f32[8]{0}"),
        ("(f32[8]{0}, f32[4]{0}) fusion(%a), kind=kLoop, calls=%c", "(f32[8]{0}, f32[4]{0})"),
    ],
)
def test_what_is_begun_makes_its_result_and_not_what_it_reads(line, written):
    assert only(f"%x = {line}").written_shape == parse_shape(written)


@pytest.mark.parametrize(
    ("collective", "whole", "written"),
    [
        ("all-reduce(%i), to_apply=%add", "((f32[8]{0}, token[]), f32[8]{0})", "f32[8]{0}"),
        ("all-gather(%i), dimensions={0}", "((f32[8]{0}, token[]), f32[64]{0})", "f32[64]{0}"),
        ("reduce-scatter(%i), dimensions={0}, to_apply=%add", "((f32[8]{0}, token[]), f32[1]{0})", "f32[1]{0}"),
        (
            "all-reduce(%i, %j), to_apply=%add",
            "((f32[8]{0}, f32[4]{0}, token[]), (f32[8]{0}, f32[4]{0}))",
            "(f32[8]{0}, f32[4]{0})",
        ),
    ],
)
def test_a_collective_that_a_sparse_core_is_called_for_is_an_asynchronous_one(collective, whole, written):
    operands = "%a, %b, %token" if "%j" in collective else "%a, %token"
    text = f"""\
%called (i: f32[8], j: f32[4], t: token[]) -> {written} {{
  %t = token[] parameter(2)
  %j = f32[4]{{0}} parameter(1)
  %i = f32[8]{{0}} parameter(0)
  ROOT %r = {written} {collective}, replica_groups={{{{0,1}}}}, metadata={{op_name="grad"}}
}}, execution_thread="sparsecore"

ENTRY %main (a: f32[8]) -> f32[8] {{
  %start = {whole} call-start({operands}), async_execution_thread="sparsecore", to_apply=%called
  ROOT %done = {written} call-done(%start)
}}
"""
    start, done = Module.parse(text).entry.instructions
    kind = collective.partition("(")[0]
    assert (start.opcode, done.opcode, done.operands) == (f"{kind}-start", f"{kind}-done", ("start",))
    assert start.written_shape == parse_shape(written)
    assert start.operands == (("a", "b") if "%j" in collective else ("a",))
    assert (start.op_name, "replica_groups={{0,1}}" in start.attributes) == ("grad", True)


def test_brackets_in_operands_end_where_they_began():
    constant = only('%c = f32[2,2]{1,0} constant({ { 1, 2 }, { 3, 4 } }), metadata={op_name="a(b"}')
    assert (constant.opcode, constant.operands, constant.op_name) == ("constant", (), "a(b")
    typed = only("%s = f32[2]{0} add(f32[2]{0:T(128)} %a, f32[2]{0:T(128)} %b.1), calls=%c")
    assert (typed.operands, typed.called_computations) == (("a", "b.1"), {"calls": "c"})


def test_without_an_entry_it_says_so():
    with pytest.raises(ValueError, match="the text has no ENTRY computation"):
        Module.parse(TEXT.replace("ENTRY ", ""))
