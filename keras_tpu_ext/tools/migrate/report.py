"""What `keras-tpu-ext migrate` found in a program."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

from keras_tpu_ext.output.display import HtmlText, counted, wrap
from keras_tpu_ext.tools.migrate.program import Place

_KINDS = MAPPED, OUT_OF_REACH, NOT_DECIDED = "mapped", "out of reach", "not decided"


@dataclasses.dataclass(frozen=True)
class Finding:
    """What happens to one name in one line."""

    place: Place
    kind: str  # `"mapped"`, `"out of reach"` or `"not decided"`
    old: str  # what stands there
    text: str  # what it becomes, what to write, or why it is not decided
    on_dropin: bool  # whether the written program still needs the drop-in for it

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain Python objects."""
        place = {"line": self.place.line, "cell": self.place.cell}
        return {**place, "kind": self.kind, "old": self.old, "text": self.text, "on_dropin": self.on_dropin}

    def __str__(self) -> str:
        if self.kind == MAPPED:
            return f"{self.old} -> {self.text}"
        return f"{self.old} is {self.kind}: {self.text}"


@dataclasses.dataclass(frozen=True, repr=False)
class MigrationReport(HtmlText):
    """What becomes of the lines of an old program with the drop-in.

    Attributes:
        path: The program.
        lines: Number of lines that are not empty.
        findings: What is said of lines; all others run as they are.
        written: The modern program; empty if none was asked for.
        notes: What the modern program computes a little differently.
    """

    path: str
    lines: int
    findings: tuple[Finding, ...]
    written: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing in the program is out of reach."""
        return all(finding.kind != OUT_OF_REACH for finding in self.findings)

    @property
    def on_dropin(self) -> tuple[Finding, ...]:
        """What the written program still needs the drop-in for."""
        return tuple(finding for finding in self.findings if finding.on_dropin)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain Python objects."""
        findings = [finding.to_dict() for finding in self.findings]
        fields = {"path": self.path, "ok": self.ok, "lines": self.lines, "run": self._run}
        return {**fields, "findings": findings, "written": self.written, "notes": list(self.notes)}

    @property
    def _run(self) -> int:
        """The number of lines about which nothing is said."""
        return self.lines - len({finding.place for finding in self.findings})

    def __str__(self) -> str:
        kinds = Counter(finding.kind for finding in self.findings)
        told = [f"{counted(kinds[kind], 'name')} {kind}" for kind in _KINDS if kinds[kind]]
        first = f"{self.path}: {counted(self._run, 'line')} run as they are; {', '.join(told) or 'nothing else'}"
        lines = wrap(first, 2)
        for place, findings in itertools.groupby(self.findings, lambda finding: finding.place):
            lines += wrap(f"  {place}: {'; '.join(map(str, findings))}", 6)
        for note in self.notes:
            lines += wrap(note, 2)
        return "\n".join([*lines, *self._about_written()])

    __repr__ = __str__

    def _about_written(self) -> list[str]:
        if not self.written:
            return []
        needed = self.on_dropin
        if not needed:
            return wrap(f"Written: {self.written}, which needs no drop-in", 2)
        places = ", ".join(dict.fromkeys(str(finding.place) for finding in needed))
        return wrap(f"Written: {self.written}, which needs the drop-in for {places}", 2)
