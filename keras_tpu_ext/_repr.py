"""How a report shows itself in a notebook."""

import html


class HtmlText:
    """Shows `str(self)` in a notebook as it is printed."""

    _white_space = "pre"

    def _repr_html_(self) -> str:
        style = f"font-family: monospace; white-space: {self._white_space}"
        return f'<pre style="{style}">{html.escape(str(self))}</pre>'


class HtmlSentence(HtmlText):
    """Shows `str(self)`, one long line, in as many lines as a notebook needs for it."""

    _white_space = "pre-wrap"
