"""Says which notebooks in examples/ are stored with outputs that this package would no longer print.

    python .ci/notebooks.py            # exits with 1 where outputs are old
    python .ci/notebooks.py --stamp    # after `make notebooks` has run them: keeps what they were made with

A notebook's metadata keep a digest of its code, one of what draws its pictures, and the words of this package that
are to be read in its outputs: names of keys, sentences of reports. Outputs are old when its code or what draws is
another one, or when the package no longer has one of these words. That a report has a new line is not seen.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "keras_tpu_ext"
DRAWS = ("callbacks/_plots.py", "output/figure.py", "preflight/_plot.py")
KEY = "keras_tpu_ext"
SHORTEST = 8  # of words that are compared: a shorter one is anywhere


@functools.cache
def package_words() -> frozenset[str]:
    """Return all pieces of text in the package's code, without docstrings."""
    return frozenset(word for file in PACKAGE.rglob("*.py") for word in words_of(ast.parse(file.read_bytes())))


def words_of(tree: ast.AST) -> Iterator[str]:
    """Yield the pieces of text in a program, those of f-strings too; a docstring is an expression of its own."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield from (line.strip() for line in node.value.splitlines() if len(line.strip()) >= SHORTEST)


def made_with(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a notebook that has just been run."""
    code = "\0".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    kept: dict[str, Any] = {"code": digest(code)}
    text = shown(notebook)
    kept["words"] = sorted(word for word in package_words() if word in text)
    if '"image/png"' in json.dumps(notebook):
        kept["draws"] = digest("".join(ast.dump(ast.parse((PACKAGE / name).read_bytes())) for name in DRAWS))
    return kept


def shown(notebook: dict[str, Any]) -> str:
    """Return the texts of all outputs, as they are and with line breaks as blanks."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    texts = [text for output in outputs for text in (output.get("text"), output.get("data", {}).get("text/plain"))]
    joined = "\n".join("".join(text) for text in texts if text)
    return f"{joined}\n{' '.join(joined.split())}"


def digest(text: str) -> str:
    """Return a short digest."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def why_old(notebook: dict[str, Any]) -> str:
    """Return why the outputs are old; empty if they are not."""
    kept = notebook["metadata"].get(KEY)
    if kept is None:
        return "its outputs have not been stamped"
    now = made_with(notebook)
    if kept["code"] != now["code"]:
        return "its code has changed since it was run"
    if kept.get("draws") != now.get("draws"):
        return "what draws its pictures has changed"
    gone = [word for word in kept["words"] if word not in package_words()]
    return f"it shows {gone[0]!r}, which the package no longer says" if gone else ""


def drop_logs(notebook: dict[str, Any]) -> None:
    """Leave out what TensorFlow logs when it is imported: it is about the machine."""
    for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        cell["outputs"] = [out for out in cell["outputs"] if "] oneDNN custom" not in "".join(out.get("text", ""))]


def main() -> int:
    """Check the notebooks, or stamp them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stamp", action="store_true", help="keep what they were made with")
    options = parser.parse_args()
    old = []
    for file in sorted((ROOT / "examples").glob("*.ipynb")):
        notebook = json.loads(file.read_text(encoding="utf-8"))
        if options.stamp:
            drop_logs(notebook)
            notebook["metadata"][KEY] = made_with(notebook)
            file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        elif reason := why_old(notebook):
            old.append(f"examples/{file.name} has old outputs: {reason}.")
    print("\n".join([*old, "Write: make notebooks"] if old else ["The outputs of the notebooks are up to date."]))
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
