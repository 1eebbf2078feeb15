"""The notebook that asks the TPU compiler, run from its first cell to its last in a kernel of its own."""

from pathlib import Path

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.runtimes("keras3_jax")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_network_is_trained_from_a_folder_of_images(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(EXAMPLES / "kaggle_image_classification.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    report = next(output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {}))
    assert "compiles and fits" in report
    assert "examples/s" in report
