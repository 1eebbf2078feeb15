"""Reads a program, says what becomes of it, and writes the modern one."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from keras_tpu_ext.errors import ArgumentError, MissingExtraError
from keras_tpu_ext.tools.migrate.program import Program
from keras_tpu_ext.tools.migrate.report import MigrationReport

_KINDS = (".py", ".ipynb")
_PRINT = re.compile(r"^\s*(print|exec)\s+[^\s(=.,\[]")
_DROPIN = "import keras_tpu_ext.dropin.old_program  # keras-tpu-ext migrate: still needed for {}\n"
_NAMED = 6  # names in that line
_BACKEND = 'import os\n\nos.environ["KERAS_BACKEND"] = "jax"\n\n'

# What Keras 3 computes a little differently, and only the drop-in does not.
_OTHER_NUMBERS = {
    "BatchNormalization": "BatchNormalization: old Keras kept the variance of images over N - 1, Keras 3 over N.",
    "crossentropy": "Cross-entropies: old Keras took those of a softmax or sigmoid from its input; Keras 3 clips "
    "probabilities below 1e-7.",
}

_PIN = "Leave out: {} It replaces what fits the TPU of today's images. The written program has it as a comment."


def migrate(
    path: str | Path, *, write: bool = False, output: str | Path | None = None, overwrite: bool = False
) -> MigrationReport:
    """Say what becomes of an old TPU program, and write the modern one. The program is read, and not run.

    Args:
        path: A script, `.py`, or a notebook, `.ipynb`.
        write: Whether to write the modern program.
        output: Its file; `None` puts it beside the old one, `kernel.modern.py` for `kernel.py`. Only with `write`.
        overwrite: Whether that file may be there already.

    Returns:
        The report; `.ok` if nothing is out of reach.

    Raises:
        ArgumentError: If the file is no Python 3 program, or the output is there already.
        MissingExtraError: If LibCST is not installed.
    """
    _check_libcst()
    from keras_tpu_ext.tools.migrate.context import Context
    from keras_tpu_ext.tools.migrate.rewriting import modernized

    path = Path(path)
    if path.suffix not in _KINDS:
        raise ArgumentError(f"migrate reads a script (.py) or a notebook (.ipynb); got {path.name!r}.")
    if output is not None and not write:
        raise ArgumentError("migrate: output= is the file of write=True. Write write=True as well.")
    target = _target(path, output, overwrite) if write else None
    program = Program(path, path.read_bytes())
    _check_syntax(program)
    context = Context(program)
    made = modernized(context)
    if any(one.on_dropin for one in context.findings):
        context = Context(program, on_dropin=True)
        made = modernized(context)
    lines = sum(bool(line.strip()) for line in program.text.splitlines() if not line.startswith("_kte_cell_"))
    on_dropin = any(one.on_dropin for one in context.findings)
    notes = tuple(note for name, note in _OTHER_NUMBERS.items() if name in program.text and not on_dropin)
    notes += tuple(_PIN.format(pin) for pin in program.pins)
    report = MigrationReport(str(path), lines, context.findings, str(target or ""), notes)
    if target is not None:
        target.write_bytes(program.render(made.code, _header(report, made, context)))
    return report


def _header(report: MigrationReport, made: Any, context: Any) -> str:
    """Return the first lines of the modern program."""
    from keras_tpu_ext.tools.migrate.imports import used

    needed = report.on_dropin
    olds = [*dict.fromkeys(one.old for one in needed)]
    more = f" and {len(olds) - _NAMED} more" if len(olds) > _NAMED else ""
    lines = _DROPIN.format(", ".join(olds[:_NAMED]) + more) if needed else _BACKEND
    if not needed and "KERAS_BACKEND" in made.code:  # as in a program that was written here
        lines = ""
    names = used(made)
    if "math" in names - used(context.wrapper.module):
        lines += "import math\n"
    if "keras" in names and not _is_imported_first("keras", made.code):
        lines += "import keras\n"
    if "kte" in names and not re.search(r"^import keras_tpu_ext as kte$", made.code, re.MULTILINE):
        lines += "import keras_tpu_ext as kte\n"
    return lines


def _is_imported_first(name: str, code: str) -> bool:
    """Return whether a program has `import name` before it uses the name."""
    imported = re.search(rf"^import {name}$", code, re.MULTILINE)
    used = re.search(rf"^(?!import |from ).*\b{name}\.", code, re.MULTILINE)
    return imported is not None and (used is None or imported.start() < used.start())


def _target(path: Path, output: str | Path | None, overwrite: bool) -> Path:
    target = Path(output) if output is not None else path.with_suffix(f".modern{path.suffix}")
    if target.suffix != path.suffix:
        raise ArgumentError(f"migrate writes what it reads, a {path.suffix} file; got output={str(target)!r}.")
    if target.exists() and (not overwrite or target.samefile(path)):
        raise ArgumentError(
            f"{target} is there already. Remove it, or name another file: output={target.stem}2{target.suffix}"
        )
    if not target.parent.is_dir():
        raise ArgumentError(f"{target} cannot be written: there is no folder {target.parent}.")
    return target


def _check_libcst() -> None:
    try:
        import libcst  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "migrate needs LibCST, and this Python has none. Write: pip install 'libcst>=1.1'"
        ) from error


def _check_syntax(program: Program) -> None:
    """Raise an error that names the line that is no Python 3."""
    for _, start, piece in program.pieces:
        try:
            ast.parse(piece)
        except (SyntaxError, ValueError) as error:
            number = min(max(getattr(error, "lineno", None) or 1, 1), piece.count("\n") + 1)
            line = piece.split("\n")[number - 1].strip()
            hint = " In Python 3, print is a function: write print(...)." if _PRINT.match(line) else ""
            place = program.place(start + number - 1)
            raise ArgumentError(f"{program.path}, {place} is no Python 3: `{line[:80]}`.{hint}") from error
