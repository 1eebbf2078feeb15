"""An empty picture."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext.errors import MissingExtraError


def new_figure(caller: str, size: tuple[float, float] = (9, 4.5)) -> Any:
    """Return an empty `matplotlib.figure.Figure`, which needs no display.

    Args:
        caller: What needs it, such as `"Throughput.plot()"`.
        size: Width and height in inches.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        # Not pyplot: it keeps every figure and may want a display.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            f"{caller} needs matplotlib, and this Python has none. Write: pip install matplotlib"
        ) from error
    return Figure(figsize=size, dpi=120, layout="constrained")
