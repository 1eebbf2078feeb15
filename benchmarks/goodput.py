"""Whether `Goodput` charges what really happened, where sleeps say what did.

    python benchmarks/goodput.py [--steps 60] [--epochs 3]
    KERAS_BACKEND=jax python benchmarks/goodput.py

Each row is a `fit` in which one thing sleeps, and takes down for how long it really slept: the data, a callback after
each batch, a callback after each epoch, validation, a checkpoint. "compile again" has a batch of another shape in its
second epoch; its truth is what that `fit` takes beyond one in which both shapes have been compiled before. The row
says what the bucket has beside the truth, how far the sum of all buckets is from the time of `fit` taken from
outside, and which callback the verdict of `HostBottleneck` names. The last line is JSON.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext._runtime import PyDataset, keras

ROWS, FEATURES = 64, 64
SLEEP = 0.02


class Slept:
    """Sleeps, and knows for how long."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, seconds: float) -> None:
        """Sleep."""
        began = time.perf_counter()
        time.sleep(seconds)
        self.seconds += time.perf_counter() - began


class Data(PyDataset):
    """Batches that are slow to make, or of which some have fewer rows.

    Args:
        steps: Number of batches.
        sleep: Called for each, or `None`.
        rows: Rows of a batch, by its index.
    """

    def __init__(self, steps: int, sleep: Slept | None = None, rows: Callable[[int], int] = lambda _: ROWS) -> None:
        super().__init__()
        self.steps, self.sleep, self.rows = steps, sleep, rows

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.sleep is not None:
            self.sleep(SLEEP)
        rows = self.rows(index)
        return np.ones((rows, FEATURES), "float32"), np.ones((rows, 1), "float32")


class SlowAfterBatches(keras.callbacks.Callback):
    """Sleeps after each batch."""

    def __init__(self, sleep: Slept, seconds: float = SLEEP) -> None:
        super().__init__()
        self.sleep, self.seconds = sleep, seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sleep."""
        self.sleep(self.seconds)


class SlowAfterEpochs(keras.callbacks.Callback):
    """Sleeps after each epoch."""

    def __init__(self, sleep: Slept) -> None:
        super().__init__()
        self.sleep = sleep

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Sleep."""
        self.sleep(25 * SLEEP)


class SlowCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves, slowly, and takes the time of all of it."""

    def __init__(self, sleep: Slept, path: str) -> None:
        super().__init__(path)
        self.slept = sleep

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save."""
        began = time.perf_counter()
        super().on_epoch_end(epoch, logs)
        time.sleep(25 * SLEEP)
        self.slept.seconds += time.perf_counter() - began


def compiled(scoped: bool) -> Any:
    """Return a perceptron."""
    with kte.strategy_scope(require="cpu") if scoped else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def row(name: str, steps: int, epochs: int, scoped: bool) -> dict[str, Any]:
    """Return what a `fit` with one slow thing gave."""
    sleep, folder = Slept(), tempfile.mkdtemp()
    path = str(Path(folder) / "model.keras")
    data, callbacks, options, bucket = Data(steps), [], {}, ""
    if name == "data":
        data, bucket = Data(steps, sleep), "input"
    elif name in ("a callback after batches", "0.1 s after batches"):
        seconds = SLEEP if name.startswith("a") else 0.1
        callbacks, bucket = [SlowAfterBatches(sleep, seconds)], "callbacks/SlowAfterBatches"
    elif name == "a callback after epochs":
        callbacks, bucket = [SlowAfterEpochs(sleep)], "callbacks/SlowAfterEpochs"
    elif name == "a checkpoint":
        callbacks, bucket = [SlowCheckpoint(sleep, path)], "checkpoint"
    model = compiled(scoped)
    goodput, bottleneck = kte.callbacks.Goodput(), kte.callbacks.HostBottleneck(verbose=False)
    if name == "validation":  # all of it, from outside
        evaluate = model.evaluate

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = evaluate(*args, **kwargs)
            sleep.seconds += time.perf_counter() - began
            return result

        model.evaluate = timed
        options, bucket = {"validation_data": Data(20, Slept())}, "validation"
    model.fit(data, epochs=1, verbose=0, **options)  # compiles
    sleep.seconds = 0.0
    wall = harness.timed(
        model.fit, data, epochs=epochs, verbose=0, callbacks=[*callbacks, goodput, bottleneck], **options
    )
    report, verdict = goodput.report(), bottleneck.verdict
    seen = report.seconds.get(bucket, 0.0)
    if name == "data":  # less what data wait for that do not sleep
        awake = kte.callbacks.Goodput()
        watching = [awake, kte.callbacks.HostBottleneck(verbose=False)]
        model.fit(Data(steps), epochs=epochs, verbose=0, callbacks=watching)
        seen -= awake.report().seconds.get(bucket, 0.0)
    return {
        "what": name,
        "bucket": bucket,
        "truth": sleep.seconds,
        "seen": seen,
        "wall": wall,
        "sum": sum(report.seconds.values()),
        "named": verdict.costliest_callback if verdict and verdict.shares["callbacks"] >= 0.05 else "",
        "shares": verdict.shares if verdict else {},
    }


def compile_again(steps: int, epochs: int) -> dict[str, Any]:
    """Return what a `fit` with a batch of another shape gave; a plain model, since a scope pads."""
    model, walls = compiled(False), []
    short = Data(steps, rows=lambda index: ROWS - 23 if index == steps // 2 else ROWS)
    model.fit(Data(steps), epochs=1, verbose=0)
    for _ in range(2):
        goodput = kte.callbacks.Goodput()
        walls.append(harness.timed(model.fit, short, epochs=epochs, verbose=0, callbacks=[goodput]))
        if len(walls) == 1:
            report = goodput.report()
    return {
        "what": "another shape",
        "bucket": "compile",
        "truth": walls[0] - walls[1],
        "seen": report.seconds.get("compile", 0.0),
        "wall": walls[0],
        "sum": sum(report.seconds.values()),
        "named": "",
        "shares": {},
    }


NAMES = (
    "data",
    "a callback after batches",
    "0.1 s after batches",
    "a callback after epochs",
    "validation",
    "a checkpoint",
)


def main() -> None:
    """Print a line for each row, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--steps", type=int, default=60, help="steps of an epoch (default 60)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs (default 3)")
    options = parser.parse_args()
    rows = []
    for scoped in (True, False):
        for name in NAMES:
            rows.append({"scope": scoped, **row(name, options.steps, options.epochs, scoped)})
    rows.append({"scope": False, **compile_again(options.steps, options.epochs)})
    for one in rows:
        off, gap = one["seen"] / one["truth"] - 1, one["sum"] / one["wall"] - 1
        of = f"{'scope' if one['scope'] else 'plain':6s} {one['what']:26s} {one['bucket']:28s}"
        print(
            f"{of} took {one['truth']:6.3f} s, charged {one['seen']:6.3f} s ({off:+.1%}); sum {gap:+.2%} of fit; "
            f"names {one['named'] or '-'}"
        )
    harness.report("goodput", rows=rows)


if __name__ == "__main__":
    main()
