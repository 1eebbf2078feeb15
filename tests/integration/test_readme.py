"""The README: its program prints what stands under it, its badges are true, and it is short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_tpu_ext.machine.versions import OLDEST
from kind_of_keras import IS_KERAS2

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
pytestmark = [
    pytest.mark.skipif(IS_KERAS2, reason="it imports Keras 3"),
    pytest.mark.gate_on("keras3_jax"),
]

CHANGES = {
    "as printed": ("", ""),
    "as a TPUModel": (
        "    loss =",
        "    model.build((None, 28, 28)); model = kte.TPUModel.from_model(model)\n    loss =",
    ),
    "on three replicas": ("replicas=8", "replicas=3"),
}


def block(language):
    found = re.search(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def run(program, folder):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr
    return done


def form(text):
    """Return a text without what differs between machines and runs: times, rates, and how many cores there are."""
    text = re.sub(r"\d+ cores?", "_ cores", text)
    return re.sub(r"\d+s - \d+\w+/step|samples/s: [\d.]+k?", "_", text)


@pytest.mark.parametrize(
    "change",
    [case if case == "as printed" else pytest.param(case, marks=pytest.mark.exhaustive) for case in CHANGES],
)
def test_the_program_runs_and_learns(change, tmp_path):
    before, after = CHANGES[change]
    assert before in block("python")
    program = block("python").replace(before, after, 1)
    done = run(program + "\nassert model.history.history['accuracy'][-1] > 0.75\n", tmp_path)
    if change == "as printed" and os.environ.get("KERAS_BACKEND") == "jax":
        came = form(done.stderr + done.stdout)
        digits = r"(?<=: )\d\.\d{4}"
        told = form(block("text"))
        assert re.sub(digits, "_", came) == re.sub(digits, "_", told), done.stderr + done.stdout
        numbers = [[float(number) for number in re.findall(digits, text)] for text in (came, told)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.002)  # other CPUs round in another way


def test_the_badges_are_true():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (oldest,) = re.findall(r'^requires-python = ">=(.*)"$', project, re.MULTILINE)
    assert f"badge/Python-{oldest}%2B-" in README
    assert f"badge/Keras-{OLDEST['keras']}%2B_and_2-" in README
    assert 'license = { text = "Apache-2.0" }' in project
    assert "badge/license-Apache--2.0-" in README
    assert "| a real TPU |" in (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")  # what was never run
    assert "badge/real_TPU-not_run_yet-" in README


def test_it_is_short():
    assert len(README.split()) <= 600
