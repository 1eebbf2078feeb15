"""The figures of the callbacks."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.values import DeviceUse
from keras_tpu_ext.callbacks._buckets import TRAINING
from keras_tpu_ext.callbacks._fit_observer import nothing_yet
from keras_tpu_ext.callbacks._rates import EpochThroughput, StepTimePercentiles, ThroughputRecord
from keras_tpu_ext.callbacks.goodput_report import GoodputReport
from keras_tpu_ext.callbacks.input_verdict import InputVerdict
from keras_tpu_ext.output.display import duration, memory_size, rounded
from keras_tpu_ext.output.figure import FIRST, LIMIT, NEUTRAL, SECOND, new_figure, set_legend, set_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What it takes to know something.
AFTER_WARMUP = "an execution after the warm-up, so more batches or epochs"
LONG_EPOCHS = "more batches in an epoch to know how long this model waits for data"
_BETWEEN_EPOCHS = "#eeeeee"
# Of buckets other than training; told apart by most people.
_OF_BUCKETS = (SECOND, "#7a3e9d", "#3a9b6f", "#b3261e", "#c9a400", "#5b8aa6", "#999999")
_PARTS = (
    ("device", FIRST, "computes"),
    ("input", SECOND, "waits for data"),
    ("callbacks", "#7a3e9d", "callbacks"),
    ("python", "#999999", "other Python"),
)
_MANY_RECORDS = 200  # too many for a dot each
_LABEL_ROOM = 1.22  # of the longest bar, for the number beside it


class Plotted:
    """A mixin for callbacks that draw what they found."""

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw what was found in the last `fit`.

        Args:
            path: File to write the picture to, such as `"plot.png"`, or `None` for none. If several processes train
                together, only the chief writes it.

        Returns:
            The `matplotlib.figure.Figure`; no display is needed.

        Raises:
            NothingMeasuredError: If nothing is known yet.
            MissingExtraError: If matplotlib is not installed.
        """
        figure = self._figure()
        if path is not None and _runtime.devices.is_chief():
            figure.savefig(path)
        return figure

    def _figure(self) -> Figure:
        raise NotImplementedError


def plot_throughput(
    records: Sequence[ThroughputRecord],
    epochs: Sequence[EpochThroughput],
    *,
    window: int,
    step_times: StepTimePercentiles | None = None,
    second_axis: tuple[str, float] | None = None,
) -> Figure:
    """Return a `matplotlib.figure.Figure` with the rolling rate, each epoch's rate and the median.

    Samples are drawn if they are known, else batches. `second_axis` is the label of the axis on the right, and its
    factor to samples per second.
    """
    if not records:
        raise nothing_yet("throughput.plot()", needs=AFTER_WARMUP)
    figure = new_figure("Throughput.plot()")
    axes = figure.subplots()
    unit = "batches" if records[-1].samples_per_sec is None else "samples"
    _plot_epochs(axes, epochs, unit)
    rates = _plot_rolling(axes, records, unit)
    # The first epoch is slower, and its readings are closer.
    later = [rate for rate in (_rate(epoch, unit) for epoch in epochs[1:]) if not math.isnan(rate)]
    median = statistics.median(later or rates)
    axes.axhline(median, color=NEUTRAL, linestyle="--", linewidth=1.2, label=f"median {rounded(median)} {unit}/s")
    # From zero, so that a dip looks as deep as it is; with room at the top for the names of the epochs.
    axes.set_ylim(bottom=0, top=1.15 * axes.dataLim.y1)
    axes.set_xlim(left=0)
    axes.set(xlabel="seconds since the start of fit", ylabel=f"{unit} per second")
    axes.yaxis.set_major_formatter("{x:,.6g}")
    of = " (median of epochs after the first)" if later else ""
    set_title(figure, f"Training throughput: {rounded(median)} {unit}/s{of}")
    axes.set_title(_subtitle(window, step_times), loc="left", fontsize=10)
    if second_axis is not None and unit == "samples":
        label, factor = second_axis
        right = axes.secondary_yaxis("right", functions=(lambda rate: rate * factor, lambda shown: shown / factor))
        right.set_ylabel(label)
    set_legend(figure, axes, columns=4)
    return figure


def _subtitle(window: int, step_times: StepTimePercentiles | None) -> str:
    rolling = f"rates over {window} executions"
    if step_times is None:
        return rolling
    in_ms = [1000 * seconds for seconds in step_times]
    p50, p90, p99 = (f"{one:,.0f}" if one >= 100 else f"{one:.3g}" for one in in_ms)
    return f"step: median {p50} ms, p90 {p90} ms, p99 {p99} ms; {rolling}"


def _plot_epochs(axes: Any, epochs: Sequence[EpochThroughput], unit: str) -> None:
    label: str | None = "whole epoch"
    for epoch in epochs:
        rate = _rate(epoch, unit)
        if not math.isnan(rate):
            axes.plot([epoch.began, epoch.ended], [rate, rate], color=SECOND, linewidth=2.5, alpha=0.9, label=label)
            label = None
    for epoch in _labelled(epochs):
        axes.annotate(
            f"epoch {epoch.epoch + 1}",
            (epoch.began, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -12),
            textcoords="offset points",
            fontsize=8,
            color=NEUTRAL,
        )
    label = "between epochs (validation, callbacks)"
    for before, after in itertools.pairwise(epochs):
        axes.axvspan(before.ended, after.began, color=_BETWEEN_EPOCHS, label=label, linewidth=0.5)
        label = None


def _rate(epoch: EpochThroughput, unit: str) -> float:
    rate = epoch.samples_per_sec if unit == "samples" else epoch.batches_per_sec
    return math.nan if rate is None else rate


def _labelled(epochs: Sequence[EpochThroughput]) -> list[EpochThroughput]:
    """Return the epochs with room for a label: an eighth of the figure each."""
    labelled: list[EpochThroughput] = []
    for epoch in epochs:
        if not labelled or epoch.began - labelled[-1].began >= epochs[-1].ended / 8:
            labelled.append(epoch)
    return labelled


def _plot_rolling(axes: Any, records: Sequence[ThroughputRecord], unit: str) -> list[float]:
    """Plot the rolling rate, broken between epochs, and return its values."""
    of_unit = [one.batches_per_sec if unit == "batches" else one.samples_per_sec for one in records]
    known = [(one.epoch, one.seconds, rate) for one, rate in zip(records, of_unit, strict=True) if rate is not None]
    epochs, seconds, rates = map(list, zip(*known, strict=True))
    axes.plot(seconds, rates, color=FIRST, linewidth=0.8, alpha=0.25)
    breaks = np.flatnonzero(np.diff(epochs)) + 1
    x, y = (np.insert(values, breaks, math.nan) for values in (seconds, rates))
    marker = "." if len(rates) < _MANY_RECORDS else None
    axes.plot(x, y, color=FIRST, linewidth=1.4, marker=marker, label="rolling rate")
    return rates


def plot_input(verdicts: Sequence[tuple[int, InputVerdict]]) -> Figure:
    """Return a `matplotlib.figure.Figure` with the parts of each epoch's step time, and the rates of both sides."""
    if not verdicts:
        raise nothing_yet("bottleneck.plot()", needs=LONG_EPOCHS)
    figure = new_figure("HostBottleneck.plot()")
    left, right = figure.subplots(1, 2)
    whole = _over_epochs([verdict for _, verdict in verdicts])
    _plot_step_times(left, verdicts)
    set_legend(figure, left)
    _plot_rates(right, whole)
    title = f"{whole.verdict.capitalize()}: {whole.wait_fraction:.0%} of the time waits for data"
    if len(verdicts) > 1:
        fractions = [verdict.wait_fraction for _, verdict in verdicts]
        title += f", {min(fractions):.0%} to {max(fractions):.0%} in each of {len(verdicts)} epochs"
    set_title(figure, title)
    return figure


def _over_epochs(verdicts: Sequence[InputVerdict]) -> InputVerdict:
    """Return the verdict on all epochs together."""
    step = statistics.fmean(verdict.step_seconds for verdict in verdicts)
    waits = statistics.fmean(verdict.wait_fraction * verdict.step_seconds for verdict in verdicts)
    return dataclasses.replace(
        verdicts[-1],
        wait_fraction=waits / step,
        step_seconds=step,
        compute_seconds=statistics.fmean(verdict.compute_seconds for verdict in verdicts),
        callbacks_seconds=statistics.fmean(verdict.callbacks_seconds for verdict in verdicts),
    )


def _plot_step_times(axes: Any, verdicts: Sequence[tuple[int, InputVerdict]]) -> None:
    numbers = [epoch + 1 for epoch, _ in verdicts]
    bottom = np.zeros(len(numbers))
    for share, colour, label in _PARTS:
        heights = np.array([1e3 * verdict.shares[share] * verdict.step_seconds for _, verdict in verdicts])
        if heights.any():
            axes.bar(numbers, heights, bottom=bottom, color=colour, label=label, width=0.7)
        bottom += heights
    axes.set_xlim(min(numbers) - 1, max(numbers) + 1)
    every = math.ceil(len(numbers) / 10)
    axes.set_xticks(numbers[::every])
    axes.set(xlabel="epoch", ylabel="ms for a batch")
    axes.set_title("Where the time of a step goes", loc="left", fontsize=10)


def _plot_rates(axes: Any, verdict: InputVerdict) -> None:
    bars = [
        ("fit, as it is", 1 / verdict.step_seconds, NEUTRAL),
        ("step, on data\nthat is there", 1 / (verdict.step_seconds * (1 - verdict.wait_fraction)), FIRST),
    ]
    if verdict.pipeline_seconds:
        bars.append(("pipeline, alone", 1 / verdict.pipeline_seconds, SECOND))
    names, rates, colours = zip(*bars, strict=True)
    drawn = axes.barh(names, rates, color=colours, height=0.6)
    axes.bar_label(drawn, [f"{rate:,.4g}" for rate in rates], padding=4, fontsize=9)
    axes.set_xlim(right=_LABEL_ROOM * max(rates))
    axes.invert_yaxis()
    axes.set(xlabel="batches per second")
    axes.set_title(verdict.gain, loc="left", fontsize=10)


def plot_goodput(report: GoodputReport) -> Figure:
    """Return a `matplotlib.figure.Figure` with one bar of all buckets."""
    figure = new_figure("Goodput.plot()", size=(9, 2.6))
    axes = figure.subplots()
    left = 0.0
    colours = itertools.cycle(_OF_BUCKETS)
    for bucket, seconds in sorted(report.seconds.items(), key=lambda item: (item[0] != TRAINING, -item[1])):
        colour = FIRST if bucket == TRAINING else next(colours)
        part = seconds / report.wall_seconds if report.wall_seconds else 0.0
        axes.barh([0], [seconds], left=left, color=colour, label=f"{bucket} {part:.1%}")
        left += seconds
    axes.set_yticks([])
    axes.set(xlabel="seconds of fit")
    axes.set_xlim(0, left or 1)
    set_title(figure, f"Goodput {report.fraction:.0%} of {duration(report.wall_seconds)}")
    set_legend(figure, axes, columns=4)
    return figure


def plot_memory(
    records: Sequence[tuple[float, DeviceUse]], epoch_ends: Sequence[float], last: Sequence[DeviceUse]
) -> Figure:
    """Return a `matplotlib.figure.Figure` with the memory of the fullest device over time, and its limit."""
    figure = new_figure("DeviceMemory.plot()")
    axes = figure.subplots()
    seconds = [second for second, _ in records]
    axes.plot(seconds, [use.in_use for _, use in records], color=FIRST, marker=".", label="in use")
    peaks = [math.nan if use.peak is None else use.peak for _, use in records]
    axes.plot(seconds, peaks, color=SECOND, linestyle="--", label="peak")
    limits = [use.limit for use in last if use.limit is not None]
    if limits:
        axes.axhline(min(limits), color=LIMIT, label="limit")
    for number, second in enumerate(epoch_ends):
        axes.axvline(second, color=NEUTRAL, linewidth=0.5, label=None if number else "end of an epoch")
    axes.set_ylim(0, 1.15 * axes.dataLim.y1)
    axes.yaxis.set_major_formatter(lambda size, _: memory_size(size))
    axes.set(xlabel="seconds since the start of fit")
    fullest = records[-1][1]
    set_title(figure, f"Memory of {fullest.device}: {memory_size(fullest.in_use)} in use at the end")
    axes.set_title(fullest.counted, loc="left", fontsize=10)
    set_legend(figure, axes, columns=4)
    return figure
