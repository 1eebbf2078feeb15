"""A script or notebook as one Python text, and back: what is not Python in it (magics, other languages) survives."""

from __future__ import annotations

import bisect
import dataclasses
import io
import json
import re
import tokenize
from pathlib import Path
from typing import Any

from keras_tpu_ext.errors import ArgumentError

_CELL = "_kte_cell_{}_"
_IS_CELL = re.compile(r"^_kte_cell_(\d+)_\n", re.MULTILINE)
_MAGIC = "_kte_magic_{}_"
_IS_MAGIC = re.compile(r"_kte_magic_(\d+)_")
# Cell magics behind which Python goes on; any other cell magic makes the cell another language's.
_PYTHON_CELLS = ("time", "timeit", "capture", "prun", "python", "python3")
_STARTS_MAGIC = re.compile(r"\s*(%|!|\?|\w[\w.]*\?{1,2}\s*$)")
_ASSIGNS_MAGIC = re.compile(r"(\s*[\w., ]+=\s*)([!%][^=].*)")
# Replaces what fits the image's TPU.
_PINS = re.compile(r"[!%]\s*pip3?\s.*\binstall\b.*\b(tensorflow|tf-nightly|keras|jax|jaxlib|libtpu)\b(?![\w-])")
# What may hide brackets and quotes, and the brackets.
_TOKEN = re.compile(r"""(?P<quote>'''|\"""|'|")|(?P<comment>#.*)|(?P<open>[(\[{])|(?P<close>[)\]}])""")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a line of a program is."""

    line: int  # from 1, in the file or in its cell
    cell: int | None = None  # from 1, as notebooks count them; `None` in a script

    def __str__(self) -> str:
        return f"line {self.line}" if self.cell is None else f"cell {self.cell}, line {self.line}"


class Program:
    """A program that was read.

    Attributes:
        path: Its file.
        text: All its Python, with names in place of magics.
        pieces: Its Python in pieces that must each be valid: the script, or each cell; with the line each starts at.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self.is_notebook = path.suffix == ".ipynb"
        self._magics: list[str] = []
        self.pins: list[str] = []  # lines that install another TensorFlow, Keras or JAX; they become comments
        self.notebook: dict[str, Any] = {}
        self.encoding, self.newline = "utf-8", "\n"
        if self.is_notebook:
            self._read_notebook(content)
        else:
            self._read_script(content)

    def place(self, line: int) -> Place:
        """Return where a line of `text`, from 1, is."""
        if not self.is_notebook:
            return Place(line)
        starts = [start for _, start, _ in self.pieces]
        cell, start, _ = self.pieces[max(bisect.bisect(starts, line) - 1, 0)]
        return Place(max(line - start + 1, 1), cell + 1)

    def render(self, text: str, header: str) -> bytes:
        """Return the content of a file with the Python `text` in place of the old one.

        Args:
            text: `self.text`, changed.
            header: Lines to put first.
        """
        text = _IS_MAGIC.sub(lambda found: self._magics[int(found[1])], text)
        if self.is_notebook:
            return self._render_notebook(text, header)
        text = _with_header(text, header)
        return text.replace("\n", self.newline).encode(self.encoding)

    def _read_script(self, content: bytes) -> None:
        try:
            self.encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            text = content.decode(self.encoding)
        except (SyntaxError, UnicodeDecodeError) as error:
            raise ArgumentError(f"{self.path} is no text that Python can read: {error}. Save it as UTF-8.") from error
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.pieces = [(0, 1, self.text)]

    def _read_notebook(self, content: bytes) -> None:
        try:
            self.notebook = json.loads(content.decode("utf-8-sig"))
            cells = self.notebook["cells"]
            sources = ["".join(cell["source"]) if cell["cell_type"] == "code" else "" for cell in cells]
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"{self.path} is no notebook of nbformat 4 ({type(error).__name__}: {error}). "
                f"Write: jupyter nbconvert --to notebook --nbformat 4 {self.path.name}"
            ) from error
        self.pieces, texts, line = [], [], 1
        for index, source in enumerate(sources):
            if not source.strip() or _is_other_language(source):
                continue
            piece = self._without_magics(source)
            self.pieces.append((index, line + 1, piece))
            texts.append(f"{_CELL.format(index)}\n{piece}")
            line += 1 + piece.count("\n")
        self.text = "".join(texts)

    def _without_magics(self, source: str) -> str:
        """Return a cell's Python, with a name for each magic; the number of lines stays."""
        lines: list[str] = []
        depth, quote = 0, ""
        for line in source.splitlines():
            kept = line
            if not depth and not quote and not (lines and lines[-1].endswith("\\")):
                kept = self._without_magic(line)
            lines.append(kept)
            depth, quote = _open_at_end(kept, depth, quote)
        return "\n".join(lines) + "\n"

    def _without_magic(self, line: str) -> str:
        before, magic = "", ""
        if _STARTS_MAGIC.match(line):
            magic = line.lstrip()
            before = line[: len(line) - len(magic)]
            if _PINS.match(magic):
                self.pins.append(magic)
                magic = f"pass  # {magic}"
        elif found := _ASSIGNS_MAGIC.fullmatch(line):
            before, magic = found.groups()
        if not magic:
            return line
        self._magics.append(magic)
        return before + _MAGIC.format(len(self._magics) - 1)

    def _render_notebook(self, text: str, header: str) -> bytes:
        notebook = json.loads(json.dumps(self.notebook))
        _, *found = _IS_CELL.split(text)
        for index, source in zip(found[::2], found[1::2], strict=True):
            cell = notebook["cells"][int(index)]
            cell["source"] = source.removesuffix("\n").splitlines(keepends=True)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        if not header:
            return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()
        lines = header.removesuffix("\n").splitlines(keepends=True)
        first: dict[str, Any] = {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": lines,
        }
        if (notebook.get("nbformat"), notebook.get("nbformat_minor", 0)) >= (4, 5):
            first["id"] = "keras-tpu-ext-migrate"
        notebook["cells"].insert(0, first)
        return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _is_other_language(source: str) -> bool:
    """Return whether a cell is not Python, as a first line `%%bash` says."""
    found = re.match(r"\s*%%(\w+)", source)
    return found is not None and found[1] not in _PYTHON_CELLS


def _open_at_end(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Return how many brackets, and which quote of a string of several lines, are open behind a line."""
    place = 0
    while place < len(line):
        if quote:
            end = re.compile(rf"(?:\\.|(?!{quote}).)*{quote}", re.DOTALL).match(line, place)
            if end is None:
                return depth, quote if len(quote) == 3 or line.endswith("\\") else ""
            place, quote = end.end(), ""
            continue
        found = _TOKEN.search(line, place)
        if found is None or found["comment"]:
            break
        depth = max(depth + bool(found["open"]) - bool(found["close"]), 0)
        place, quote = found.end(), found["quote"] or ""
    return depth, quote if len(quote) == 3 else ""


def _with_header(text: str, header: str) -> str:
    """Return a script with lines put behind its first comments, its docstring and its `from __future__` lines."""
    lines, skipped = text.split("\n"), 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.COMMENT, tokenize.ENCODING):
                continue
            is_docstring = token.type == tokenize.STRING and token.start[1] == 0
            if not is_docstring and not token.line.startswith("from __future__ "):
                break
            skipped = token.end[0]
    except (tokenize.TokenError, IndentationError):
        pass
    if not skipped:  # a first line such as `#!/usr/bin/env python`, and that of the encoding, stay first
        while skipped < min(len(lines), 2) and re.match(r"#!|#.*coding[:=]", lines[skipped]):
            skipped += 1
    return "\n".join([*lines[:skipped], *header.splitlines(), *lines[skipped:]])
