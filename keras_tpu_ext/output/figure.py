"""The common style of all figures."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from keras_tpu_ext.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Nearly everybody can distinguish blue and orange; everything else is grey.
FIRST, SECOND, NEUTRAL, LIMIT = "#1f5fa8", "#d9822b", "#777777", "#b3261e"
_WIDTH_OF_LETTER = 0.085  # inches, in the title


def new_figure(caller: str, size: tuple[float, float] = (9, 4.5)) -> Figure:
    """Return an empty `matplotlib.figure.Figure`, which needs no display and is white on any page."""
    try:
        # Not pyplot: it keeps every figure and may want a display.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            f"{caller} needs matplotlib, and this Python has none. Write: pip install matplotlib"
        ) from error
    return Figure(figsize=size, dpi=120, layout="constrained", facecolor="white")


def set_title(figure: Any, title: str) -> None:
    """Put a title, which states the result, on the left of a figure, in as many lines as it needs."""
    lines = textwrap.wrap(title, int(figure.get_figwidth() / _WIDTH_OF_LETTER))
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11, fontweight="bold")


def set_legend(figure: Any, axes: Any, *, columns: int = 2) -> None:
    """Put the legend of `axes` below the figure, off its curves and bars."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, fontsize=9, frameon=False)
