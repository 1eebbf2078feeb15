"""`Finding` and `Advice`: what `advise` returns."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tpu_ext.output.display import HtmlText

LEAST_GAIN = 1.1  # a smaller measured gain is noise, or not worth a line


@dataclasses.dataclass(frozen=True)
class Finding(HtmlText):
    """One thing that makes an input pipeline slow, or wrong on a TPU.

    Attributes:
        kind: A short name, such as `"map"` or `"cache-after-shuffle"`.
        what: What was found, in a sentence.
        write: The line to write.
        gain: Elements per second with the line, divided by those without it; `None` if unknown.
        measured: Whether `gain` was measured, not estimated.
    """

    kind: str
    what: str
    write: str
    gain: float | None = None
    measured: bool = False

    @property
    def matters(self) -> bool:
        """Whether the line is worth writing: not if nothing was gained when measured."""
        return self.gain is None or self.gain >= LEAST_GAIN

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        return {**dataclasses.asdict(self), "matters": self.matters}

    def _gain(self) -> str:
        if self.gain is None:
            return "gain not known"
        return f"{self.gain:.2g} times as fast, {'measured' if self.measured else 'estimated'}"

    def __str__(self) -> str:
        return f"{self.kind} ({self._gain()}): {self.what}\n    {self.write}"


class Advice(HtmlText, list[Finding]):
    """The findings of `advise` that are worth a line, the greatest gain first; print it, or show it in a notebook.

    Attributes:
        note: A remark on the measurement, such as why there was none; may be empty.
        left_out: The findings whose measured gain is below 1.1: noise, or a loss.
    """

    def __init__(self, findings: list[Finding] | tuple[Finding, ...] = (), note: str = "") -> None:
        ordered = sorted(findings, key=lambda one: (-(one.gain or 1.0), not one.measured))
        super().__init__(one for one in ordered if one.matters)
        self.note = note
        self.left_out = tuple(one for one in ordered if not one.matters)

    @property
    def ok(self) -> bool:
        """Whether nothing was found that is worth a line."""
        return not self

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as plain data for JSON."""
        return {
            "ok": self.ok,
            "findings": [finding.to_dict() for finding in self],
            "left_out": [finding.to_dict() for finding in self.left_out],
            "note": self.note,
        }

    def __str__(self) -> str:
        lines = [self._verdict(), *(f"{number}. {one}" for number, one in enumerate(self, 1))]
        if self.left_out:
            gains = ", ".join(f"{one.kind} ({one.gain:.2f} times as fast)" for one in self.left_out)
            lines.append(f"Measured, and not worth a line: {gains}.")
        return "\n".join(lines + ([self.note] if self.note else []))

    def _verdict(self) -> str:
        count = len(self)
        if not count:
            return "Nothing in this pipeline needs another line."
        return f"{count} thing{'' if count == 1 else 's'} to change in this pipeline:"
