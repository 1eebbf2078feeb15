"""docs/addons.md: what was found of each public name of TensorFlow Addons, a column for each TensorFlow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "addons.md"
COLUMNS = ("TF 2.15", "TF 2.21")
WORKS, WITH_A_NOTE, DOES_NOT = "works", "works with a note", "does not"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What was found of one name: one of the three words, and why it is not the first."""

    word: str
    notes: tuple[str, ...] = ()


Rows = dict[str, dict[str, Verdict]]  # of one module: by name, then by column


def read() -> dict[str, Rows]:
    """Return what the page says: by module, name and column."""
    found: dict[str, Rows] = {}
    rows: Rows = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            rows = found.setdefault(line.split("`tfa.")[1].rstrip("`"), {})
        if line.startswith("| `"):
            name, *words, notes = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name.strip("`")] = {
                column: Verdict(word, _notes_of(column, notes)) for column, word in zip(COLUMNS, words, strict=True)
            }
    return found


def write(column: str, module: str, verdicts: dict[str, Verdict]) -> None:
    """Put `verdicts` into the page: one column of the table of one module."""
    text = PAGE.read_text()
    before = read().get(module, {})
    start = text.index(f"## `tfa.{module}`")
    end = text.find("\n## ", start)
    rows = [_row(name, before.get(name, {}) | {column: verdict}) for name, verdict in sorted(verdicts.items())]
    head = [f"## `tfa.{module}`", "", f"| name | {' | '.join(COLUMNS)} | note |", "| --- " * (len(COLUMNS) + 2) + "|"]
    rest = "" if end < 0 else text[end:]
    PAGE.write_text(text[:start] + "\n".join([*head, *rows, ""]) + rest)


def _row(name: str, verdicts: dict[str, Verdict]) -> str:
    known = [column for column in COLUMNS if column in verdicts]
    notes: list[str] = []
    for note in dict.fromkeys(note for column in known for note in verdicts[column].notes):
        where = [column for column in known if note in verdicts[column].notes]
        notes += [note] if where == known else [f"{column}: {note}" for column in where]
    words = [verdicts[column].word if column in verdicts else "?" for column in COLUMNS]
    return f"| {' | '.join([f'`{name}`', *words, '<br>'.join(notes)])} |".replace("|  |", "| |")


def _notes_of(column: str, cell: str) -> tuple[str, ...]:
    """Return the notes in `cell` that are about `column`: those that name no other one."""
    notes = []
    for note in filter(None, cell.split("<br>")):
        of = next((column for column in COLUMNS if note.startswith(f"{column}: ")), None)
        if of in (None, column):
            notes.append(note.removeprefix(f"{of}: "))
    return tuple(notes)
