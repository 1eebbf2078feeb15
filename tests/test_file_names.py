"""The prefix of a test file and its mark name the same runtimes."""

from pathlib import Path

import pytest

import marks
import tests_of

pytestmark = pytest.mark.gate_on("keras3_jax")

TESTS = Path(__file__).parent
FILES = sorted(str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("file", FILES)
def test_a_prefix_stands_for_the_runtimes_of_the_mark(file):
    about = marks.of_file(TESTS / file)
    of_prefix = marks.of_prefix(Path(file).name)
    assert of_prefix in (None, about), f"{file} is about {sorted(about or {'all'})}: rename it, or mend its mark"


@pytest.mark.exhaustive
def test_every_file_of_the_package_has_tests_that_a_command_finds():
    """`make test-of FILE=...`; a folder's `__init__.py` that only has a docstring is imported by nothing."""
    package = [path for path in (TESTS.parent / "keras_tpu_ext").rglob("*.py") if path.read_text().count("\n") > 1]
    assert not [str(path) for path in package if not tests_of.tests_of(path)]


def test_several_files_may_be_named(capsys, monkeypatch):
    files = ["keras_tpu_ext/cli.py", "keras_tpu_ext/output/figure.py"]
    monkeypatch.chdir(TESTS.parent)
    monkeypatch.setattr("sys.argv", ["tests_of.py", *files, "--list"])
    assert tests_of.main() == 0
    shown = capsys.readouterr().out
    assert "tests/test_cli.py: " in shown
    assert "tests/preflight/test_plot.py: " in shown


def test_a_longer_prefix_counts_more():
    assert marks.of_prefix("test_keras3_tf_optimizer.py") == {"keras3_tf"}
    assert marks.of_prefix("test_keras3_layers.py") == {"keras3_tf", "keras3_jax"}
    assert marks.of_prefix("test_keras_file_fuzz.py") is None
