"""What a release needs to be ready, and what it says (.ci/release.py)."""

import runpy
from pathlib import Path

import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.gate_on("keras3_jax")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release():
    return runpy.run_path(str(ROOT / ".ci" / "release.py"))


def test_the_version_is_the_same_everywhere(release):
    assert release["version"]() == kte.__version__
    assert not list(release["missing"](final=False))


def test_a_wrong_version_is_told(release, monkeypatch):
    monkeypatch.setitem(release["missing"].__globals__, "version", lambda: "9.9.9")
    told = list(release["missing"](final=False))
    assert told[0].endswith("and the version is 9.9.9")
    assert told[1] == "CITATION.cff has another version than 9.9.9"


def test_the_notes_say_what_it_is_and_what_breaks(release):
    notes = release["notes"]()
    assert notes.startswith(f"keras_tpu_ext {kte.__version__}\n\n")
    assert "### Breaking" in notes
    assert "### Added" not in notes
