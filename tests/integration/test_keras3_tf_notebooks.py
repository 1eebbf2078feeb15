"""The notebooks, run from their first cell to their last in a kernel of its own."""

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
