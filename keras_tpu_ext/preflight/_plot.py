"""The figure of a preflight report: time by layer, or the largest buffers, and the memory use."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext.errors import NothingMeasuredError
from keras_tpu_ext.output.figure import FIRST, LIMIT, NEUTRAL, SECOND, new_figure, set_legend, set_title
from keras_tpu_ext.preflight._text import device_name, headline
from keras_tpu_ext.preflight.results import MemoryUse, PreflightResult

_NUM_LAYERS = 15
_VISIBLE = 0.002  # of the longest bar
_MOST_LETTERS = 36
_GIB = 2**30
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1}


def draw_report(report: PreflightResult) -> Any:
    """Draw the figure of `PreflightReport.plot`."""
    memory = report.memory
    if memory is None or memory.needed is None:
        raise NothingMeasuredError(
            f"There is nothing to draw: {headline(report)}. Print the report to see why, and try again with "
            "what it says."
        )
    figure = new_figure("PreflightReport.plot()", size=(10, 6))
    details, use = figure.subplots(1, 2, width_ratios=[4, 1])
    if report.time is not None:
        _draw_times(details, report)
    elif memory.buffers:
        _draw_buffers(details, memory)
    else:
        details.set_axis_off()
    _draw_memory(use, memory, f"GiB of HBM\na {device_name(report)}")
    if report.time is not None or memory.buffers:
        set_legend(figure, details)
    set_title(figure, headline(report))
    return figure


def _draw_times(axes: Any, report: PreflightResult) -> None:
    shown = [layer for layer in report.layers[:_NUM_LAYERS] if layer.seconds > _VISIBLE * report.layers[0].seconds]
    layers = shown[::-1]
    names = [_shorten(layer.layer) for layer in layers]
    backward = [1e3 * layer.backward_seconds for layer in layers]
    forward = [1e3 * layer.seconds - back for layer, back in zip(layers, backward, strict=True)]
    axes.barh(names, forward, color=FIRST, label="forward")
    axes.barh(names, backward, left=forward, color=SECOND, label="backward")
    axes.set_xlabel("ms of a step, as the compiler estimates it")
    more = len(report.layers) - len(layers)
    title = f"The {len(layers)} slowest of {len(report.layers)} layers" if more else "Time by layer"
    axes.set_title(title, loc="left", fontsize=10)
    axes.tick_params(axis="y", labelsize=8)


def _draw_buffers(axes: Any, memory: MemoryUse) -> None:
    buffers = [buffer for buffer in memory.buffers if buffer.bytes > _VISIBLE * memory.buffers[0].bytes][::-1]
    names = [f"{_shorten(buffer.layer)}\n{buffer.shape}" for buffer in buffers]
    for backward, colour, label in ((False, FIRST, "forward"), (True, SECOND, "backward")):
        sizes = [buffer.bytes / _GIB if buffer.backward == backward else 0 for buffer in buffers]
        axes.barh(range(len(buffers)), sizes, color=colour, label=label)
    axes.set_yticks(range(len(buffers)), names, fontsize=8)
    axes.set_xlabel("GiB")
    at = "" if memory.buffers_batch is None else f", at a batch of {memory.buffers_batch} a replica, which fits"
    axes.set_title(f"The largest buffers at peak memory{at}", loc="left", fontsize=10)


def _draw_memory(axes: Any, memory: MemoryUse, title: str) -> None:
    needed = (memory.needed or 0) / _GIB
    available = memory.available / _GIB
    if memory.arguments is None or memory.temporaries is None:
        axes.bar([0], [needed], color=NEUTRAL, width=0.6)
        axes.annotate("needed", (0, needed / 2), fontsize=8, ha="center", va="center", color="white")
    else:
        parts = (
            (memory.arguments / _GIB, FIRST, "weights,\nstate, batch"),
            (memory.temporaries / _GIB, SECOND, "temporaries"),
        )
        bottom = 0.0
        top = max(needed, available)
        for height, colour, name in parts:
            axes.bar([0], [height], bottom=[bottom], color=colour, width=0.6)
            if height > 0.07 * top:  # room for its name
                axes.annotate(name, (0, bottom + height / 2), fontsize=8, ha="center", va="center", color="white")
            bottom += height
    axes.axhline(available, color=LIMIT, linewidth=1.5, linestyle="--")
    axes.annotate("available HBM", (0, available), fontsize=8, ha="center", va="bottom", color=LIMIT, bbox=_PAPER)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xticks([])
    axes.set_xlim(-0.6, 0.6)
    axes.set_ylim(0, 1.15 * max(available, needed))


def _shorten(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"…{name[1 - _MOST_LETTERS :]}"
