"""The table of environments is the same to make and to Python, and what it names is there."""

import shutil
import subprocess

import pytest

from environments import ROOT, TABLE, environments, for_all

pytestmark = pytest.mark.gate_on("keras3_jax")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
@pytest.mark.parametrize("name", environments())
def test_make_runs_python_with_the_same_variables(name):
    text = f"include {TABLE}\nall: ; @env -u MAKEFLAGS $({name}.variables) env\n"
    command = ["make", "--no-print-directory", "-s", "-f", "-"]
    done = subprocess.run(command, input=text, cwd=ROOT, capture_output=True, text=True, check=True)
    of_make = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    for key, value in {**for_all(), **environments()[name].variables}.items():
        assert of_make[key] == value


@pytest.mark.parametrize("name", environments())
def test_what_a_row_names_is_there(name):
    row = environments()[name]
    assert (ROOT / "locks" / f"{row.folder.name}.txt").exists()
    assert row.marks
    assert all((ROOT / path).exists() for path in row.tests)
