"""The table of `LiveView`: its cells, and where it is shown."""

from __future__ import annotations

import html
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_tpu_ext.callbacks._mfu import MFU, TOKENS_PER_SEC
from keras_tpu_ext.callbacks._rates import BATCHES_PER_SEC, SAMPLES_PER_SEC
from keras_tpu_ext.checks.arguments import is_number
from keras_tpu_ext.output.display import memory_size, percent, rounded
from keras_tpu_ext.output.run_page import table

_MOST_EPOCHS = 8
_OURS = ("throughput/", "input/", "goodput/", "device_memory/", "recompilations/")


class View(NamedTuple):
    """What is shown: a row for each epoch, where `fit` is in the last one, and the time left."""

    header: list[str]
    rows: list[list[str]]
    place: str
    left: str

    @property
    def caption(self) -> str:
        """The line below the table."""
        return f"{self.place}{self.left and '; '}{self.left}"


class Screen:
    """Where a view is shown: here in a line for each epoch, elsewhere in place of the last view."""

    def show(self, view: View, *, epoch_ended: bool) -> None:
        """Show a view."""
        if epoch_ended:
            print(line(view), flush=True)

    def close(self) -> None:
        """Leave the last view as it is."""


def cells(logs: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of an epoch by column: metrics, then what the callbacks of this package put into `logs`."""
    numbers = {key: float(value) for key, value in logs.items() if is_number(value)}
    found = {key: f"{value:.4g}" for key, value in numbers.items() if not key.startswith(_OURS)}
    known = {key: value for key, value in numbers.items() if not math.isnan(value)}
    for column, keys in _COLUMNS.items():
        key = next((key for key in keys if key in known), None)
        if key is not None:
            found[column] = keys[key](known[key])
    return found


def view_of(epochs: Mapping[int, Mapping[str, str]], place: str, left: str) -> View:
    """Return the view of the last epochs, each given as its cells."""
    known = dict.fromkeys(column for row in epochs.values() for column in row)
    ends = ("loss", "val_loss"), tuple(_COLUMNS)
    metrics = [one for one in known if one not in ends[0] + ends[1]]
    columns = [one for one in (*ends[0], *metrics, *ends[1]) if one in known]
    last = list(epochs.items())[-_MOST_EPOCHS:]
    rows = [[f"{epoch + 1}", *(row.get(column, "") for column in columns)] for epoch, row in last]
    return View(["epoch", *columns], rows, place, left)


def screen() -> Screen:
    """Return the place for a view: a notebook, a terminal, or lines of text."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is not None:
        return _Notebook()
    is_terminal = sys.stdout.isatty() and importlib.util.find_spec("rich") is not None
    return _Terminal() if is_terminal else Screen()


def _rate(unit: str) -> Callable[[float], str]:
    return lambda value: f"{rounded(value)}{unit}/s"


def _memory(gib: float) -> str:
    return memory_size(gib * 2**30)


_COLUMNS: dict[str, dict[str, Callable[[float], str]]] = {
    "rate": {TOKENS_PER_SEC: _rate(" tokens"), SAMPLES_PER_SEC: _rate(""), BATCHES_PER_SEC: _rate(" batches")},
    "wait": {"input/wait_fraction": percent},
    "MFU": {MFU: percent},
    "memory": {"device_memory/in_use_gib": _memory},
    "goodput": {"goodput/fraction": percent},
    "recompiled": {"recompilations/count": rounded},
}


class _Notebook(Screen):
    """One output of a cell."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._handle = HTML, display(HTML(""), display_id=True)

    def show(self, view: View, *, epoch_ended: bool) -> None:
        self._handle.update(self._html(f"{table(view.header, view.rows)}<p>{html.escape(view.caption)}</p>"))


class _Terminal(Screen):
    """A table of rich, as Keras prints its summaries; what else is printed stands above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(), auto_refresh=False)

    def show(self, view: View, *, epoch_ended: bool) -> None:
        if not self._live.is_started:
            self._live.start()
            self._live.console.show_cursor(True)  # an error may leave it as it is
        self._live.update(rich_table(view), refresh=True)

    def close(self) -> None:
        self._live.stop()


def rich_table(view: View) -> Any:
    """Return a view as a table of rich."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, caption=Text(view.caption), caption_justify="left", padding=(0, 1, 0, 0))
    for name in view.header:
        made.add_column(Text(name), justify="right")
    for row in view.rows:
        made.add_row(*map(Text, row))
    return made


def line(view: View) -> str:
    """Return the last row in one line: each value after its name, but for a rate."""
    row = [pair for pair in zip(view.header, view.rows[-1], strict=True) if pair[1]][1:]
    shown = [view.place.partition(",")[0], *(value if name == "rate" else f"{name} {value}" for name, value in row)]
    return "  ".join([*shown, view.left]).rstrip()
