"""What the examples show: a line for each epoch, a table at the end, and a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

BLUE, ORANGE, GREEN, RED, GREY = "#1f5fa8", "#d9822b", "#2e8b57", "#c0222b", "#777777"
RATE = "throughput/samples_per_sec"


class EpochLines(keras.callbacks.Callback):
    """Prints one short line for each of `some_epochs`, which reads well in a terminal and in a log.

    Args:
        shown: What stands before each value, by its name in `logs`.
        epochs: Number of epochs.
    """

    async_safe = True

    def __init__(self, shown: Mapping[str, str], *, epochs: int) -> None:
        super().__init__()
        self.shown = dict(shown)
        self.epochs = epochs

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the line."""
        if epoch + 1 not in some_epochs(self.epochs):
            return
        logs = logs or {}
        values = [f"{label} {logs[name]:.3f}" for name, label in self.shown.items() if name in logs]
        rate = logs.get(RATE)
        if rate is not None and np.isfinite(rate):
            values.append(f"{rate:,.0f} samples/s")
        print(f"epoch {epoch + 1:>2}/{self.epochs}   " + "   ".join(values), flush=True)


def some_epochs(epochs: int) -> list[int]:
    """Return about a dozen evenly spaced epochs, counted from 1, with the last among them."""
    step = math.ceil(epochs / 12)
    return sorted({*range(step, epochs + 1, step), epochs})


def samples_per_second(history: Mapping[str, Sequence[float]]) -> float:
    """Return the median over the epochs, without those in which nothing was measured; NaN if that is all."""
    rates = [rate for rate in history.get(RATE, ()) if np.isfinite(rate)]
    return statistics.median(rates) if rates else float("nan")


def print_table(title: str, rows: Mapping[str, str]) -> None:
    """Print names and values in two aligned columns."""
    wide = max(map(len, rows))
    print(f"\n{title}\n{'-' * len(title)}")
    for name, value in rows.items():
        print(f"{name:<{wide}}   {value}")


def new_picture(title: str, where: str) -> tuple[Figure, Any, Any]:
    """Return an empty figure of 1200 by 700 pixels with a headline, and its left and right part."""
    figure = Figure(figsize=(12, 7), dpi=100, layout="constrained")
    head, body = figure.subfigures(2, 1, height_ratios=(1, 11))
    head.text(0.012, 0.62, title, fontsize=15, fontweight="bold", va="center")
    head.text(0.012, 0.14, where, fontsize=10.5, color=GREY, va="center")
    left, right = body.subfigures(1, 2, width_ratios=(1.25, 1))
    return figure, left, right


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write the picture into `folder`, which is made if need be, and return where it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / name)
    except OSError as error:
        raise SystemExit(f"The picture could not be written ({error}). Write: --output DIR") from None
    return folder / name


def draw_curves(
    axes: Any,
    history: Mapping[str, Sequence[float]],
    shown: Mapping[str, tuple[str, str]],
    *,
    levels: Mapping[str, float] | None = None,
    what: str = "accuracy",
    legend: str = "lower right",
) -> None:
    """Draw accuracies, or other values, over the epochs.

    Args:
        axes: Where to draw.
        history: Values by name. What has fewer of them than the others was looked at in `some_epochs`.
        shown: Which of them, each with its label and colour.
        levels: Dotted lines to compare with, each by its label; one without a label belongs to the one before.
        what: What the values are, for people to read.
        legend: Where there is room for the labels.
    """
    epochs = max(len(history[name]) for name in shown)
    for name, (label, colour) in shown.items():
        at = range(1, epochs + 1) if len(history[name]) == epochs else some_epochs(epochs)
        axes.plot(at, history[name], color=colour, linewidth=2, marker="o", markersize=3.5, label=label)
    for label, value in (levels or {}).items():
        axes.axhline(value, color=RED, linestyle=":", linewidth=1.8, label=label)
    axes.legend(loc=legend, fontsize=9, framealpha=0.9, edgecolor="none")
    _tidy(axes, what)


def draw_throughput(axes: Any, history: Mapping[str, Sequence[float]]) -> None:
    """Draw the samples per second of each epoch as bars, and their median as a line."""
    rates = np.asarray(history.get(RATE, ()), dtype=float)
    epochs = np.arange(1, len(rates) + 1)
    measured = np.isfinite(rates)
    axes.bar(epochs[measured], rates[measured], color=BLUE, alpha=0.75, width=0.7)
    median = samples_per_second(history)
    if np.isfinite(median):
        axes.axhline(median, color=ORANGE, linewidth=1.5, label=f"median {median:,.0f} samples/s")
        axes.legend(loc="lower right", fontsize=9, framealpha=0.9)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(0.4, max(len(rates), 1) + 0.6)
    _tidy(axes, "samples per second")


def draw_examples(figure: Any, data: Any, predicted: np.ndarray, *, rows: int = 4, columns: int = 6) -> None:
    """Draw test images with what the model takes them for: up to a quarter of them errors, in red."""
    images, truth = data.test
    wrong, right = np.flatnonzero(predicted != truth), np.flatnonzero(predicted == truth)
    random = np.random.default_rng(0)
    errors = random.permutation(wrong)[: rows * columns // 4]
    others = random.permutation(right)[: rows * columns - len(errors)]
    chosen = random.permutation(np.concatenate([errors, others]))
    figure.suptitle(
        f"Answers on test images; {len(errors)} of the {len(wrong)} wrong ones in red (truth in brackets)"
    )
    for axes, index in zip(figure.subplots(rows, columns).flat, chosen, strict=False):
        is_wrong = predicted[index] != truth[index]
        text = data.labels[predicted[index]] + (f" ({data.labels[truth[index]]})" if is_wrong else "")
        axes.set_title(text, fontsize=9, color=RED if is_wrong else "black", pad=3)
        axes.imshow(images[index, :, :, 0], cmap="gray_r")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=RED if is_wrong else "#bbbbbb", linewidth=2.5 if is_wrong else 0.8)


def draw_images(figure: Any, images: np.ndarray, title: str, rows: int, columns: int) -> None:
    """Draw the first grey images in rows, each with its own darkest and lightest value."""
    figure.suptitle(title, fontsize=11)
    for axes, image in zip(figure.subplots(rows, columns, squeeze=False).flat, images, strict=False):
        axes.imshow(image[:, :, 0], cmap="gray_r")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="#bbbbbb", linewidth=0.8)


def draw_classes(axes: Any, data: Any, predicted: np.ndarray, *, most: int) -> None:
    """Draw the share of right answers for each of the `most` frequent classes, and what the rest is taken for."""
    truth = data.test[1]
    counts = np.bincount(truth, minlength=len(data.labels))
    classes = np.argsort(-counts, kind="stable")[:most]
    shares = [np.mean(predicted[truth == label] == label) for label in classes]
    axes.barh(range(len(classes)), shares, color=BLUE, alpha=0.75)
    for place, (label, share) in enumerate(zip(classes, shares, strict=True)):
        mistakes = np.bincount(predicted[(truth == label) & (predicted != label)], minlength=len(data.labels))
        text = f"{share:.0%}" + (f", else mostly {data.labels[mistakes.argmax()]}" if mistakes.any() else "")
        inside = share > 0.6
        axes.text(
            share + (-0.01 if inside else 0.01),
            place,
            text,
            ha="right" if inside else "left",
            va="center",
            fontsize=8.5,
            color="white" if inside else "black",
        )
    axes.set_yticks(range(len(classes)), [f"{data.labels[label]} ({counts[label]})" for label in classes], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title(
        f"Right answers after the last epoch, for the {most} most frequent classes (of how many)", fontsize=11
    )
    axes.spines[["top", "right"]].set_visible(False)


def _tidy(axes: Any, what: str) -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel(what)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
