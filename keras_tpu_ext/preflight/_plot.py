"""The figure of a preflight report: time by layer, and memory use."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._figure import new_figure
from keras_tpu_ext.errors import NothingMeasuredError
from keras_tpu_ext.preflight._text import device_name, headline
from keras_tpu_ext.preflight.results import PreflightResult

_NUM_LAYERS = 15
_FORWARD, _BACKWARD, _WEIGHTS, _TEMPORARIES = "#4477aa", "#ee6677", "#4477aa", "#ccbb44"
_GIB = 2**30


def draw_report(report: PreflightResult) -> Any:
    """Draw the figure of `PreflightReport.plot`."""
    if report.time is None or report.memory is None or report.memory.needed is None:
        raise NothingMeasuredError(
            f"There is nothing to draw: {headline(report)}. Print the report to see why, and try again with "
            "what it says."
        )
    figure = new_figure("PreflightReport.plot()", size=(10, 6))
    times, memory = figure.subplots(1, 2, width_ratios=[4, 1])
    _draw_times(times, report)
    _draw_memory(memory, report)
    figure.suptitle(headline(report), fontsize=10)
    return figure


def _draw_times(axes: Any, report: PreflightResult) -> None:
    layers = list(report.layers[:_NUM_LAYERS])[::-1]
    names = [layer.layer for layer in layers]
    backward = [1e3 * layer.backward_seconds for layer in layers]
    forward = [1e3 * layer.seconds - back for layer, back in zip(layers, backward, strict=True)]
    axes.barh(names, forward, color=_FORWARD, label="forward")
    axes.barh(names, backward, left=forward, color=_BACKWARD, label="backward")
    axes.set_xlabel("ms of a step, as the compiler estimates it")
    more = len(report.layers) - len(layers)
    axes.set_title(
        f"The {len(layers)} dearest layers of {len(report.layers)}" if more else "Time by layer", fontsize=9
    )
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(loc="lower right", fontsize=8)


def _draw_memory(axes: Any, report: PreflightResult) -> None:
    memory = report.memory
    assert memory is not None
    arguments, temporaries = memory.arguments or 0, memory.temporaries or 0
    axes.bar([0], [arguments / _GIB], color=_WEIGHTS, label="weights, state, batch")
    axes.bar([0], [temporaries / _GIB], bottom=[arguments / _GIB], color=_TEMPORARIES, label="temporaries")
    axes.axhline(memory.available / _GIB, color="black", linewidth=1, linestyle="--")
    axes.annotate("there", (0.42, memory.available / _GIB), fontsize=8, ha="right", va="bottom")
    axes.set_title(f"GiB of HBM a {device_name(report)}", fontsize=9)
    axes.set_xticks([])
    axes.set_xlim(-0.6, 0.6)
    axes.set_ylim(0, 1.15 * max(memory.available, memory.needed or 0) / _GIB)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), fontsize=7)
