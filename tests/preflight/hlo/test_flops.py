"""FLOPs of products and convolutions, against counting every pair that meets."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tpu_ext.preflight._hlo.flops import flops_of
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.shape import parse_shape

pytestmark = pytest.mark.gate_on("keras3_jax")


def flops(line, **operands):
    text = f"ENTRY %main (p: f32[]) -> f32[] {{\n  %x = {line}\n}}\n"
    (instruction,) = Module.parse(text).entry.instructions
    return flops_of(instruction, {name: parse_shape(shape) for name, shape in operands.items()})


def meeting(size, kernel, output, stride, low, left_dilation, right_dilation):
    """Count the pairs of an output and a kernel position that meet an input, by trying all."""
    count = 0
    for o, k in itertools.product(range(output), range(kernel)):
        place = o * stride + k * right_dilation - low
        count += place % left_dilation == 0 and 0 <= place // left_dilation < size
    return count


def outputs(size, kernel, stride, low, high, left_dilation, right_dilation):
    padded = (size - 1) * left_dilation + 1 + low + high
    return max((padded - (kernel - 1) * right_dilation - 1) // stride + 1, 0)


def test_a_product_takes_two_flops_for_each_multiply_add():
    line = "f32[5,7]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    assert flops(line, a="f32[5,6]{1,0}", b="f32[6,7]{1,0}") == 2 * 5 * 6 * 7


def test_a_product_in_batches_with_two_contracted_dimensions():
    line = "f32[3,5,7]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2,3}, rhs_batch_dims={0}"
    assert flops(line, a="bf16[3,5,6,4]{3,2,1,0}", b="bf16[3,6,4,7]{3,2,1,0}") == 2 * 3 * 5 * 6 * 4 * 7


def test_an_outer_product_contracts_nothing():
    line = "f32[5,7]{1,0} dot(%a, %b), lhs_contracting_dims={}, rhs_contracting_dims={}"
    assert flops(line, a="f32[5]{0}", b="f32[7]{0}") == 2 * 5 * 7


def test_a_product_as_a_convolution_without_a_window():
    line = "bf16[5,7]{1,0} convolution(%a, %b), dim_labels=bf_io->bf"
    assert flops(line, a="bf16[5,6]{1,0}", b="bf16[6,7]{1,0}") == 2 * 5 * 6 * 7


def test_other_operations_and_convolutions_without_labels_count_nothing():
    assert flops("f32[5]{0} add(%a, %a)", a="f32[5]{0}") == 0
    assert flops("f32[5]{0} convolution(%a, %a)", a="f32[5]{0}") == 0


@given(
    size=st.integers(1, 9),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    low=st.integers(-2, 3),
    high=st.integers(-2, 3),
    left_dilation=st.integers(1, 3),
    right_dilation=st.integers(1, 3),
)
def test_a_window_counts_where_it_meets_inputs_and_not_padding(
    size, kernel, stride, low, high, left_dilation, right_dilation
):
    output = outputs(size, kernel, stride, low, high, left_dilation, right_dilation)
    window = (
        f"{{size={kernel} stride={stride} pad={low}_{high} lhs_dilate={left_dilation} rhs_dilate={right_dilation}}}"
    )
    line = f"f32[2,{output},5]{{2,1,0}} convolution(%a, %b), window={window}, dim_labels=b0f_0io->b0f"
    expected = 2 * 2 * 3 * 5 * meeting(size, kernel, output, stride, low, left_dilation, right_dilation)
    assert flops(line, a=f"f32[2,{size},3]{{2,1,0}}", b=f"f32[{kernel},3,5]{{2,1,0}}") == expected


def test_two_dimensions_with_windows_of_their_own_and_labels_in_any_order():
    # The gradient of a kernel: the batch is contracted, and the input's channels are what "b" stands for.
    line = (
        "bf16[3,4,6,64]{3,2,1,0} convolution(%a, %b), window={size=7x9 pad=1_1x2_0 stride=1x2 rhs_reversal=1x0}, "
        "dim_labels=f01b_i01o->01bf"
    )
    pairs = meeting(8, 7, 3, 1, 1, 1, 1) * meeting(14, 9, 4, 2, 2, 1, 1)
    found = flops(line, a="bf16[16,8,14,6]{3,2,1,0}", b="bf16[16,7,9,64]{3,2,1,0}")
    assert found == 2 * 6 * 16 * 64 * pairs


def test_a_depthwise_convolution_multiplies_each_channel_by_its_own_kernel():
    line = "f32[2,6,8]{2,1,0} convolution(%a, %b), window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=8"
    assert flops(line, a="f32[2,8,8]{2,1,0}", b="f32[3,1,8]{2,1,0}") == 2 * 2 * 8 * 6 * 3


def test_groups_of_the_batch_share_the_kernels_out():
    line = "f32[2,6,8]{2,1,0} convolution(%a, %b), window={size=3}, dim_labels=b0f_0io->b0f, batch_group_count=4"
    assert flops(line, a="f32[8,8,5]{2,1,0}", b="f32[3,5,8]{2,1,0}") == 2 * 2 * 5 * 8 * 6 * 3
