"""How a report shows itself in a notebook."""

import html


class HtmlText:
    """Shows `str(self)` in a notebook as it is printed."""

    def _repr_html_(self) -> str:
        return f'<pre style="font-family: monospace; white-space: pre">{html.escape(str(self))}</pre>'
