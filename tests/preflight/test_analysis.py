"""What the compiler's figures and errors say of memory, and its program of collectives."""

import pytest

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.layouts import VariableLayout
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext.preflight._analysis import StepAnalysis, parse_out_of_memory
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight.results import Buffer, CollectiveKind, MemoryUse
from keras_tpu_ext.preflight.targets import parse_target

pytestmark = pytest.mark.gate_on("keras3_jax")

AGAIN = "kte.layers.remat(model)"
if _runtime.remat is None:
    AGAIN = "keras.RematScope around the lines that make the layers"

V5E = parse_target("v5e-8")
START = "JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
FACTS = ("argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes", "code_bytes")
MESH = {"data": 2, "model": 4}
ALONG_DATA, ALONG_MODEL = "{{0,4},{1,5},{2,6},{3,7}}", "[2,4]<=[8]"
KIB, MIB = 2**10, 2**20


def analysis(*lines, facts=(0, 0, 0, 0, 0), before="", mesh=None, layouts=(), target=V5E, corrections=()):
    body = "".join(f"  {line}\n" for line in lines)
    hlo = f"{before}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}}}\n"
    lowered = LoweredStep(b"", True, 8, 64, ("dense", "head"), {"sgd": "(optimizer)"}, {}, layouts=layouts)
    return StepAnalysis(lowered, Compiled(hlo, dict(zip(FACTS, facts, strict=True))), target, corrections, mesh)


def named(scope):
    return f'metadata={{op_name="jit(step)/{scope}/dot_general"}}'


@pytest.mark.parametrize(("target", "lender"), [("v4-8", "v6e"), ("v5e-8", "v6e"), ("v6e-8", None)])
def test_a_measurement_on_other_chips_is_told(target, lender):
    one = {"target": parse_target(target), "corrections": ("copies",)}
    time = analysis("ROOT %p = f32[8]{0} parameter(0)", **one).time()
    assert (time.corrections, time.borrowed) == (("copies",), {"copies": lender} if lender else {})


def test_donated_arguments_are_counted_once():
    """Outputs that take the place of arguments need no memory of their own."""
    memory = analysis("ROOT %p = f32[8]{0} parameter(0)", facts=(1000, 300, 200, 40, 5)).memory()
    assert memory.needed == 1000 + 300 - 200 + 40 + 5
    assert memory.by_role == {}


WEIGHTS = (
    VariableLayout("dense/kernel", "weight", (512, 512), "float32", ("data", None), MIB, MIB // 2),
    VariableLayout("sgd/momentum", "optimizer", (512, 512), "float32", ("data", None), MIB, MIB // 2),
)
BUFFERS = [
    "%p = f32[8]{0} parameter(0)",
    f"%a = f32[512,512]{{1,0}} all-gather(%p), replica_groups={ALONG_DATA}, {named('jvp(dense)')}",
    f"%b = f32[512,384]{{1,0}} dot(%a, %a), {named('jvp(dense)')}",
    f"%c = f32[512,256]{{1,0}} dot(%a, %b), {named('transpose(jvp(dense))')}",
    f"ROOT %d = f32[8]{{0}} add(%a, %b, %c), {named('sgd')}",
]


def test_a_buffer_has_a_purpose_and_a_cure_where_the_variables_are_known():
    memory = analysis(*BUFFERS, facts=(MIB + 100, 0, 0, 3 * MIB, 7), mesh=MESH, layouts=WEIGHTS).memory()
    remat = f"a smaller batch, or {AGAIN}"
    assert memory.buffers == (
        Buffer(MIB, "dense", "f32[512,512]", False, "gathered weight", ""),
        Buffer(MIB * 3 // 4, "dense", "f32[512,384]", False, "activation", remat),
        Buffer(MIB // 2, "dense", "f32[512,256]", True, "gradient", ""),
        Buffer(32, "(optimizer)", "f32[8]", False, "update", ""),
    )
    half = MIB // 2
    sizes = {"weights": half, "optimizer": half, "batch and other": 100, "gradients": half, "activations": 5 * half}
    assert memory.by_role == {**sizes, "program": 7}
    assert sum(memory.by_role.values()) == memory.needed
    plain = analysis(*BUFFERS, layouts=WEIGHTS).memory()  # where nothing is sharded, no weight is gathered
    assert [one.cure for one in plain.buffers] == [remat, remat, remat, 'shard="fsdp"']
    bare = analysis(*BUFFERS).memory()
    assert {(one.purpose, one.cure) for one in bare.buffers} == {(None, "")}


GRADIENTS = [
    "%p = f32[8]{0} parameter(0)",
    f"%a = f32[512,512]{{1,0}} dot(%p, %p), {named('transpose(jvp(dense))')}",
    f"%b = f32[512,128]{{1,0}} dot(%p, %p), {named('transpose(jvp(head))')}",
    "ROOT %c = (f32[512,512]{1,0}, f32[512,128]{1,0}) all-reduce(%a, %b), to_apply=%add, "
    'metadata={op_name="jit(step)/jvp(head)/reduce_sum"}',
]


def test_gradients_of_many_layers_that_one_collective_sums_are_of_their_layers():
    """The compiler names it after one of them."""
    found = analysis(*GRADIENTS, layouts=WEIGHTS)
    summed = [one for one in found.memory().buffers if one.layer == "dense"]
    assert [(one.shape, one.backward, one.purpose) for one in summed] == [("f32[512,512]", True, "gradient")] * 2
    collectives = found.collectives()
    assert [one.layer for one in collectives.by_kind] == ["dense"]
    alone = {one.layer: one.seconds for one in analysis(*GRADIENTS[:3]).layers()}
    more = {one.layer: one.seconds - alone[one.layer] for one in found.layers()}
    assert more["dense"] == pytest.approx(0.8 * collectives.seconds)
    assert more["head"] == pytest.approx(0.2 * collectives.seconds)


def test_more_buffers_than_are_told_are_counted():
    gradients = [f"%g{i} = f32[512,512]{{1,0}} dot(%p, %p), {named('transpose(jvp(dense))')}" for i in range(10)]
    last = f"ROOT %r = f32[8]{{0}} add({', '.join(f'%g{i}' for i in range(10))})"
    found = analysis(
        *BUFFERS[:1], *gradients, last, facts=(0, 0, 0, 12 * MIB, 0), mesh=MESH, layouts=WEIGHTS
    ).memory()
    assert len(found.buffers) == 8
    assert (found.by_role["gradients"], found.by_role["activations"]) == (10 * MIB, 2 * MIB)


LOOP = f"""\
%body (b: f32[256]) -> f32[256] {{
  %b = f32[256]{{0}} parameter(0)
  ROOT %r = f32[256]{{0}} all-reduce(%b), replica_groups={ALONG_MODEL}, {named("transpose(jvp(head))")}
}}

%condition (c: f32[256]) -> pred[] {{
  %c = f32[256]{{0}} parameter(0)
  ROOT %go = pred[] constant(true)
}}
"""
THREE_TIMES = 'backend_config={"known_trip_count":{"n":"3"}}'
COLLECTIVES = [
    "%p = f32[256]{0} parameter(0)",
    f"%a = f32[512]{{0}} all-gather(%p), replica_groups={ALONG_DATA}, {named('jvp(head)')}",
    f"%b = f32[512]{{0}} all-gather(%p), replica_groups={ALONG_DATA}, {named('jvp(head)')}",
    f"%c = (f32[256]{{0}}, f32[2048]{{0}}) all-gather-start(%p), replica_groups={ALONG_DATA}, {named('jvp(dense)')}",
    "%d = f32[2048]{0} all-gather-done(%c)",
    f"%e = f32[4096]{{0}} all-gather(%p), replica_groups={ALONG_MODEL}, {named('jvp(dense)')}",
    "%f = f32[128]{0} collective-permute(%p), source_target_pairs={{0,0},{1,5},{5,1}}",
    "%g = f32[64]{0} all-reduce(%p), to_apply=%add",
    f"ROOT %w = f32[256]{{0}} while(%p), condition=%condition, body=%body, {THREE_TIMES}",
]


def ring(rounds, devices, size):
    return pytest.approx(rounds * (devices - 1) / devices * size / V5E.generation.ici_bandwidth)


def test_collectives_go_by_kind_and_axes_the_most_bytes_first():
    found = analysis(*COLLECTIVES, before=LOOP, mesh=MESH).collectives()
    one_link = pytest.approx(KIB / 2 / V5E.link_bandwidth)
    assert found.by_kind == (
        CollectiveKind("all-gather", ("model",), 1, 16 * KIB, ring(1, 4, 16 * KIB), "dense"),
        CollectiveKind("all-gather", ("data",), 3, 12 * KIB, ring(1, 2, 12 * KIB), "dense"),
        CollectiveKind("all-reduce", ("model",), 3, 3 * KIB, ring(2, 4, 3 * KIB), "head"),
        CollectiveKind("collective-permute", ("data",), 1, KIB // 2, one_link, "(other)"),
        CollectiveKind("all-reduce", ("data", "model"), 1, KIB // 4, ring(2, 8, KIB // 4), "(other)"),
    )
    assert (found.count, found.bytes) == (9, (16 + 12 + 3) * KIB + 768)
    assert found.seconds == pytest.approx(sum(one.seconds for one in found.by_kind))


def test_without_a_mesh_collectives_go_by_kind_alone():
    found = analysis(*COLLECTIVES, before=LOOP).collectives()
    assert [(one.kind, one.axes, one.count, one.bytes) for one in found.by_kind] == [
        ("all-gather", (), 4, 28 * KIB),
        ("all-reduce", (), 4, 3 * KIB + 256),
        ("collective-permute", (), 1, 512),
    ]
    nothing = analysis(*BUFFERS[:1]).collectives()
    assert (nothing.count, nothing.bytes, nothing.seconds, nothing.by_kind) == (0, 0, 0, ())


@pytest.mark.parametrize(
    ("used", "needed", "available"),
    [
        ("63.80G of 30.75G", int(63.8 * 2**30), int(30.75 * 2**30)),
        ("1.25T of 15.75G", int(1.25 * 2**40), int(15.75 * 2**30)),
        ("900.5M of 800.0K", int(900.5 * 2**20), 800 * 2**10),
    ],
)
def test_what_is_needed_and_what_is_there_is_read(used, needed, available):
    error = f"{START}hbm. Used {used} hbm. Exceeded hbm capacity by 33.05G.\n\nTotal hbm usage >= 65.05G:\n"
    found = parse_out_of_memory(error, V5E)
    assert found == MemoryUse(needed, available)
    assert not found.fits


def test_newer_compilers_put_it_in_another_way():
    error = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (16.75G) exceeds available HBM (7.48G). HLO module: jit_step."
    )
    assert parse_out_of_memory(error, V5E) == MemoryUse(int(16.75 * 2**30), int(7.48 * 2**30))


@pytest.mark.parametrize("error", ["RESOURCE_EXHAUSTED: something else", f"{START}hbm."])
def test_without_figures_it_is_known_only_that_it_does_not_fit(error):
    found = parse_out_of_memory(error, V5E)
    assert found == MemoryUse(None, V5E.generation.usable_hbm_bytes_per_core)
    assert not found.fits


@pytest.mark.parametrize(
    "error",
    [
        "INVALID_ARGUMENT: Unsupported type f64",
        f"{START}vmem. Used 32.42M of 16.00M vmem. Exceeded vmem capacity by 16.42M",
        "",
    ],
)
def test_an_error_about_something_else_is_not_about_hbm(error):
    assert parse_out_of_memory(error, V5E) is None
