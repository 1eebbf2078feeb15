"""The display of reports: in 80 columns, and in a notebook."""

import html
import textwrap

WIDTH = 80  # columns


def wrap(text: str, indent: int = 0, *, width: int = WIDTH) -> list[str]:
    """Return text in lines of `width` columns, the further ones indented; words stay whole, and so do "5" and "%"."""
    joined = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.wrap(
        joined, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


class HtmlText:
    """Shows `str(self)` in a notebook as it is printed."""

    _white_space = "pre"

    def _repr_html_(self) -> str:
        style = f"font-family: monospace; white-space: {self._white_space}"
        return f'<pre style="{style}">{html.escape(str(self))}</pre>'


class HtmlSentence(HtmlText):
    """Shows `str(self)`, one long line, wrapped as a notebook needs."""

    _white_space = "pre-wrap"
