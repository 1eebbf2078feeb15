"""The display of reports: counts and sizes, in 80 columns, and in a notebook."""

import html
import textwrap
from collections.abc import Mapping, Sequence

WIDTH = 80  # columns
_MOST_NAMES = 3


def wrap(text: str, indent: int = 0, *, width: int = WIDTH) -> list[str]:
    """Return text in lines of `width` columns, the further ones indented; words stay whole, and so do "5" and "%"."""
    joined = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.wrap(
        joined, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def counted(count: int, noun: str) -> str:
    """Return `"1 step"` or `"2 steps"`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def variables_text(paths: Sequence[str], of: int) -> str:
    """Return the first of the paths of variables, of which the model has `of`, or `"all 12 variables"`."""
    if len(paths) == of > 1:
        return f"all {of} variables"
    more = len(paths) - _MOST_NAMES
    return ", ".join(paths[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Return the axes of a mesh, such as `"data 2 x model 4"`."""
    return " x ".join(f"{name} {size}" for name, size in mesh.items())


def memory_size(size: float) -> str:
    """Return bytes of memory, such as `"1.5 GiB"`."""
    return _with_unit(size, {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10})


def file_size(size: float) -> str:
    """Return bytes that are written or sent, such as `"205 MB"`."""
    return _with_unit(size, {"GB": 1e9, "MB": 1e6, "kB": 1e3})


def _with_unit(size: float, units: Mapping[str, float]) -> str:
    """Return bytes in the first of the units that is not larger."""
    unit = next((unit for unit, factor in units.items() if size >= factor), "")
    return f"{three_digits(size / units[unit])} {unit}" if unit else f"{size:.0f} B"


def duration(seconds: float) -> str:
    """Return a time as a person says it, such as `"2 h 05 min"`, `"1 min 30 s"`, `"12.3 s"` or `"340 ms"`."""
    if seconds < 1:
        return f"{three_digits(1e3 * seconds)} ms"
    if seconds < 59.95:
        return f"{three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min"


def three_digits(number: float) -> str:
    """Return a number with three significant digits, but no exponent: 1010, not 1.01e+03."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


def rounded(number: float) -> str:
    """Return a number as a person reads it: `"149k"`, `"32768"`, `"43.9"`, `"0.412"`, and `"0.000"` for 0.0001."""
    size = abs(number)
    if not size < 1e12:
        return f"{number:.3g}"
    if number % 1 == 0 and size < 1e5:
        return f"{number:.0f}"
    if size < 1e4:
        return three_digits(number) if size >= 1e-3 else f"{number:.3f}"
    unit = next(unit for unit, factor in _THOUSANDS.items() if size >= 0.9995 * factor)
    return f"{three_digits(number / _THOUSANDS[unit])}{unit}"


_THOUSANDS = {"G": 1e9, "M": 1e6, "k": 1e3}


def percent(fraction: float) -> str:
    """Return a fraction such as `"0.0 %"` or `"37.5 %"`."""
    return f"{100 * fraction:.1f} %"


class HtmlText:
    """Shows `str(self)` in a notebook as it is printed."""

    _white_space = "pre"

    def _repr_html_(self) -> str:
        style = f"font-family: monospace; white-space: {self._white_space}"
        return f'<pre style="{style}">{html.escape(str(self))}</pre>'


class HtmlSentence(HtmlText):
    """Shows `str(self)`, one long line, wrapped as a notebook needs."""

    _white_space = "pre-wrap"
