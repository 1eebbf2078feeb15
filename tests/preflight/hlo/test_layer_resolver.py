"""From the names of operations back to layers, with names as JAX and TensorFlow give them."""

import pytest

from keras_tpu_ext._runtime.common.layer_names import Origin
from keras_tpu_ext.preflight._hlo.layer_resolver import LayerResolver, Part
from keras_tpu_ext.preflight._hlo.module import Module

pytestmark = pytest.mark.gate_on("keras3_jax")

LAYERS = ("conv2d", "batch_normalization", "re_lu", "dense", "block", "add", "transpose", "dense_2_b")
ROLES = {"sgd": "(optimizer)", "compile_loss": "(loss)"}
ARGUMENTS = {"trainable[0]": "conv2d/kernel", "optimizer[0]": "sgd/learning_rate", "trainable[1]": "dense"}


def origin(op_name):
    return LayerResolver(LAYERS, ROLES, ARGUMENTS).resolve_name(op_name)


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("jit(train_step)/jvp(conv2d)/conv_general_dilated", "conv2d"),
        ("jit(train_step)/jvp(batch_normalization)/jit(_var)/div", "batch_normalization"),
        ("jit(train_step)/jvp(block)/dense/dot_general", "block/dense"),
        ("jit(train_step)/jvp(block)/jit(block)/dense/dot_general", "block/dense"),
        ("jit(train_step)/jvp(block)/dense/block/add", "block/dense"),
        ("jit(train_step)/jvp(compile_loss)/sparse_categorical_crossentropy/reduce_sum", "(loss)"),
        ("jit(train_step)/sgd/mul", "(optimizer)"),
        ("jit(train_step)/jvp()/convert_element_type", "(other)"),
        ("jit(train_step)/add", "(other)"),
        ("reduce_sum", "(other)"),
        ("", "(other)"),
        ("functional/conv2d/convolution", "conv2d"),
        ("functional/dense_1/MatMul", "dense"),
        ("functional/dense_2_b/MatMul", "dense_2_b"),
        ("functional/block_3/dense_12/MatMul", "block/dense"),
    ],
)
def test_a_name_tells_the_layer_and_those_around_it(op_name, layer):
    assert origin(op_name) == Origin(layer, backward=False)


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("jit(train_step)/transpose(jvp(dense))/dot_general", "dense"),
        ("jit(train_step)/transpose(jvp(batch_normalization))/jit(_var)/mul", "batch_normalization"),
        ("jit(train_step)/transpose(jvp(compile_loss))/sparse_categorical_crossentropy/mul", "(loss)"),
        ("gradient_tape/functional/dense_1/MatMul", "dense"),
    ],
)
def test_a_name_tells_the_backward_pass(op_name, layer):
    assert origin(op_name) == Origin(layer, backward=True)


def test_an_operation_of_a_layers_name_is_not_that_layer():
    assert origin("jit(train_step)/jvp(dense)/add") == Origin("dense")
    assert origin("jit(train_step)/jvp(add)/add") == Origin("add")
    assert origin("functional/add_1/add") == Origin("add")


def test_a_transposition_is_not_of_the_backward_pass():
    assert origin("jit(train_step)/jvp(dense)/transpose") == Origin("dense")
    assert origin("jit(train_step)/jvp(transpose)/transpose") == Origin("transpose")
    assert origin("functional/transpose/transpose") == Origin("transpose")
    assert origin("jit(train_step)/transpose(jvp(transpose))/transpose") == Origin("transpose", backward=True)


def test_a_function_that_jax_compiles_is_no_layer():
    assert origin("jit(dense)/mul") == Origin("(other)")
    assert origin("jit(f)/pjit(dense)/jvp(re_lu)/custom_jvp_call(add)/max") == Origin("re_lu")


def test_an_argument_belongs_where_its_variable_does():
    assert origin("trainable[0]") == Origin("conv2d")
    assert origin("trainable[1]") == Origin("dense")
    assert origin("optimizer[0]") == Origin("(optimizer)")
    assert origin("trainable[7]") == Origin("(other)")


FUSION = """\
%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %a = f32[8]{0} negate(%p), metadata={op_name="jit(f)/jvp(conv2d)/neg"}
  %b = f32[8]{0} negate(%a), metadata={op_name="jit(f)/transpose(jvp(dense))/neg"}
  %c = f32[8]{0} negate(%b), metadata={op_name="jit(f)/transpose(jvp(dense))/mul"}
  %d = f32[8]{0} negate(%c), metadata={op_name="jit(f)/mul"}
  %e = f32[8]{0} negate(%d), metadata={op_name="jit(f)/mul"}
  ROOT %g = f32[8]{0} negate(%e), metadata={op_name="jit(f)/mul"}
}
"""


def origin_of(line):
    argument = '%w = f32[8]{0} parameter(0), metadata={op_name="trainable[0]"}'
    entry = f"ENTRY %main (w: f32[8]) -> f32[8] {{\n  {argument}\n  %u = f32[8]{{0}} parameter(1)\n  {line}\n}}\n"
    module = Module.parse(FUSION + entry)
    return LayerResolver(LAYERS, ROLES, ARGUMENTS).resolve(module.entry.instructions[-1], module)


def test_a_fusions_own_name_comes_first():
    name = 'metadata={op_name="jit(f)/jvp(re_lu)/max"}'
    assert origin_of(f"%f = f32[8]{{0}} fusion(%u), kind=kLoop, calls=%fused, {name}") == Origin("re_lu")


@pytest.mark.parametrize("name", ["", ', metadata={op_name="jit(f)/mul"}'])
def test_a_fusion_whose_name_says_nothing_belongs_where_most_in_it_does(name):
    found = origin_of(f"%f = f32[8]{{0}} fusion(%u), kind=kLoop, calls=%fused{name}")
    assert found == Origin("dense", backward=True)


def test_a_copy_belongs_where_what_it_copies_does():
    assert origin_of("%c = f32[8]{0} copy(%w)") == Origin("conv2d")
    assert origin_of("%c = f32[8]{0} copy(%u)") == Origin("(other)")


COMBINED = """
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %a = f32[96]{0} multiply(%p, %p), metadata={op_name="jit(step)/transpose(jvp(dense))/mul"}
  %b = f32[32]{0} multiply(%p, %p), metadata={op_name="jit(step)/transpose(jvp(conv2d))/mul"}
  %c = f32[128]{0} multiply(%p, %p)
  ROOT %all = (f32[96], f32[32], f32[128]) all-reduce(OPERANDS), metadata={op_name="jit(step)/compile_loss/sum"}
}
"""


def test_arrays_of_many_layers_that_one_collective_combines_are_of_their_layers():
    module = Module.parse(COMBINED.replace("OPERANDS", "%a, %b, %c"))
    parts = LayerResolver(LAYERS, ROLES, ARGUMENTS).resolve_parts(module.entry.root, module)
    assert [(part.origin, part.shape.dimensions, part.fraction) for part in parts] == [
        (Origin("dense", backward=True), (96,), 0.375),
        (Origin("conv2d", backward=True), (32,), 0.125),
        (Origin("(loss)"), (128,), 0.5),  # nothing says whose it is: as the collective
    ]


@pytest.mark.parametrize("operands", ["%a", "%unknown, %b"])
def test_a_collective_of_one_array_is_of_the_layer_that_it_names(operands):
    module = Module.parse(COMBINED.replace("OPERANDS", operands))
    root = module.entry.root
    assert LayerResolver(LAYERS, ROLES, ARGUMENTS).resolve_parts(root, module) == [
        Part(Origin("(loss)"), root.shape, 1.0)
    ]
