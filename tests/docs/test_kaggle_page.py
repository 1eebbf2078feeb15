"""The kernels of the Kaggle kit: their difference from stock code is what docs/tpus.md says."""

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate_on("keras3_jax")

ROOT = Path(__file__).parents[2]


def code_of(notebook):
    cells = json.loads((ROOT / "examples" / notebook).read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_without_the_lines_of_the_page_the_flowers_kernel_is_stock_code():
    page = (ROOT / "docs" / "tpus.md").read_text(encoding="utf-8")
    code = "\n".join(code_of("kaggle_flowers.ipynb")[1:]) + "\n"  # the first cell installs the wheel
    for diff in re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        lines = [(line[:1] or " ", line[1:]) for line in diff.splitlines()]
        ours, stock = ("".join(f"{text}\n" for mark, text in lines if mark in marks) for marks in (" +", " -"))
        assert code.count(ours) == 1
        code = code.replace(ours, stock)
    assert "kte" not in code
    assert "keras_tpu_ext" not in code
    assert "KERAS_BACKEND" not in code
    compile(code, "stock", "exec")


@pytest.fixture
def kit(monkeypatch):
    folder = ROOT / "tests" / "versions"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    spec = importlib.util.spec_from_file_location("kaggle_kit", folder / "kaggle.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kaggle_kit", module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("run", None)


def test_a_kernel_asks_for_a_tpu_the_wheel_and_no_internet(kit):
    for kernel in kit.KERNELS:
        data = kernel.metadata("somebody")
        assert data["id"] == "somebody/" + data["title"].lower().replace(" ", "-")
        assert (data["machine_shape"], data["enable_internet"]) == ("TpuV5E8", False)
        assert data["dataset_sources"] == ["somebody/keras-tpu-ext"]
        assert (ROOT / "examples" / data["code_file"]).is_file()


def test_stored_outputs_have_no_path_of_the_machine_that_made_them(kit):
    for kernel in kit.KERNELS:
        text = (ROOT / "examples" / kernel.notebook).read_text(encoding="utf-8")
        assert str(ROOT) not in text
        assert "/tmp/" not in text
        assert all(cell for cell in code_of(kernel.notebook))


def test_a_rehearsal_is_what_differs_from_what_is_uploaded(kit):
    texts = {"strategy_scope(": "strategy_scope(replicas=8, "}
    assert kit.replaced("kte.strategy_scope()", texts) == "kte.strategy_scope(replicas=8)"
    assert kit.replaced('strategy_scope(precision="auto")', texts) == 'strategy_scope(replicas=8, precision="auto")'


def test_the_dataset_carries_a_compiled_file_and_the_line_has_its_digest(kit, monkeypatch, tmp_path):
    monkeypatch.setattr(kit, "OUT", tmp_path / "out")
    (tmp_path / "out" / "dataset").mkdir(parents=True)
    (tmp_path / "step.kte").write_bytes(b"programs")
    line = kit.carry(tmp_path / "step.kte")
    assert (tmp_path / "out" / "dataset" / "step.kte").read_bytes() == b"programs"
    digest = hashlib.sha256(b"programs").hexdigest()
    assert line.endswith(f'compiled=("/kaggle/input/keras-tpu-ext/step.kte", "{digest}"))')


def test_a_slow_machine_is_no_failure(kit, tmp_path, monkeypatch, capsys):
    """However long a kernel takes: what counts is that it ends, and what it has written."""
    monkeypatch.setattr(kit, "OUT", tmp_path)
    kernel = kit.KERNELS[0]
    uploaded = tmp_path / "kernels" / kernel.slug
    uploaded.mkdir(parents=True)
    (uploaded / kernel.notebook).write_bytes((ROOT / "examples" / kernel.notebook).read_bytes())
    now = iter([0.0, 90_000.0])
    monkeypatch.setattr(kit.time, "monotonic", lambda: next(now))

    def offline(python, program, notebook, working, *, read_only):
        for name in kernel.writes:
            (working / name).write_bytes(b"")

    monkeypatch.setattr(kit, "offline", offline)
    kit.run(kernel, tmp_path / "bin" / "python", store=False)
    assert f"{kernel.notebook}: 90000 s; {', '.join(kernel.writes)}" in capsys.readouterr().out
