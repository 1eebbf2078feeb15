"""Reads a table that is written as text, a row on each line."""

from __future__ import annotations

import re


def read_functions(text: str) -> dict[str, str]:
    """Return rows of functions, in which `F` is the last part of the row's name, without `reduce_`."""
    rows = read_rows(text).items()
    return {name: re.sub(r"\bF\(", f"{name.rpartition('.')[2].removeprefix('reduce_')}(", row) for name, row in rows}


def read_rows(text: str) -> dict[str, str]:
    """Return what stands behind each name, which ends with a colon; an indented line goes on with its row."""
    rows: dict[str, str] = {}
    for line in re.sub(r"\n\s+", " ", text.strip()).splitlines():
        names, _, value = line.partition(":")
        for name in names.split(", "):
            if name in rows:
                raise ValueError(f"two rows are named {name}")
            rows[name] = value.strip()
    return rows
