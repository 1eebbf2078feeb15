"""What callbacks cost a `fit` with steps of about 1 ms, beside a `fit` without any.

    make .envs/peers/.ready                    # Keras's TensorBoard callback needs tensorboard; TimeHistory
    PYTHONPATH=.envs/peers python benchmarks/callback_overhead.py [--blocks 600] [--rounds 11] [--steps 1500]
    PYTHONPATH=.envs/peers KERAS_BACKEND=jax python benchmarks/callback_overhead.py

One model trains on data that is in memory: without callbacks, with each of ours, with both, with Keras's own
TensorBoard callback (its defaults, and with a scalar every 20 batches) and with the TensorFlow Model Garden's
TimeHistory (every 20 steps). It is measured in two ways.

Steps: in one `fit` the callbacks are called in every other block of 50 steps and not in those between, and each block
with them is compared with the mean of the two around it. A shared machine is not the same for a second, but nearly so
for 150 ms. Printed is the median of these ratios with its 95 % confidence interval (of order statistics, so of no
assumption); "nothing" is such a `fit` without callbacks.

Fits: all of `fit` in turns, with what callbacks do at its begin and end and for a probe; the median of the ratios to
the turn without, with their quartiles. "nothing" is a turn without against another one. The last line is JSON.

TimeHistory is the class as published (tf-models-official, whose other parts are not needed); what it calls `tf_keras`
is the Keras of this run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext._runtime import keras
from keras_tpu_ext._runtime.common.select import chosen

BATCH, FEATURES = 64, 64
WIDTHS = (64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704)
AIM = 1e-3  # seconds of a step
BLOCK = 50  # steps that are timed together
BEFORE = 200  # steps before the first block


def compiled(width: int) -> Any:
    """Return a perceptron of three layers."""
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def dataset(steps: int) -> dict[str, Any]:
    """Return `steps` batches as arguments of `fit`, ready to be taken quickly."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * BATCH, FEATURES)).astype("float32")
    y = rng.integers(0, 10, steps * BATCH).astype("int32")
    if chosen() == "keras3_jax":
        return {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # at the end of a pipeline its thread may take half a second, in any turn
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)
    return {"x": batches.cache().prefetch(2).with_options(options)}


def seconds_of_fit(model: Any, data: dict[str, Any], epochs: int, callbacks: list[Any]) -> float:
    """Return the seconds that all of `fit` takes."""
    begun = time.perf_counter()
    model.fit(**data, epochs=epochs, verbose=0, callbacks=callbacks)
    return time.perf_counter() - begun


def model_of_about_the_aim() -> Any:
    """Return the model whose step takes most nearly `AIM`."""
    found = []
    data = dataset(400)
    for width in WIDTHS:
        model = compiled(width)
        seconds_of_fit(model, data, 1, [])
        took = min(seconds_of_fit(model, data, 1, []) for _ in range(2)) / 400
        found.append((abs(np.log(took / AIM)), width, model))
        if took > 1.3 * AIM:
            break
    return min(found, key=lambda one: one[0])[2]


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


def variants(folder: str) -> dict[str, Callable[[], list[Any]]]:
    """Return how to make the callbacks of each turn."""
    found: dict[str, Callable[[], list[Any]]] = {
        "none": list,
        "nothing": list,
        "Throughput": lambda: [kte.callbacks.Throughput()],
        "HostBottleneck": lambda: [kte.callbacks.HostBottleneck(verbose=False)],
        "Throughput and HostBottleneck": lambda: [
            kte.callbacks.Throughput(),
            kte.callbacks.HostBottleneck(verbose=False),
        ],
    }
    if importlib.util.find_spec("tensorboard"):
        found["peer: Keras's TensorBoard"] = lambda: [keras.callbacks.TensorBoard(folder)]
        found["peer: Keras's TensorBoard, update_freq=20"] = lambda: [
            keras.callbacks.TensorBoard(folder, update_freq=20)
        ]
    if (kind := time_history()) is not None:
        found["peer: Model Garden's TimeHistory"] = lambda: [kind(BATCH, 20)]
    return found


class Blocks(keras.callbacks.Callback):
    """Times blocks of steps, and lets other callbacks have the hooks of batches in every other one only."""

    async_safe = True  # or Keras on JAX waits for each step

    def __init__(self, others: list[Any]) -> None:
        super().__init__()
        self.begins: list[float] = []
        self._others_take_part = True
        for one in others:
            for name in ("on_train_batch_begin", "on_train_batch_end"):
                if getattr(type(one), name) is not getattr(keras.callbacks.Callback, name):
                    setattr(one, name, self._in_their_blocks(getattr(one, name)))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a block where it is time to."""
        if batch % BLOCK == 0 and batch >= BEFORE:  # a probe is over by then
            self.begins.append(time.perf_counter())
            self._others_take_part = len(self.begins) % 2 == 0

    def _in_their_blocks(self, hook: Callable[..., None]) -> Callable[..., None]:
        def passed_on(batch: int, logs: Any = None) -> None:
            if self._others_take_part:
                hook(batch, logs)

        return passed_on


def ratios_of_blocks(model: Any, data: dict[str, Any], callbacks: list[Any]) -> list[float]:
    """Return the time of each block with the callbacks, by the mean of the blocks before and after it."""
    blocks = Blocks(callbacks)
    model.fit(**data, verbose=0, callbacks=[blocks, *callbacks])
    took = np.diff(blocks.begins)
    return [float(2 * took[i] / (took[i - 1] + took[i + 1])) for i in range(1, len(took) - 1, 2)]


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of a median, from order statistics."""
    ordered, reach = sorted(values), 0.98 * len(values) ** 0.5
    low, high = round(len(values) / 2 - reach), round(len(values) / 2 + reach)
    return ordered[max(low, 0)], ordered[min(high, len(values) - 1)]


def main() -> None:
    """Print a line for each set of callbacks, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=600, help="blocks of 50 steps of each (default 600)")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each (default 11)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of an epoch of a turn (default 1500)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of a turn (default 2)")
    options = parser.parse_args()
    model = model_of_about_the_aim()
    with tempfile.TemporaryDirectory() as folder:
        kinds = variants(folder)
        rows = {"steps": of_steps(model, kinds, options.blocks), "fits": of_fits(model, kinds, options)}
    about = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "runtime": chosen(),
        "width": model.layers[0].units,
        "steps": options.steps,
        "epochs": options.epochs,
    }
    print(json.dumps({"benchmark": "callback_overhead", **about, **rows}))


def of_steps(model: Any, kinds: dict[str, Callable[[], list[Any]]], blocks: int) -> dict[str, Any]:
    """Print and return what each set of callbacks costs a step."""
    parts = 6
    data = dataset(BEFORE + BLOCK * (blocks // parts + 1))
    ratios: dict[str, list[float]] = {name: [] for name in kinds if name != "none"}
    for part in range(parts):
        for name, found in ratios.items():
            found += ratios_of_blocks(model, data, kinds[name]())
        print(f"steps: {part + 1} of {parts} parts", file=sys.stderr, flush=True)
    print(f"Steps: with callbacks, by those around without; 95 % interval of the median of {blocks // 2} blocks")
    rows = {}
    for name, found in ratios.items():
        low, high = interval_of_median(found)
        rows[name] = {"ratio": statistics.median(found), "interval": [low, high], "blocks": len(found)}
        print(f"  {name:42s} {rows[name]['ratio']:.4f} ({low:.4f} to {high:.4f})")
    return rows


def of_fits(model: Any, kinds: dict[str, Callable[[], list[Any]]], options: argparse.Namespace) -> dict[str, Any]:
    """Print and return what each set of callbacks costs a fit."""
    data = dataset(options.steps)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    names = list(kinds)
    for turn in range(-1, options.rounds):  # the first is to warm up
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            took = seconds_of_fit(model, data, options.epochs, kinds[name]())
            if turn >= 0:
                times[name].append(took)
        print(f"fits: {turn + 1} of {options.rounds} rounds", file=sys.stderr, flush=True)
    print(f"Fits of {options.epochs} x {options.steps} steps: by one without; quartiles of {options.rounds} rounds")
    rows = {}
    for name, took in times.items():
        ratios = [one / none for one, none in zip(took, times["none"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        milliseconds = 1000 * statistics.median(took) / (options.steps * options.epochs)
        rows[name] = {"ratio": middle, "quartiles": [low, high], "ms_per_step": milliseconds, "ratios": ratios}
        print(f"  {name:42s} {middle:.4f} ({low:.4f} to {high:.4f}), {milliseconds:.4f} ms/step")
    return rows


if __name__ == "__main__":
    main()
