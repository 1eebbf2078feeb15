"""Files of the compile cache that are whole, with another content."""

import gzip
import json

import pytest

import fuzzing
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext.errors import KteError
from keras_tpu_ext.preflight import _compiler
from keras_tpu_ext.preflight._analysis import StepAnalysis, parse_out_of_memory
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight.targets import parse_target

pytestmark = pytest.mark.gate_on("keras3_jax")

V5E = parse_target("v5e-8")
STEP = LoweredStep(b"", True, 8, 64, ("dense",), {}, {})
VERSIONS = {"jax": "0.10.2", "libtpu": "0.0.42"}
SIZES = ("argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes", "code_bytes")
FACTS = {
    "compile_seconds": 1.5,
    **dict(zip(SIZES, (1000, 300, 200, 40, 5), strict=True)),
    "versions": VERSIONS,
    "kernels": {"0f" * 16: (1000.0, 20.0, 3.0)},
}
HLO = """HloModule step

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} add(%p, %p), metadata={op_name="jit(step)/dense/add"}
}
"""
KEPT = {
    "that compiles": Compiled(HLO, FACTS, from_cache=True),
    "that is too large": Compiled(
        "", {"versions": VERSIONS}, "RESOURCE_EXHAUSTED: Used 20.0G of 15.7G hbm", from_cache=True
    ),
}


def used(compiled):
    """Do with what is read what a preflight does."""
    assert all(type(version) is str for version in compiled.facts["versions"].values())
    if compiled.error:
        return parse_out_of_memory(compiled.error, V5E)
    analysis = StepAnalysis(STEP, compiled, V5E, ())
    float(compiled.facts["compile_seconds"])
    return analysis.memory(), analysis.time(), analysis.layers(), analysis.collectives()


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(tmp_path, pytestconfig, name):
    path = tmp_path / "own" / "kept.json.gz"
    _compiler._write_cache(path, KEPT[name])
    assert _compiler._read_cache(path) == KEPT[name]
    used(KEPT[name])
    tally = fuzzing.Tally(f"the cache of preflight, a step {name}", tmp_path, ["own"])

    def read(values):
        path.write_bytes(gzip.compress(json.dumps(values).encode(), 1))
        found = _compiler._read_cache(path)
        if found is None:
            return "compiled anew"
        try:
            used(found)
        except KteError:
            return "told"
        return "right" if found == KEPT[name] else "other values of the same types"

    with gzip.open(path) as file:
        valid = json.load(file)
    fuzzing.each(pytestconfig, fuzzing.mutated(valid), tally, read, share=len(KEPT))
    assert tally.counts["compiled anew"] > 30
