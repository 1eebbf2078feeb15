"""The tables of what is exact name the tests that hold it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = ("docs/models.md",)


@pytest.mark.parametrize("page", TABLES)
def test_each_cell_has_a_test(page):
    rows = re.findall(r"^\| (?:a|an|any|`add_loss|`compute)[^\n]*$", (ROOT / page).read_text(), re.MULTILINE)
    assert len(rows) > 10
    for row in rows:
        for cell in row.strip("| ").split(" | ")[1:]:
            (path,) = re.findall(r"\]\(\.\./(tests/[a-z0-9_/]*\.py)\)", cell)
            assert (ROOT / path).is_file(), row
