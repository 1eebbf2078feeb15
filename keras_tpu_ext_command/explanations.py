"""What errors and warnings mean, by code: explanations.md, which is also a page of the documentation."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_PAGE = Path(__file__).with_name("explanations.md")


class Explanation(NamedTuple):
    """A section of the page."""

    title: str
    text: str
    messages: tuple[re.Pattern[str], ...]  # of what it explains; none for a class


@functools.cache
def explanations() -> Mapping[str, Explanation]:
    """Return all explanations by code."""
    sections = re.split(r"^## .*\n|^### (KTE\d{3}): (.*)\n", _PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {code: (title, text.strip()) for code, title, text in zip(*[iter(sections[1:])] * 3, strict=True) if code}
    return {code: Explanation(title, text, _messages(text)) for code, (title, text) in sorted(found.items())}


def _messages(text: str) -> tuple[re.Pattern[str], ...]:
    quotes = (" ".join(quote.split()) for quote in re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return tuple(re.compile(".*".join(map(re.escape, quote.split("..."))), re.DOTALL) for quote in quotes)


def code_of(classes: Sequence[str], message: str) -> str:
    """Return the code of the section that quotes a message, else that of the first of its classes that has one.

    Args:
        classes: Names of an error's class and its bases, in this order.
        message: What the error says.
    """
    for code, one in explanations().items():
        if any(pattern.search(message) for pattern in one.messages):
            return code
    return next(
        code for name in classes for code, one in explanations().items() if one.text.startswith(f"`{name}`. ")
    )


def explain(code: str | None) -> tuple[str, int]:
    """Return what `keras-tpu-ext explain` prints, and its exit status.

    Args:
        code: The code, or the name of a class that has one; `None` lists all.
    """
    known = explanations()
    if code is None:
        return "\n".join(f"{one}  {known[one].title}" for one in known), 0
    of_class = (one for one in known if known[one].text.startswith(f"`{code}`. "))
    code = next(of_class, code.strip("[]").upper())
    code = f"KTE{code:0>3}" if code.isdigit() else code
    if code in known:
        return f"{code}: {known[code].title}\n\n{known[code].text}", 0
    nearest = difflib.get_close_matches(code, known, n=1, cutoff=0.0)[0]
    return f"there is no code {code}; the nearest is {nearest}. To list all, write: keras-tpu-ext explain", 2
