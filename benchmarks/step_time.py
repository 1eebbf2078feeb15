"""How long a training step of `TPUModel` takes beside one of `keras.Model`, in one process.

    python benchmarks/step_time.py [--pairs 7] [--seconds 1.0] [--only NAME]
    KERAS_BACKEND=jax python benchmarks/step_time.py

Each model trains on data that is already in memory, in alternating turns (A B A B ...), and the median of the
paired ratios is printed: below 1.00, TPUModel is the faster one. The machine's noise hits both turns of a pair.
On JAX there is one more row: TPUModel at `steps_per_execution="auto"` beside a loop written by hand, the limit.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_tpu_ext as kte

BATCH = 128


def small_dense(model_class: Any) -> Any:
    """Return a compiled perceptron of three layers on 784 inputs."""
    inputs = keras.Input((784,))
    hidden = keras.layers.Dense(128, activation="relu")(inputs)
    hidden = keras.layers.Dense(128, activation="relu")(hidden)
    return _compiled(model_class(inputs, keras.layers.Dense(10)(hidden)))


def dense_with_everything(model_class: Any) -> Any:
    """Return the perceptron with scaling, clipping, EMA, decay, accumulation and weights: both classes offer them."""
    model = small_dense(model_class)
    # Keras 3.15 on JAX cannot fit twice with moving averages: it donates a buffer twice.
    averages = keras.backend.backend() != "jax"
    adam = keras.optimizers.Adam(
        1e-4, global_clipnorm=1.0, use_ema=averages, weight_decay=1e-4, gradient_accumulation_steps=2
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if model_class is kte.TPUModel:
        options = {"optimizer": adam, "loss_scale": "dynamic"}
    else:
        options = {"optimizer": keras.optimizers.LossScaleOptimizer(adam)}
    model.compile(loss=loss, weighted_metrics=["accuracy"], **options)
    return model


def dense_at_its_pace(model_class: Any) -> Any:
    """Return the perceptron as a user has it: Keras with its defaults, TPUModel with executions that grow."""
    return _at_its_pace(small_dense(model_class))


def tiny_dense_at_its_pace(model_class: Any) -> Any:
    """Return the same of a perceptron of 32 units on 32 inputs, whose steps are nearly all overhead."""
    inputs = keras.Input((32,))
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    return _at_its_pace(model_class(inputs, keras.layers.Dense(10)(hidden)))


def _at_its_pace(model: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"steps_per_execution": "auto"} if isinstance(model, kte.TPUModel) else {}
    model.compile("adam", loss, metrics=["accuracy"], **options)
    return model


def small_conv(model_class: Any) -> Any:
    """Return a compiled convolutional network of the Fashion-MNIST tutorial, with half its filters."""
    inputs = keras.Input((28, 28, 1))
    hidden = keras.layers.Conv2D(32, 3, activation="relu")(inputs)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    return _compiled(model_class(inputs, keras.layers.Dense(10)(hidden)))


def _compiled(model: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def dataset(model: Any, steps: int, weighted: bool = False) -> dict[str, Any]:
    """Return `steps` batches of random data for `model` as arguments of `fit`, ready to be taken quickly."""
    rng = np.random.default_rng(0)
    shape = (steps * BATCH, *model.input_shape[1:])
    x = rng.normal(size=shape).astype("float32")
    y = rng.integers(0, 10, steps * BATCH).astype("int32")
    weight = rng.uniform(0.5, 1.5, len(y)).astype("float32")
    if keras.backend.backend() == "jax":
        arrays = {"x": x, "y": y, **({"sample_weight": weight} if weighted else {})}
        return {**arrays, "batch_size": BATCH, "shuffle": False}
    import tensorflow as tf

    parts = (x, y, weight) if weighted else (x, y)
    batches = tf.data.Dataset.from_tensor_slices(parts).batch(BATCH, drop_remainder=True)
    return {"x": batches.cache().prefetch(tf.data.AUTOTUNE)}


def timed(model: Any, data: dict[str, Any]) -> float:
    """Return the seconds that one epoch of `fit` takes."""
    begun = time.perf_counter()
    model.fit(**data, epochs=1, verbose=0)
    return time.perf_counter() - begun


def compare(
    build: Callable[[Any], Any], scope: Any, pairs: int, seconds: float, weighted: bool = False, warm_steps: int = 4
) -> dict[str, Any]:
    """Return the times of both models, turn about, and the median of the paired ratios."""
    with scope:
        models = {name: build(cls) for name, cls in (("peer", keras.Model), ("ours", kte.TPUModel))}
    warm = dataset(models["peer"], warm_steps, weighted)
    for model in models.values():
        timed(model, warm)
    probe = dataset(models["peer"], 32, weighted)
    # The second of two: the first may compile, for another number of steps say.
    slower = max(min(timed(model, probe) for _ in range(2)) for model in models.values())
    steps = max(32, int(32 * seconds / slower))
    return turn_about(models, models["ours"], min(steps, 1500), pairs, weighted)


def compare_with_scan(build: Callable[[Any], Any], scope: Any, pairs: int) -> dict[str, Any]:
    """Return the times of `TPUModel` at its pace and of a loop by hand with executions of the same length."""
    from _scan_by_hand import ScanByHand

    with scope:
        ours = build(kte.TPUModel)
    steps = 1500
    for _ in range(2):
        timed(ours, dataset(ours, steps))  # it finds its executions
    by_hand = ScanByHand(small_dense(keras.Model), keras.optimizers.Adam(), int(ours.steps_per_execution))
    timed(by_hand, dataset(ours, steps))
    return turn_about({"peer": by_hand, "ours": ours}, ours, steps, pairs)


def turn_about(models: dict[str, Any], like: Any, steps: int, pairs: int, weighted: bool = False) -> dict[str, Any]:
    """Let both models train on `steps` batches in turns, and return times and ratios."""
    data = dataset(like, steps, weighted)
    times: dict[str, list[float]] = {"peer": [], "ours": []}
    for model in models.values():
        timed(model, data)
    for turn in range(pairs):
        for name in ("peer", "ours") if turn % 2 else ("ours", "peer"):
            times[name].append(timed(models[name], data))
    ratios = [ours / peer for ours, peer in zip(times["ours"], times["peer"], strict=True)]
    per_step = {name: 1000 * statistics.median(values) / steps for name, values in times.items()}
    return {
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "peer_ms": per_step["peer"],
        "ours_ms": per_step["ours"],
        "steps": steps,
        "steps_per_execution": models["ours"].steps_per_execution,
    }


# Name: builder, numbers of replicas, whether there are sample weights, steps to warm up with
ROWS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], bool, int]] = {
    "small dense": (small_dense, (1, 8), False, 4),
    "small conv": (small_conv, (1, 8), False, 4),
    "dense, everything on": (dense_with_everything, (1,), True, 4),
    # It finds its executions while it warms up, as it does in the first epoch of a training.
    "dense, auto against defaults": (dense_at_its_pace, (1,), False, 1500),
    "tiny dense, auto": (tiny_dense_at_its_pace, (1,), False, 6000),
}


def main() -> None:
    """Run all comparisons and print a table, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7, help="turns of each model (default 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn takes (default 1)")
    parser.add_argument("--only", metavar="NAME", help="one row of the table by its name, such as 'small dense'")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    options = parser.parse_args()
    scopes = {8: kte.strategy_scope(replicas=8), 1: kte.strategy_scope(require="cpu")}
    rows = {}
    for name, (build, numbers, weighted, warm_steps) in ROWS.items():
        if options.only not in (None, name):
            continue
        for replicas in numbers:
            row = compare(build, scopes[replicas], options.pairs, options.seconds, weighted, warm_steps)
            rows[f"{name}, {replicas} replica{'s' if replicas > 1 else ''}"] = row
            show(f"{name:28s} {replicas} replica(s): keras", row, options)
    if keras.backend.backend() == "jax" and options.only is None:
        row = rows["dense, auto against a scan by hand"] = compare_with_scan(
            dense_at_its_pace, scopes[1], options.pairs
        )
        show(f"{'dense, auto':28s} 1 replica(s): by hand", row, options)
    machine = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "keras": keras.__version__}
    machine["backend"] = keras.backend.backend()
    print(json.dumps({"benchmark": "step_time", **machine, "batch": BATCH, "rows": rows}))


def show(what: str, row: dict[str, Any], options: argparse.Namespace) -> None:
    """Print a line of the table."""
    if not options.json:
        print(
            f"{what} {row['peer_ms']:7.3f} ms/step, TPUModel {row['ours_ms']:7.3f} ms/step, "
            f"median ratio {row['ratio']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
