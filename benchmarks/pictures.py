"""The pictures of README.md and the site, each measured or computed here; it writes docs/_static/*.svg.

    python benchmarks/pictures.py [distance] [batch] [epochs] [run] [preflight]

The page of a run is docs/_static/report.png, which `chromium` makes. `preflight` is drawn only if it is named:
it needs the TPU compiler.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import keras_tpu_ext as kte

FOLDER = Path(__file__).parents[1] / "docs/_static"
STOCK, OURS, TEXT, FAINT = "#d9822b", "#1f5fa8", "#333333", "#999999"
EPOCHS, BATCH = 12, 96


def main() -> None:
    """Draw those that were asked for, or all of them."""
    drawn = {"distance": draw_distance, "batch": draw_batch, "epochs": draw_epochs, "run": draw_run}
    for name in sys.argv[1:] or drawn:
        {**drawn, "preflight": draw_preflight}[name]()


def new_figure(width: float, height: float) -> Figure:
    """Return a figure on white, which dark pages need."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: Figure, name: str) -> None:
    """Write a figure; without a date, so that the same numbers make the same file."""
    figure.savefig(FOLDER / name, metadata={"Date": None}, facecolor="white")
    print(f"wrote docs/_static/{name}")


def draw_distance() -> None:
    """Draw how far a model trained on eight replicas is from the same model trained on one device."""
    data = load_digits()
    x, y = (data.images / 16).astype("float32")[..., None], data.target
    inexact, exact = (kte.strategy_scope(require="cpu", replicas=8, exact=value) for value in (False, True))
    one = build(x, y, contextlib.nullcontext(), EPOCHS)
    stock = build(x, y, inexact, EPOCHS, one[0])
    ours = build(x, y, exact, EPOCHS, one[0])
    # What rounding alone does: one device again, which adds the examples of each batch in another order.
    order = np.concatenate([np.arange(i, min(i + BATCH, len(x)))[::-1] for i in range(0, len(x), BATCH)])
    rounded = build(x[order], y[order], contextlib.nullcontext(), EPOCHS, one[0])
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    epochs = range(1, EPOCHS + 1)
    lines = (
        (rounded, FAINT, "rounding alone: one device, batches in reverse order", -18),
        (stock, STOCK, "stock tf.distribute on 8 replicas", -16),
        (ours, OURS, "in strategy_scope() on 8 replicas", 12),
    )
    for weights, color, label, above in lines:
        distances = [distance(a, b) for a, b in zip(weights[1:], one[1:], strict=True)]
        print(label, [f"{d:.1e}" for d in distances])
        width = 6 if color == FAINT else 2  # the wider one lies below
        axes.plot(epochs, distances, color=color, linewidth=width, marker="o", markersize=width + 2)
        axes.annotate(
            f"{label}: {distances[-1]:.0e}",
            (EPOCHS, distances[-1]),
            xytext=(0, above),
            textcoords="offset points",
            ha="right",
            color=color,
            weight="bold",
        )
    axes.set(yscale="log", ylim=(1e-8, 1), xlabel="epoch", xticks=[1, *range(2, EPOCHS + 1, 2)])
    axes.set_ylabel("distance from one device\n(relative, of all weights)")
    title = "8 replicas train as one device does, to rounding; stock tf.distribute does not"
    axes.set_title(title, loc="left", color=TEXT)
    style(axes)
    save(figure, "distance.svg")


def build(x, y, scope, epochs, start=None):
    """Return the weights before the first epoch and after each."""
    keras.utils.set_random_seed(0)
    with scope:
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(16, 3, activation="tanh"),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    if start is not None:
        model.set_weights(start)
    weights = [model.get_weights()]
    for _ in range(epochs):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    return weights


def distance(weights, reference) -> float:
    """Return |a - b| / |b| over all weights together."""
    a, b = (np.concatenate([array.ravel() for array in arrays]) for arrays in (weights, reference))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def draw_batch() -> None:
    """Draw how eight replicas share a batch of 100 examples, and what an example then counts."""
    sizes = [13] * 7 + [9]
    figure = new_figure(7.2, 3.0)
    axes = figure.subplots()
    left = 0
    for number, size in enumerate(sizes):
        color = OURS if number < 7 else STOCK
        axes.barh(1, size, left=left, color=color, edgecolor="white", height=0.7)
        axes.text(left + size / 2, 1, f"{size}", ha="center", va="center", color="white", weight="bold")
        axes.text(left + size / 2, 0.45, f"replica {number}", ha="center", va="center", color=TEXT, fontsize=8)
        left += size
    axes.text(0, 1.6, "one batch of 100 examples over 8 replicas", color=TEXT, fontsize=11)
    stock = f"stock: the mean of 8 means. An example of replica 7 counts 1/{8 * 9}, all others 1/{8 * 13}"
    ours = "in strategy_scope(): the sum of all, by 100. Each example counts 1/100, as on one device"
    axes.text(0, -0.1, stock, color=STOCK, fontsize=10)
    axes.text(0, -0.55, ours, color=OURS, fontsize=10)
    axes.set(xlim=(0, 100), ylim=(-0.85, 1.9))
    axes.axis("off")
    save(figure, "batch.svg")


class SlowBatches(keras.utils.PyDataset):
    """Batches that each take 6 ms to make."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int):
        time.sleep(0.006)
        return np.ones((32, 64), "float32"), np.ones((32, 1), "float32")


def draw_epochs() -> None:
    """Draw where the time of six epochs on slow batches goes, as the callbacks do it."""
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(512), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    throughput, bottleneck = kte.callbacks.Throughput(), kte.callbacks.HostBottleneck()
    batches = SlowBatches()
    model.fit(batches, epochs=6, verbose=0, callbacks=[throughput, bottleneck], validation_data=batches)
    save(throughput.plot(), "throughput.svg")
    save(bottleneck.plot(), "bottleneck.svg")


class LastView:
    """Where `LiveView` shows its table here; what it shows at the ends of epochs is left out."""

    def __init__(self) -> None:
        self.views = []

    def show(self, view, *, epoch_ended: bool) -> None:
        """Keep a view."""
        self.views += [] if epoch_ended else [view]

    def close(self) -> None:
        """Do nothing."""


def draw_run() -> None:
    """Draw the table of a running fit as rich draws it in a terminal, and the page of the same fit."""
    from rich.console import Console

    from keras_tpu_ext.callbacks import _live_table, live_view

    shown = LastView()
    live_view.screen = lambda: shown
    data = load_digits()
    x, y = (
        np.concatenate([part] * 20) for part in ((data.images / 16).astype("float32").reshape(-1, 64), data.target)
    )
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    with tempfile.TemporaryDirectory() as folder:
        log, bottleneck = kte.callbacks.RunLog(folder), kte.callbacks.HostBottleneck(verbose=False)
        found = [kte.callbacks.Throughput(), bottleneck, kte.callbacks.Goodput(), log, kte.callbacks.LiveView()]
        model.fit(x, y, batch_size=32, epochs=5, verbose=0, validation_data=(x, y), callbacks=found)
        page = Path(folder, "report.html")
        page.write_text(log.report().page(), encoding="utf-8")
        console = Console(record=True, width=88, file=io.StringIO())
        console.print(_live_table.rich_table(shown.views[-1]))
        console.save_svg(str(FOLDER / "live.svg"), title="LiveView", unique_id="live")
        print("wrote docs/_static/live.svg")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=760,1000"]
        screenshot = f"--screenshot={FOLDER / 'report.png'}"
        subprocess.run(["chromium", *options, screenshot, page.as_uri()], check=True, capture_output=True)
        print("wrote docs/_static/report.png")


def draw_preflight() -> None:
    """Draw the report on ResNet-50 in float32 for a v5e-8, as docs/tools/preflight.md asks for it."""
    model = keras.applications.ResNet50(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    batch = np.zeros((1024, 224, 224, 3), "float32"), np.zeros(1024, "int32")
    report = kte.preflight(model, batch, target="v5e-8", timeout_s=3_600)
    print(report)
    save(report.plot(), "preflight.svg")


def style(axes) -> None:
    """Give axes the look that all have."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=TEXT)
    axes.grid(axis="y", color="#eeeeee")


if __name__ == "__main__":
    main()
