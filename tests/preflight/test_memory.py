"""What buffers are for, what takes the memory, and what makes it less."""

import pytest

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.layer_names import Origin
from keras_tpu_ext._runtime.common.layouts import VariableLayout
from keras_tpu_ext.preflight._analysis import Purposes, bytes_by_role, cure_for
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.peak_memory import LiveBuffer

pytestmark = pytest.mark.gate_on("keras3_jax")

AGAIN = "kte.layers.remat(model)"
if _runtime.remat is None:
    AGAIN = "keras.RematScope around the lines that make the layers"

MESH = {"data": 2, "model": 4}
GATHERING = """\
%gathering (g: f32[256,512]) -> f32[512,2048] {
  %g = f32[256,512]{1,0} parameter(0)
  ROOT %all = f32[512,2048]{1,0} all-gather(%g), dimensions={0}
}
"""


def layout(path, role, shape, spec=None, size=0):
    return VariableLayout(path, role, shape, "float32", spec or (None,) * len(shape), 8 * size, size)


def words(count):
    return layout("tokens/embeddings", "weight", (count, 512), ("model", "data"))


LAYOUTS = (
    words(64000),
    layout("dense/kernel", "weight", (512, 2048), ("data", "model")),
    layout("dense/bias", "weight", (3072,)),
    layout("adam/kernel_momentum", "optimizer", (96, 32)),
)


def purpose(line, origin, layouts=LAYOUTS, mesh=MESH):
    module = Module.parse(f"{GATHERING}\nENTRY %main (p: f32[8]) -> f32[8] {{\n  {line}\n}}\n")
    instruction = module.entry.root
    buffer = LiveBuffer(instruction, instruction.written_shape, instruction.written_shape.bytes)
    return Purposes(layouts, mesh, devices=8).of(buffer, origin, module)


FORWARD, BACKWARD = Origin("dense"), Origin("dense", True)


@pytest.mark.parametrize(
    ("line", "origin", "expected"),
    [
        ("%a = f32[512,2048]{1,0} add(%p, %q)", Origin("(optimizer)"), "update"),
        ("%a = f32[8,128,64000]{2,1,0} add(%p, %q)", Origin("(optimizer)"), "update"),
        ("%a = f32[512,2048]{1,0} all-gather(%p), dimensions={0}", FORWARD, "gathered weight"),
        ("%a = f32[512,2048]{1,0} all-gather(%p), dimensions={0}", BACKWARD, "gathered weight"),
        ("%a = f32[2048,1,512]{2,1,0} all-gather(%p), dimensions={0}", BACKWARD, "gathered weight"),
        ("%async-collective-start.1 = f32[512,2048]{1,0} fusion(%p), calls=%gathering", BACKWARD, "gathered weight"),
        ("%a = bf16[512,2048]{1,0} convert(%p)", FORWARD, "gathered weight"),
        ("%a = f32[512,2048]{1,0} all-reduce(%p), to_apply=%add", BACKWARD, "gradient"),
        ("%a = f32[512,2048]{1,0} all-reduce(%p), to_apply=%add", FORWARD, "gradient"),
        ("%a = f32[256,512]{1,0} reduce-scatter(%p), to_apply=%add", BACKWARD, "gradient"),
        ("%a = f32[512,2048]{1,0} fusion(%p), kind=kOutput, calls=%gathering", BACKWARD, "gradient"),
        ("%a = f32[256,512]{1,0} dot(%p, %q)", BACKWARD, "gradient"),
        ("%a = f32[512,512]{1,0} all-gather(%p), dimensions={0}", FORWARD, "gathered weight"),
        ("%a = f32[256,2048]{1,0} dot(%p, %q)", BACKWARD, "gradient"),
        ("%a = f32[16000,256]{1,0} dot(%p, %q)", BACKWARD, "gradient"),
        ("%a = f32[8,128]{1,0} exponential(%p)", Origin("(loss)"), "logits"),
        ("%a = f32[8,128,64000]{2,1,0} dot(%p, %q)", Origin("tokens"), "logits"),
        ("%a = f32[16000,1024]{1,0} dot(%p, %q)", Origin("tokens", True), "logits"),
        ("%a = f32[8,128,64001]{2,1,0} dot(%p, %q)", Origin("tokens"), "activation"),
        ("%a = f32[8,128,2048]{2,1,0} dot(%p, %q)", FORWARD, "activation"),
        ("%a = f32[8,128,2048]{2,1,0} all-gather(%p), dimensions={0}", FORWARD, "activation"),
        ("%a = f32[3072]{0} reduce(%p, %q), to_apply=%add", BACKWARD, "activation"),
        ("%a = f32[96,32]{1,0} negate(%p)", BACKWARD, "activation"),
    ],
)
def test_what_a_buffer_is_for(line, origin, expected):
    assert purpose(line, origin) == expected


@pytest.mark.parametrize(
    ("count", "line", "expected"),
    [
        (4096, "%a = f32[8,128,4096]{2,1,0} dot(%p, %q)", "logits"),
        (4096, "%a = f32[8,128,512]{2,1,0} dot(%p, %q)", "logits"),  # a mesh of 2 x 4 shards the words
        (4095, "%a = f32[8,128,4095]{2,1,0} dot(%p, %q)", "activation"),
        (2**18, "%a = f32[8,128,65536]{2,1,0} dot(%p, %q)", "logits"),
        (3 * 2**16, "%a = f32[8,128,65536]{2,1,0} dot(%p, %q)", "activation"),  # by no axis of the mesh
    ],
)
def test_a_few_words_may_be_any_dimension(count, line, expected):
    assert purpose(line, Origin("tokens"), [words(count)]) == expected


def test_without_a_mesh_a_weight_is_in_one_piece():
    assert purpose("%a = f32[512,2048]{1,0} dot(%p, %q)", BACKWARD, mesh={}) == "gradient"
    assert purpose("%a = f32[256,512]{1,0} dot(%p, %q)", BACKWARD, mesh={}) == "activation"


OF_ALL_ROLES = (
    layout("a/kernel", "weight", (8, 8), size=100),
    layout("b/kernel", "weight", (8, 8), size=20),
    layout("a/momentum", "optimizer", (8, 8), size=240),
    layout("a/accumulator", "accumulator", (8, 8), size=30),
    layout("mean", "metric", (), size=5),
    layout("seed", "other", (2,), size=1),
)
VARIABLES = {"weights": 120, "optimizer": 240, "accumulator": 30}


@pytest.mark.parametrize(
    ("numbers", "more"),
    [
        ({}, {"batch and other": 6}),
        ({"arguments": 1000}, {"batch and other": 610}),
        ({"arguments": 300}, {"batch and other": 0}),
        (
            {"arguments": 1000, "temporaries": 500, "gradients": 90, "code": 8},
            {"batch and other": 610, "gradients": 90, "activations": 410, "program": 8},
        ),
        (
            {"temporaries": 50, "gradients": 90},
            {"batch and other": 6, "gradients": 50, "activations": 0, "program": 0},
        ),
    ],
)
def test_bytes_go_by_variables_and_the_rest_by_the_compilers_numbers(numbers, more):
    assert bytes_by_role(OF_ALL_ROLES, **numbers) == VARIABLES | more


def test_where_nothing_is_known_of_the_variables_nothing_is_told():
    assert bytes_by_role((), 1000, 500, 90) == {}
    assert bytes_by_role(OF_ALL_ROLES[:1], 150) == {"weights": 100, "batch and other": 50}


@pytest.mark.parametrize(
    ("purpose", "mesh", "devices", "cure"),
    [
        ("logits", {}, 1, "a smaller batch, or a loss that takes a part of the sequence at a time"),
        ("activation", MESH, 8, f"a smaller batch, or {AGAIN}"),
        ("gradient", {}, 1, ""),
        ("gradient", {}, 8, 'shard="fsdp"'),
        ("update", {}, 8, 'shard="fsdp"'),
        ("update", {"data": 8}, 8, ""),
        ("gradient", {"data": 8}, 8, ""),
        (
            "gathered weight",
            {"data": 8, "model": 1},
            8,
            'mesh=(("data", 4), ("model", 2)), where no device needs all of a weight',
        ),
        ("gathered weight", MESH, 8, ""),
    ],
)
def test_what_makes_it_smaller_can_be_typed(purpose, mesh, devices, cure):
    assert cure_for(purpose, mesh, devices) == cure
