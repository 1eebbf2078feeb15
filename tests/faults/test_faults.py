"""The list of faults fits the code as it is now; whether tests find them, `run.py` tells."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate_on("keras3_jax")


def _module(name):
    """Return a module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"kte_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


faults = _module("faults")


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_its_text_stands_once_in_its_file(fault):
    text = (faults.PACKAGE / fault.path).read_text()
    assert text.count(fault.old) == 1
    compile(text.replace(fault.old, fault.new), fault.path, "exec")


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_it_changes_something_somewhere(fault):
    assert fault.new != fault.old
    assert set(fault.runtimes) <= set(faults.RUNTIMES)
    assert len(set(fault.runtimes)) == len(fault.runtimes) > 0


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_the_tests_to_begin_with_are_there(fault):
    assert fault.first
    for test in fault.first:
        path, *names = test.split("::")
        path = faults.ROOT / path
        assert path.exists()
        assert not names or f"def {names[0].split('[')[0]}(" in path.read_text()


def test_there_are_enough_and_each_has_a_name_of_its_own():
    assert len({fault.name for fault in faults.FAULTS}) == len(faults.FAULTS) >= 120
    assert sum(fault.path.startswith("_runtime/") for fault in faults.FAULTS) >= 60
    about = [runtime for fault in faults.FAULTS for runtime in fault.runtimes]
    assert all(about.count(runtime) >= 12 for runtime in faults.RUNTIMES)
