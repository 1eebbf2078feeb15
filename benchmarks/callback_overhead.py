"""What callbacks cost a `fit` with steps of about 1 ms, beside a `fit` without any.

    make .envs/peers/.ready                    # Keras's TensorBoard callback needs tensorboard; TimeHistory
    PYTHONPATH=.envs/peers python benchmarks/callback_overhead.py [--rounds 31] [--steps 1500]
    PYTHONPATH=.envs/peers KERAS_BACKEND=jax python benchmarks/callback_overhead.py

One model trains on data that is in memory, in turns: without callbacks, with each of ours, with both, with Keras's
own TensorBoard callback (its defaults, and with a scalar every 20 batches) and with the TensorFlow Model Garden's
TimeHistory (every 20 steps). All of `fit` is timed, with what callbacks do at its begin and end. The median of the
ratios to the turn without is printed, with the 25th and 75th percentile of them; "none again" is such a turn against
another and shows what this machine's noise makes of nothing. The last line is JSON.

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
from keras_tpu_ext._runtime.select import chosen

BATCH, FEATURES = 64, 64
WIDTHS = (32, 64, 128, 256, 512)
AIM = 1e-3  # seconds of a step


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

    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)
    return {"x": batches.cache().prefetch(tf.data.AUTOTUNE)}


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
        if took > 2 * AIM:
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
        "none again": list,
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


def main() -> None:
    """Print a line for each set of callbacks, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31, help="turns of each (default 31)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of an epoch (default 1500)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of a turn (default 2)")
    options = parser.parse_args()
    model = model_of_about_the_aim()
    data = dataset(options.steps)
    with tempfile.TemporaryDirectory() as folder:
        kinds = variants(folder)
        times: dict[str, list[float]] = {name: [] for name in kinds}
        names = list(kinds)
        for turn in range(-1, options.rounds):  # the first is to warm up
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                took = seconds_of_fit(model, data, options.epochs, kinds[name]())
                if turn >= 0:
                    times[name].append(took)
    steps = options.steps * options.epochs
    rows = {}
    for name, took in times.items():
        ratios = [one / none for one, none in zip(took, times["none"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows[name] = {
            "ratio": middle,
            "quartiles": [low, high],
            "ms_per_step": 1000 * statistics.median(took) / steps,
            "ratios": [round(ratio, 4) for ratio in ratios],
        }
        print(f"{name:42s} {rows[name]['ms_per_step']:.4f} ms/step, ratio {middle:.4f} ({low:.4f} to {high:.4f})")
    about = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "runtime": chosen(),
        "width": model.layers[0].units,
        "steps": options.steps,
        "epochs": options.epochs,
    }
    print(json.dumps({"benchmark": "callback_overhead", **about, "rows": rows}))


if __name__ == "__main__":
    main()
