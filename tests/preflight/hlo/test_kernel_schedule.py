"""The cycles of a kernel, from the instructions that the compiler has made of it."""

import pytest

from keras_tpu_ext.preflight._hlo.kernel_schedule import KernelCycles, Visits, cycles_of

pytestmark = pytest.mark.gate_on("keras3_jax")

HEAD = """= control target key start
LH: loop header
LB: loop body
= control target key end

     0   :  { %8 = vsyncpa [#allocation3], 0  ;;  %s1 = inlined_call_operand.vmem [shape: f32[8], index: 0] }
   0x1   :  { %9 = vsyncpa [#allocation5], 0 }
"""
LOOP = """   0x2 LB: > { %s2 = sadd.s32 1, %s3 /* iteration index */
base_bounds: (16, 64, 8)
iteration_bounds: (16, 8, 1) */ }
"""
PRODUCT = "   0x3   : > { %10 = vmatmul.bf16.gmra.mxu0 %v1 }\n"
OTHER = "   0x4   : > { %v2 = vadd.f32 %v1, %v0 }\n"
END = """   0x5   : > { %p1 = scmp.ge.s32.totalorder %s2, 130 /* loop exit test */ }
   0x6   : > { %38 = sbr.rel (!%p1) target = $region176 }
   0x7   :  { %11 = vsyncpa [#allocation3], 1 }
"""


def skipped(number, inside):
    """Bundles that a branch may skip; the one that it goes to begins another region."""
    ends = f"/* Start/End empty region {number} :: Start region {number + 1} */"
    return (
        f"   0x8   : > {{ %752 = sbr.rel (%p8707_p0) target = $region{number} }}\n{inside}"
        f"   0x9 PF: > {{ %s4 = sld [smem:[#a]] }} {ends}\n"
    )


def test_a_bundle_is_a_cycle_in_each_round_of_its_loop():
    assert cycles_of(HEAD + LOOP + PRODUCT + OTHER + END) == KernelCycles(130 * 5 + 3, 0, 0)


def test_what_is_after_a_loop_runs_once():
    assert cycles_of(HEAD + LOOP + END + OTHER * 3).always == 130 * 3 + 3 + 3


def test_loops_in_loops():
    inner = LOOP + OTHER + END.replace("130", "7").splitlines(keepends=True)[0] + END.splitlines(keepends=True)[1]
    assert cycles_of(LOOP + inner + END).always == 130 * (1 + 7 * 4 + 2) + 1


def test_what_conditions_skip_is_counted_apart():
    kernel = HEAD + LOOP + skipped(52, OTHER * 5) + skipped(56, PRODUCT + OTHER) + END
    found = cycles_of(kernel)
    assert found == KernelCycles(always=130 * (1 + 2 + 2 + 2) + 3, products=130 * 2, others=130 * 5)
    assert found.at(Visits(0.5, 0.25)) == found.always + 130 + 130 * 5 / 4


def test_a_condition_around_others_with_products_is_always_met():
    kernel = HEAD + LOOP + skipped(36, OTHER + skipped(56, PRODUCT)) + END
    assert cycles_of(kernel) == KernelCycles(always=130 * 8 + 3, products=130, others=0)


@pytest.mark.parametrize("text", ["", "no bundle\n", HEAD + LOOP + OTHER, HEAD + LOOP + END.replace("130", "%s7")])
def test_what_is_not_told_is_not_guessed(text):
    assert cycles_of(text) is None
