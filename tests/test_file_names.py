"""The prefix of a test file and its mark name the same runtimes."""

from pathlib import Path

import pytest

import marks

pytestmark = pytest.mark.gate_on("keras3_jax")

TESTS = Path(__file__).parent
FILES = sorted(str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("file", FILES)
def test_a_prefix_stands_for_the_runtimes_of_the_mark(file):
    about = marks.of_file(TESTS / file)
    of_prefix = marks.of_prefix(Path(file).name)
    assert of_prefix in (None, about), f"{file} is about {sorted(about or {'all'})}: rename it, or mend its mark"


def test_a_longer_prefix_counts_more():
    assert marks.of_prefix("test_keras3_tf_optimizer.py") == {"keras3_tf"}
    assert marks.of_prefix("test_keras3_layers.py") == {"keras3_tf", "keras3_jax"}
    assert marks.of_prefix("test_keras_file_fuzz.py") is None
