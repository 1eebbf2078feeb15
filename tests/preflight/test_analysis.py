"""What the compiler's figures and errors say of memory."""

import pytest

from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext.preflight._analysis import StepAnalysis, parse_out_of_memory
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight.results import MemoryUse
from keras_tpu_ext.preflight.targets import parse_target

pytestmark = pytest.mark.gate_on("keras3_jax")

V5E = parse_target("v5e-8")
START = "JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "


def test_donated_arguments_are_counted_once():
    """Outputs that take the place of arguments need no memory of their own."""
    hlo = "ENTRY %main (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8]{0} parameter(0)\n}\n"
    names = ("argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes", "code_bytes")
    facts = dict(zip(names, (1000, 300, 200, 40, 5), strict=True))
    memory = StepAnalysis(LoweredStep(b"", True, 8, 64, (), {}, {}, "JAX"), Compiled(hlo, facts), V5E, ()).memory()
    assert memory.needed == 1000 + 300 - 200 + 40 + 5


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
