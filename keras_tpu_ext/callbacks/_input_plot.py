"""The picture of what a step's time goes into, and of how fast each side would be alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keras_tpu_ext._figure import new_figure
from keras_tpu_ext.callbacks.input_verdict import InputVerdict
from keras_tpu_ext.errors import NothingMeasuredError

_COMPUTES = "#1f5fa8"
_WAITS = "#d9822b"
_BOTH = "#777777"
_ROOM = 1.22  # of the longest bar, for the number beside it


def draw_input(verdicts: Sequence[tuple[int, InputVerdict]]) -> Any:
    """Return a `matplotlib.figure.Figure`: where each epoch's step time went, and the rates of both sides.

    Args:
        verdicts: Number of the epoch from 0, and what is known of it.

    Raises:
        NothingMeasuredError: If there is nothing to draw.
        MissingExtraError: If matplotlib is not installed.
    """
    if not verdicts:
        raise NothingMeasuredError(
            "There is nothing to draw yet: HostBottleneck does not know how long this model waits for data. Write: "
            "model.fit(..., callbacks=[bottleneck]) with more batches in an epoch, then bottleneck.plot()"
        )
    figure = new_figure("HostBottleneck.plot()")
    left, right = figure.subplots(1, 2)
    last = verdicts[-1][1]
    _draw_epochs(left, verdicts)
    _draw_rates(right, last)
    figure.suptitle(
        f"{last.verdict}: {last.wait_fraction:.0%} of the time waits for data", x=0.01, ha="left", fontweight="bold"
    )
    return figure


def _draw_epochs(axes: Any, verdicts: Sequence[tuple[int, InputVerdict]]) -> None:
    places = [epoch + 1 for epoch, _ in verdicts]
    waits = [1e3 * verdict.wait_fraction * verdict.step_seconds for _, verdict in verdicts]
    computes = [1e3 * verdict.step_seconds - wait for (_, verdict), wait in zip(verdicts, waits, strict=True)]
    axes.bar(places, computes, color=_COMPUTES, label="computes", width=0.7)
    axes.bar(places, waits, bottom=computes, color=_WAITS, label="waits for data", width=0.7)
    axes.set_xlim(min(places) - 1, max(places) + 1)
    every = math.ceil(len(places) / 10)
    axes.set_xticks(places[::every])
    axes.set_ylim(top=1.2 * axes.dataLim.y1)
    axes.set(xlabel="epoch", ylabel="ms for a batch")
    axes.set_title("where the time of a step goes", loc="left", fontsize=10)
    axes.legend(loc="upper right", fontsize=9, frameon=False, ncols=2)


def _draw_rates(axes: Any, verdict: InputVerdict) -> None:
    bars = [
        ("fit, as it is", 1 / verdict.step_seconds, _BOTH),
        ("step, on data\nthat is there", 1 / verdict.compute_seconds, _COMPUTES),
    ]
    if verdict.pipeline_seconds:
        bars.append(("pipeline, alone", 1 / verdict.pipeline_seconds, _WAITS))
    names, rates, colours = zip(*bars, strict=True)
    drawn = axes.barh(names, rates, color=colours, height=0.6)
    axes.bar_label(drawn, [f"{rate:,.4g}" for rate in rates], padding=4, fontsize=9)
    axes.set_xlim(right=_ROOM * max(rates))
    axes.invert_yaxis()
    axes.set(xlabel="batches per second")
    axes.set_title(f"better input: at most {verdict.most_speedup:.3g} times as fast", loc="left", fontsize=10)
