"""Troubleshooting quotes what this package prints: a text that is changed is changed there too."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "keras_tpu_ext"
PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
# Where the texts of others begin.
STOCK = "## Errors of Keras, JAX and TensorFlow"
LEAST = 15  # characters in a row that a quote has in common with the source
PART = 0.5  # of a quote that is no name or number

pytestmark = [
    pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="the page is about all of them"),
    pytest.mark.gate_on("keras3_jax"),
]


def quotes():
    ours = PAGE.read_text(encoding="utf-8").split(STOCK)[0]
    found = re.findall(r"^```text\n(.*?)^```$", ours, re.MULTILINE | re.DOTALL)
    return [" ".join(quote.split()).removesuffix("...").rstrip() for quote in found]


def constant_parts(node):
    """Return the parts of a string between its placeholders; `None` for what is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.split(r"\{[a-z_][\w.:!]*\}|\{\}", node.value)  # it may be made for `str.format`
    if isinstance(node, ast.JoinedStr):
        parts = [""]
        for value in node.values:
            if isinstance(value, ast.Constant):
                parts[-1] += value.value
            else:
                parts.append("")
        return parts
    return None


def strings():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = constant_parts(node)
            if parts is not None and max(map(len, parts)) >= LEAST:
                yield parts


def begins_with(parts, quote):
    """Return whether `quote` is how a text of these `parts` begins, whatever stands between them."""
    # The longest constant text up to each place of the quote that the parts so far can end at.
    ends = {0: 0}
    for number, part in enumerate(parts):
        if number:  # a placeholder before it: anything
            ends = {
                end: max(ends[start] for start in ends if start <= end) for end in range(min(ends), len(quote) + 1)
            }
        if any(
            part.startswith(quote[end:]) and constant + len(quote) - end >= PART * len(quote)
            for end, constant in ends.items()
        ):
            return True
        ends = {
            end + len(part): constant + len(part) for end, constant in ends.items() if quote.startswith(part, end)
        }
        if not ends:
            return False
    return False


def test_each_quote_is_a_text_of_the_package():
    known = list(strings())
    unknown = [quote for quote in quotes() if not any(begins_with(parts, quote) for parts in known)]
    assert not unknown, "quoted in docs/troubleshooting.md, and not in the package: " + "; ".join(unknown)


def test_there_are_quotes():
    assert len(quotes()) >= 30


@pytest.mark.parametrize(
    ("quote", "expected"),
    [
        ("needs 8 virtual CPU devices, but there", True),
        ("needs 8 virtual CPU devices, but", True),
        ("needs 8 virtual CPU devices, and there", False),
        ("it needs 8 virtual CPU devices, but there", False),
    ],
)
def test_a_quote_is_the_beginning_of_a_text(quote, expected):
    assert begins_with(["needs ", " virtual CPU devices, but there are ", "."], quote) is expected
