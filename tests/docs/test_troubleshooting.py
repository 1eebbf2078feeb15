"""The explanations quote what this package prints: a text that is changed is changed there too."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "keras_tpu_ext"
PAGE = Path(__file__).parents[2] / "keras_tpu_ext_command" / "explanations.md"
LEAST = 15  # characters in a row that a quote has in common with the source, between what differs

pytestmark = [
    pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="the page is about all of them"),
    pytest.mark.gate_on("keras3_jax"),
]


def quotes():
    found = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [" ".join(quote.split()) for quote in found]


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


def test_each_quote_is_a_text_of_the_package():
    known = {part for parts in strings() for part in parts}
    for quote in quotes():
        pieces = [piece.strip() for piece in quote.split("...")]
        assert max(map(len, pieces)) >= LEAST, quote
        for piece in pieces:
            assert len(piece) < LEAST or any(piece in part for part in known), f"not in the package: {piece!r}"


def test_there_are_quotes():
    assert len(quotes()) >= 30
