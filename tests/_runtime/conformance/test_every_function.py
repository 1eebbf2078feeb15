"""Every function of the seam is called by a conformance test, or stands here with where it is tested instead."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from keras_tpu_ext._runtime.training import protocols

pytestmark = pytest.mark.gate_on("keras3_jax")

# Those that each runtime implements, and those that are the same on all.
NAMESPACES = {
    "batch": protocols.Batch,
    "devices": protocols.Devices,
    "ops": protocols.Ops,
    "probes": protocols.Probes,
    "training_state": protocols.TrainingState,
}
SHARED = re.compile(r"_runtime\.((?:models|progress|watches)\.\w+)")
# A function, and a file of tests/ that has its tests; a new function gets a test of conformance.
ELSEWHERE = {
    "devices.layout": "test_jax_layouts.py",
    "devices.open_workers": "integration/test_tensorflow_two_processes.py",
    "devices.shard": "test_jax_sharding.py",
    "models.exact_models": "models/test_plain_models.py",
    "models.named_as_builtin": "models/test_tpu_model.py",
    "models.save_as": "layers/test_keras3_tpu_operations.py",
    "models.reopened_by_clear_session": "models/test_clear_session.py",
    "training_state.reading_batches": "callbacks/test_auto_resume.py",
}


def functions():
    for name, protocol in NAMESPACES.items():
        for function in vars(protocol):
            if inspect.isfunction(vars(protocol)[function]) and not function.startswith("_"):
                yield f"{name}.{function}"
    package = Path(__file__).parents[3] / "keras_tpu_ext"
    yield from {found for path in package.rglob("*.py") for found in SHARED.findall(path.read_text(encoding="utf-8"))}


def called():
    """Return what the tests here call: `_runtime.devices.scope`, and `devices.scope` too."""
    found = set()
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.add(".".join(ast.unparse(node).split(".")[-2:]))
    return found


@pytest.mark.parametrize("function", sorted(functions()))
def test_it_is_called(function):
    if function in ELSEWHERE:
        assert function not in called(), f"take {function} out of ELSEWHERE"
        assert (Path(__file__).parents[2] / ELSEWHERE[function]).is_file()
    else:
        assert function in called(), f"write a test of {function} in tests/_runtime/conformance"


def test_what_is_tested_elsewhere_is_in_the_seam():
    assert set(ELSEWHERE) <= set(functions())
