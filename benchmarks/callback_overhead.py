"""What callbacks cost a `fit` with steps of about 1 ms, beside a `fit` without any.

    make .envs/peers/.ready                    # Keras's TensorBoard callback needs tensorboard; TimeHistory
    PYTHONPATH=.envs/peers python benchmarks/callback_overhead.py [--blocks 600] [--rounds 11] [--steps 1500]
        [--against PATH]
    PYTHONPATH=.envs/peers KERAS_BACKEND=jax python benchmarks/callback_overhead.py

One model trains on data that is in memory: without callbacks, with each of ours, with all, with Keras's own
TensorBoard callback (its defaults, and with a scalar every 20 batches) and with the TensorFlow Model Garden's
TimeHistory (every 20 steps). It is measured in two ways.

Steps: in one `fit` the callbacks take part in every other block of 50 steps and not in those between, where only the
hooks of Keras's own `History` are called and no execution is intercepted. Each block with them is compared with the
mean of the two around it. A shared machine is not the same for a second, but nearly so for 150 ms. Printed is the
median of these ratios with its 95 % confidence interval (of the bootstrap); "nothing" is such a `fit` without
callbacks.

Fits: all of `fit` in turns, with what callbacks do at its begin and end and for a probe; the median of the ratios to
the turn without, with their quartiles. "nothing" is a turn without against another one.

With `--against`, the callbacks of this checkout are compared with those of another one, each in a process of its own:
in turns, by the median of the blocks of a `fit`. Below 1.00, these cost less. The last line is JSON.

TimeHistory is the class as published (tf-models-official, whose other parts are not needed); what it calls `tf_keras`
is the Keras of this run.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext._runtime import keras

BATCH, FEATURES = 64, 64
WIDTHS = (64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704)
AIM = 1e-3  # seconds of a step
BLOCK = 50  # steps that are timed together
BEFORE = 200  # steps before the first block
PARTS = 6  # in which each set of callbacks has its blocks


@functools.lru_cache(maxsize=1)
def compiled(width: int) -> Any:
    """Return a perceptron of three layers."""
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


@functools.lru_cache(maxsize=1)
def dataset(steps: int) -> dict[str, Any]:
    """Return `steps` batches as arguments of `fit`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * BATCH, FEATURES)).astype("float32")
    return harness.in_memory(x, rng.integers(0, 10, steps * BATCH).astype("int32"), batch_size=BATCH)


def width_of_about_the_aim() -> int:
    """Return the width whose step takes most nearly `AIM`."""
    found = []
    for width in WIDTHS:
        took = min(seconds_of_fit(width, "none", 400, 1) for _ in range(3)) / 400
        found.append((abs(np.log(took / AIM)), width))
        if took > 1.3 * AIM:
            break
    return min(found)[1]


@functools.cache
def time_history() -> Any:
    """Return the Model Garden's TimeHistory, or `None` where it is not installed."""
    spec = importlib.util.find_spec("official")
    if spec is None or not spec.submodule_search_locations:
        return None
    sys.modules.setdefault("tf_keras", keras)
    path = os.path.join(spec.submodule_search_locations[0], "utils", "misc", "keras_utils.py")
    file = importlib.util.spec_from_file_location("model_garden_keras_utils", path)
    module = importlib.util.module_from_spec(file)
    file.loader.exec_module(module)
    return module.TimeHistory


def variants(folder: str = "") -> dict[str, Callable[[], list[Any]]]:
    """Return how to make the callbacks of each turn, which write into a folder."""

    def made(*names: str) -> list[Any]:
        return [one for name in names for one in found[name]()]

    found: dict[str, Callable[[], list[Any]]] = {
        "none": list,
        "nothing": list,
        "Throughput": lambda: [kte.callbacks.Throughput()],
        "HostBottleneck": lambda: [kte.callbacks.HostBottleneck(verbose=False)],
        "Recompilations": lambda: [kte.callbacks.Recompilations()],
        "Goodput": lambda: [kte.callbacks.Goodput()],
        "DeviceMemory": lambda: [kte.callbacks.DeviceMemory()],
        "Watch": lambda: [kte.callbacks.Watch()],
        "Throughput, HostBottleneck and Goodput": lambda: made("Throughput", "HostBottleneck", "Goodput"),
        "all six": lambda: made("Throughput", "HostBottleneck", "Goodput", "Recompilations", "DeviceMemory", "Watch"),
    }
    if importlib.util.find_spec("tensorboard"):
        found["peer: Keras's TensorBoard"] = lambda: [keras.callbacks.TensorBoard(folder)]
        often = functools.partial(keras.callbacks.TensorBoard, folder, update_freq=20)
        found["peer: Keras's TensorBoard, update_freq=20"] = lambda: [often()]
    if (kind := time_history()) is not None:
        found["peer: Model Garden's TimeHistory"] = lambda: [kind(BATCH, 20)]
    return found


class Blocks(keras.callbacks.CallbackList):
    """Times blocks of steps, and lets the callbacks but for Keras's `History` take part in every other one only."""

    begins: list[float]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a block where it is time to."""
        if batch % BLOCK == 0 and batch >= BEFORE:  # a probe is over by then
            self.begins.append(time.perf_counter())
            self._take_part(len(self.begins) % 2 == 0)
        super().on_train_batch_begin(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Let the callbacks take part in what follows."""
        self._take_part(True)
        super().on_epoch_end(epoch, logs)

    def watch(self, callbacks: list[Any]) -> None:
        """Find what intercepts executions for these callbacks; `on_train_batch_begin` makes it go on."""
        self._all = self.callbacks
        ledgers = {id(ledger): ledger for one in callbacks if (ledger := getattr(one, "_ledger", None)) is not None}
        self._intercepting = [ledger._interception for ledger in ledgers.values()]
        steps = [one._steps["train"] for one in callbacks if isinstance(one, kte.callbacks.Recompilations)]
        self._intercepting += [step.interception for step in steps]

    def _take_part(self, does: bool) -> None:
        self.callbacks = self._all if does else [self._history]
        for one in [] if does else self._intercepting:
            one.undo()


class Found(keras.callbacks.Callback):
    """Tells `Blocks` what intercepts executions, once all callbacks have begun."""

    async_safe = True

    def __init__(self, callbacks: list[Any]) -> None:
        super().__init__()
        self.callbacks = callbacks
        self.blocks: Blocks | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tell it."""
        self.blocks.watch(self.callbacks)


def seconds_of_fit(width: int, name: str, steps: int, epochs: int) -> float:
    """Return the seconds that all of `fit` takes with a set of callbacks."""
    model, data = compiled(width), dataset(steps)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = variants(folder)[name]()
        return harness.timed(model.fit, **data, epochs=epochs, verbose=0, callbacks=callbacks)


def ratios_of_blocks(width: int, name: str, blocks: int) -> list[float]:
    """Return the time of each block with the callbacks, by the mean of the blocks before and after it."""
    model, data = compiled(width), dataset(BEFORE + BLOCK * (blocks // PARTS + 1))
    with tempfile.TemporaryDirectory() as folder:
        callbacks = variants(folder)[name]()
        found = Found(callbacks)
        params = {"verbose": 0, "epochs": 1, "steps": BEFORE + BLOCK * (blocks // PARTS + 1)}
        timer = found.blocks = Blocks([found, *callbacks], add_history=True, model=model, **params)
        timer.begins = []
        model.fit(**data, verbose=0, callbacks=timer)
    took = np.diff(timer.begins)
    return [float(2 * took[i] / (took[i - 1] + took[i + 1])) for i in range(1, len(took) - 1, 2)]


def median_of_blocks(width: int, name: str, blocks: int) -> float:
    """Return the median of the ratios of blocks."""
    return float(np.median(ratios_of_blocks(width, name, blocks)))


def of_steps(width: int, names: list[str], blocks: int) -> dict[str, Any]:
    """Print and return what each set of callbacks costs a step."""
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for part in range(PARTS):
        for name, found in ratios.items():
            found += ratios_of_blocks(width, name, blocks)
        print(f"steps: {part + 1} of {PARTS} parts", file=sys.stderr, flush=True)
    print("Steps: with callbacks, by those around without; pairs of blocks")
    rows = {name: harness.summarize(found) for name, found in ratios.items()}
    for name, row in rows.items():
        print(f"  {name:42s} {harness.in_words(row)}")
    return rows


def of_fits(width: int, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Print and return what each set of callbacks costs a fit."""
    runs = {name: functools.partial(seconds_of_fit, width, name, options.steps, options.epochs) for name in names}
    times = harness.interleave(runs, options.rounds)
    print(f"Fits of {options.epochs} x {options.steps} steps: by one without")
    rows = {}
    for name, took in times.items():
        ratios = [one / none for one, none in zip(took, times["none"], strict=True)]
        milliseconds = float(1000 * np.median(took) / (options.steps * options.epochs))
        rows[name] = row = {**harness.summarize(ratios), "ms_per_step": milliseconds, "ratios": ratios}
        low, high = row["quartiles"]
        print(f"  {name:42s} {harness.in_words(row)}, quartiles {low:.3f} to {high:.3f}, {milliseconds:.4f} ms/step")
    return rows


def of_checkouts(width: int, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Print and return what each set of callbacks costs a step, by what it costs with another checkout."""
    rows = {}
    with harness.workers(options.against) as workers:
        for name in names:
            turns = [functools.partial(worker, median_of_blocks, width, name, options.blocks) for worker in workers]
            rows[name] = row = harness.paired(*turns, pairs=options.rounds)
            row["cost"], row["old_cost"] = row.pop("a_s"), row.pop("b_s")
            print(f"  {name:42s} {row['cost']:.4f}, old {row['old_cost']:.4f}, {harness.in_words(row)}", flush=True)
    return rows


def main() -> None:
    """Print a line for each set of callbacks, then JSON."""
    parser = harness.parser(__doc__, against=True)
    parser.add_argument("--blocks", type=int, default=600, help="blocks of 50 steps of each (default 600)")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each (default 11)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of an epoch of a turn (default 1500)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of a turn (default 2)")
    parser.add_argument("--only", nargs="*", help="of these sets of callbacks only")
    options = parser.parse_args()
    width = width_of_about_the_aim()
    names = ["none", *options.only] if options.only else list(variants())
    found: dict[str, Any] = {"width": width}
    if options.against:
        ours = [name for name in names[1:] if not name.startswith("peer")]
        found["checkouts"] = of_checkouts(width, ours, options)
    else:
        found |= {"steps_of_epoch": options.steps, "epochs": options.epochs}
        found["steps"] = of_steps(width, names[1:], options.blocks)
        found["fits"] = of_fits(width, names, options)
    harness.report("callback_overhead", against=options.against, **found)


if __name__ == "__main__":
    main()
