"""`Finding` and `Advice`: what `advise` returns."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tpu_ext.output.display import HtmlText, counted


@dataclasses.dataclass(frozen=True)
class Finding(HtmlText):
    """One thing that makes an input pipeline slow, or wrong on a TPU.

    Attributes:
        kind: A short name, such as `"threads"` or `"cache-after-shuffle"`.
        what: What was found, in a sentence.
        write: The line to write.
    """

    kind: str
    what: str
    write: str

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}\n    {self.write}"


class Advice(HtmlText, list[Finding]):
    """The findings of `advise`; print it, or show it in a notebook."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as plain data for JSON."""
        return {"ok": self.ok, "findings": [finding.to_dict() for finding in self]}

    def __str__(self) -> str:
        if self.ok:
            return "Nothing in this pipeline needs another line."
        first = f"{counted(len(self), 'thing')} to change in this pipeline:"
        return "\n".join([first, *(f"{number}. {one}" for number, one in enumerate(self, 1))])
