"""The notebooks, run from their first cell to their last in a kernel of its own."""

import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.runtimes("keras3_tf")

EXAMPLES = Path(__file__).parents[2] / "examples"


def pictures(notebook):
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output for output in outputs if "image/png" in output.get("data", {})]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_find_the_bottleneck_walks_from_slow_to_fast(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(EXAMPLES / "find_the_bottleneck.ipynb", as_version=4)
    as_committed = pictures(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert len(pictures(notebook)) == len(as_committed) == 3


def test_what_runs_a_notebook_tells_each_cell(tmp_path):
    cells = [nbformat.v4.new_markdown_cell("words"), *map(nbformat.v4.new_code_cell, ("x = 2", "print(x + 1)"))]
    path = tmp_path / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    program = EXAMPLES.parent / "tests" / "versions" / "kaggle_execute.py"
    told = subprocess.run([sys.executable, program, path, tmp_path], capture_output=True, text=True, check=True)
    assert [line.partition(",")[0] for line in told.stdout.splitlines()] == ["  cell 1 of 2", "  cell 2 of 2"]
    assert nbformat.read(path, as_version=4).cells[2].outputs[0].text == "3\n"
