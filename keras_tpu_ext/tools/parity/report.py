"""`ParityReport`: the quantities compared between one device and N replicas."""

from __future__ import annotations

import dataclasses
import math

from keras_tpu_ext.output.display import WIDTH, counted, wrap
from keras_tpu_ext.output.report import Report


@dataclasses.dataclass(frozen=True)
class ParityRow:
    """One compared quantity.

    Attributes:
        scenario: What the model did, such as `"one step"`.
        quantity: What was compared, such as `"loss"`.
        off: The difference as a fraction of the value on one device; `None` if there is no such number.
        tolerance: The largest `off` at which they agree; 0 if the two must be equal.
        ok: Whether they agree; `None` if it was not checked.
        note: A remark, such as the variable with the largest difference.
    """

    scenario: str
    quantity: str
    off: float | None
    tolerance: float
    ok: bool | None
    note: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return {None: "not checked", True: "agrees", False: "DIFFERS"}[self.ok]

    def _cells(self) -> tuple[str, ...]:
        checked = self.ok is not None and self.off is not None
        return (
            self.scenario,
            self.quantity,
            short_number(self.off) if self.off is not None else "-",
            ("equal" if self.tolerance == 0 else short_number(self.tolerance)) if checked else "-",
            self.verdict,
            self.note,
        )


_HEAD = ("what is done", "what is compared", "off by", "allowed", "verdict", "")


@dataclasses.dataclass(frozen=True)
class ParityReport(Report):
    """The result of `check_parity`; print it, or show it in a notebook.

    Attributes:
        replicas: Number of replicas that were compared with one device.
        steps: Number of training steps.
        tolerance: The relative difference up to which numbers agree.
        batch: The batch, in words.
        rows: One `ParityRow` for each quantity.
        findings: Sentences: causes of differences, with their cures, and changes that were made for the check.
        frameworks: The frameworks of one device and of the replicas, such as `("TensorFlow", "JAX")`.
    """

    replicas: int
    steps: int
    tolerance: float
    batch: str
    rows: tuple[ParityRow, ...]
    findings: tuple[str, ...] = ()
    frameworks: tuple[str, str] = ("", "")

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differs."""
        verdicts = [row.ok for row in self.rows]
        return True in verdicts and False not in verdicts

    def __str__(self) -> str:
        how = f"numbers agree up to a relative difference of {short_number(self.tolerance)}"
        lines = [self._verdict(), *wrap(f"{self.batch}; {counted(self.steps, 'step')}; {how}"), "", *self._table()]
        if self.findings:
            lines += ["", *(line for finding in self.findings for line in wrap(f"- {finding}", 2))]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        """Return the lines of the table; notes that do not fit beside their row are listed once, below it."""
        cells = [_HEAD, *(row._cells() for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEAD) - 1)]
        room = WIDTH - sum(width + 2 for width in widths)
        below = list(dict.fromkeys(note for *_, note in cells if len(note) > room))
        lines = []
        for *row, note in cells:
            shown = f"[{below.index(note) + 1}]" if note in below else note
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join([*padded, shown]).rstrip())
        notes = [line for number, note in enumerate(below, 1) for line in wrap(f"[{number}] {note}", 4)]
        return [*lines, "", *notes] if notes else lines

    def _verdict(self) -> str:
        one, many = "one device", f"{self.replicas} replicas"
        if len(set(self.frameworks)) > 1:
            one, many = (f"{what} on {name}" for what, name in zip((one, many), self.frameworks, strict=True))
        verdicts = [row.ok for row in self.rows]
        checked, unchecked = [v for v in verdicts if v is not None], verdicts.count(None)
        more = f"; {unchecked} not checked" if unchecked else ""
        if not checked:
            return f"Nothing could be compared between {many} and {one}{more}"
        if self.ok:
            agree = f"{len(checked)} of {len(checked)} quantities agree to {short_number(self.tolerance)}"
            wider = sum(row.ok is True and row.off is not None and row.off > self.tolerance for row in self.rows)
            agree += f", {wider} of them only to what rounding makes here" if wider else ""
            return f"{many} equal {one}: {agree}{more}"
        count = verdicts.count(False)
        differ = f"{count} of {len(checked)} quantities differ{'s' if count == 1 else ''}"
        return f"{many} do not equal {one}: {differ}{more}"


def short_number(value: float) -> str:
    """Return a short number: 1e-5, 2.4e-7, 0.39."""
    if not math.isfinite(value) or value == 0 or value >= 0.01:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
