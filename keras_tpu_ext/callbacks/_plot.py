"""The picture of a `fit`'s throughput."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from keras_tpu_ext._figure import new_figure
from keras_tpu_ext.callbacks._records import EpochThroughput, ThroughputRecord
from keras_tpu_ext.callbacks._step_times import StepTimePercentiles
from keras_tpu_ext.errors import NothingMeasuredError

_RATE = "#1f5fa8"
_EPOCH = "#d9822b"
_MEDIAN = "#555555"
_OUTSIDE = "#eeeeee"


def draw(
    records: Sequence[ThroughputRecord],
    epochs: Sequence[EpochThroughput],
    *,
    window: int,
    step_times: StepTimePercentiles | None = None,
    second_axis: tuple[str, float] | None = None,
) -> Any:
    """Return a `matplotlib.figure.Figure` with the rolling rate, each epoch's rate and the median.

    Grey stands for time between epochs, such as validation. Samples are drawn where they are known, else
    batches.

    Args:
        records: The rolling rates.
        epochs: The rates of epochs.
        window: Number of executions in a rolling rate.
        step_times: Percentiles to write above the picture.
        second_axis: What the axis on the right shows, and the factor that makes it of samples per second.

    Raises:
        NothingMeasuredError: If there is nothing to draw.
        MissingExtraError: If matplotlib is not installed.
    """
    if not records:
        raise NothingMeasuredError(
            "There is no rate to draw yet: it takes an execution after the warm-up. Write: "
            "model.fit(..., callbacks=[throughput]) with more batches or epochs, then throughput.plot()"
        )
    figure = new_figure("Throughput.plot()")
    axes = figure.subplots()
    unit = "batches" if records[-1].samples_per_sec is None else "samples"
    _draw_epochs(axes, epochs, unit)
    rates = _draw_line(axes, records, unit)
    median = statistics.median(rates)
    axes.axhline(median, color=_MEDIAN, linestyle="--", linewidth=1.2, label=f"median {median:,.4g} {unit}/s")
    # From nought, so that a dip looks as deep as it is; room at the top for the names of the epochs.
    axes.set_ylim(bottom=0, top=1.15 * axes.dataLim.y1)
    axes.set_xlim(left=0)
    axes.set(xlabel="seconds since the start of fit", ylabel=f"{unit} per second")
    axes.yaxis.set_major_formatter("{x:,.6g}")
    axes.set_title(f"Training throughput: {median:,.4g} {unit}/s", loc="left", fontweight="bold")
    axes.set_title(_note(window, step_times), loc="right", fontsize=9, color=_MEDIAN)
    if second_axis is not None and unit == "samples":
        label, factor = second_axis
        right = axes.secondary_yaxis("right", functions=(lambda rate: rate * factor, lambda shown: shown / factor))
        right.set_ylabel(label)
    figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _note(window: int, step_times: StepTimePercentiles | None) -> str:
    rolling = f"rolling over {window} executions"
    if step_times is None:
        return rolling
    in_ms = [1000 * seconds for seconds in step_times]
    p50, p90, p99 = (f"{one:,.0f}" if one >= 100 else f"{one:.3g}" for one in in_ms)
    return f"{rolling}\nstep: median {p50} ms, p90 {p90} ms, p99 {p99} ms"


def _draw_epochs(axes: Any, epochs: Sequence[EpochThroughput], unit: str) -> None:
    label: str | None = "whole epoch"
    for epoch in epochs:
        rate = epoch.samples_per_sec if unit == "samples" else epoch.batches_per_sec
        if rate is not None and not math.isnan(rate):
            axes.plot([epoch.began, epoch.ended], [rate, rate], color=_EPOCH, linewidth=2.5, alpha=0.9, label=label)
            label = None
    for epoch in _named(epochs):
        axes.annotate(
            f"epoch {epoch.epoch + 1}",
            (epoch.began, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -12),
            textcoords="offset points",
            fontsize=8,
            color=_MEDIAN,
        )
    label = "between epochs (validation, callbacks)"
    for before, after in itertools.pairwise(epochs):
        axes.axvspan(before.ended, after.began, color=_OUTSIDE, label=label, linewidth=0.5)
        label = None


def _named(epochs: Sequence[EpochThroughput]) -> list[EpochThroughput]:
    """Return the epochs whose names there is room for: an eighth of the picture for each."""
    named: list[EpochThroughput] = []
    for epoch in epochs:
        if not named or epoch.began - named[-1].began >= epochs[-1].ended / 8:
            named.append(epoch)
    return named


def _draw_line(axes: Any, records: Sequence[ThroughputRecord], unit: str) -> list[float]:
    """Draw the rolling rate, broken between epochs, and return its values."""
    rates: list[float] = []
    seconds_drawn: list[float] = []
    line: list[float] = []
    epoch = records[0].epoch
    for record in records:
        rate = record.batches_per_sec if unit == "batches" else record.samples_per_sec
        if rate is None:
            continue
        if record.epoch != epoch:
            epoch = record.epoch
            seconds_drawn.append(record.seconds)
            line.append(math.nan)
        rates.append(rate)
        seconds_drawn.append(record.seconds)
        line.append(rate)
    marker = "." if len(rates) < 200 else None
    across = [(second, rate) for second, rate in zip(seconds_drawn, line, strict=True) if not math.isnan(rate)]
    axes.plot(*zip(*across, strict=True), color=_RATE, linewidth=0.8, alpha=0.25)
    axes.plot(seconds_drawn, line, color=_RATE, linewidth=1.4, marker=marker, label="rolling rate")
    return rates
