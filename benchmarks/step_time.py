"""How long a training step of `TPUModel` takes beside one of `keras.Model`, in one process.

    python benchmarks/step_time.py [--pairs 7] [--seconds 1.0] [--only NAME] [--against PATH]
    KERAS_BACKEND=jax python benchmarks/step_time.py
    KERAS_BACKEND=jax python benchmarks/step_time.py --accelerator    # on one GPU or TPU

Each model trains on data that is already in memory, in turns, and the median of the paired ratios is printed: below
1.00, TPUModel is the faster one. On JAX there is one more row: TPUModel at `steps_per_execution="auto"` beside a loop
written by hand, the limit. With `--against`, the TPUModel of this checkout trains beside that of another one, each in
a process of its own: below 1.00, this one is faster. Two processes of one checkout may differ by some per cent all
their life, more than the interval says: believe the median of several runs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import harness
import keras
import numpy as np

import keras_tpu_ext as kte

BATCH = 128


def perceptron(model_class: Any, features: int = 784, units: int = 128, layers: int = 2, auto: bool = False) -> Any:
    """Return a compiled perceptron; with `auto` a TPUModel has executions that grow, and Keras its defaults."""
    inputs = hidden = keras.Input((features,))
    for _ in range(layers):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    options = {"steps_per_execution": "auto"} if auto and model_class is kte.TPUModel else {}
    return _compiled(model_class(inputs, keras.layers.Dense(10)(hidden)), **options)


def dense_with_everything(model_class: Any) -> Any:
    """Return the perceptron with scaling, clipping, EMA, decay, accumulation and weights: both classes offer them."""
    model = perceptron(model_class)
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


def small_conv(model_class: Any) -> Any:
    """Return a compiled convolutional network of the Fashion-MNIST tutorial, with half its filters."""
    inputs = keras.Input((28, 28, 1))
    hidden = keras.layers.Conv2D(32, 3, activation="relu")(inputs)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    return _compiled(model_class(inputs, keras.layers.Dense(10)(hidden)))


def _compiled(model: Any, **options: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **options)
    return model


class Row(NamedTuple):
    """A row of the table: its model, on how many replicas, with sample weights or not, and how it warms up."""

    build: Callable[[Any], Any]
    replicas: tuple[int, ...] = (1,)
    weighted: bool = False
    warm_up_steps: int = 4


AUTO = "dense, auto against defaults"
TINY = functools.partial(perceptron, features=32, units=32, layers=1, auto=True)  # nearly all of a step is overhead
ROWS = {
    "small dense": Row(perceptron, (1, 8)),
    "small conv": Row(small_conv, (1, 8)),
    "dense, everything on": Row(dense_with_everything, weighted=True),
    # It finds its executions while it warms up, as it does in the first epoch of a training.
    AUTO: Row(functools.partial(perceptron, auto=True), warm_up_steps=1500),
    "tiny dense, auto": Row(TINY, warm_up_steps=6000),
}


@functools.lru_cache(maxsize=2)
def dataset(example: tuple[int, ...], steps: int, weighted: bool = False) -> dict[str, Any]:
    """Return `steps` batches of random data as arguments of `fit`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * BATCH, *example)).astype("float32")
    y = rng.integers(0, 10, steps * BATCH).astype("int32")
    weights = [rng.uniform(0.5, 1.5, len(y)).astype("float32")] if weighted else []
    return harness.in_memory(x, y, *weights, batch_size=BATCH)


@functools.cache
def scope_of(replicas: int | None) -> Any:
    """The scope of so many replicas on the CPU; for `None` of one replica on the GPU or TPU that there is."""
    if replicas is None:
        return kte.strategy_scope(replicas=1)
    eight = kte.strategy_scope(replicas=8)  # first of all: a CPU cannot become eight devices later
    return eight if replicas == 8 else kte.strategy_scope(require="cpu")


@functools.lru_cache(maxsize=2)
def warm_model(name: str, replicas: int | None, class_name: str) -> Any:
    """Return the model of a row, `"TPUModel"` or `"Model"`, after its warm-up; it is kept for the next turn."""
    row = ROWS[name]
    with scope_of(replicas):
        model = row.build(kte.TPUModel if class_name == "TPUModel" else keras.Model)
    model.fit(**dataset(model.input_shape[1:], row.warm_up_steps, row.weighted), verbose=0)
    return model


def turn(name: str, replicas: int | None, class_name: str, steps: int) -> float:
    """Train the model of a row for one epoch and return its seconds."""
    model = warm_model(name, replicas, class_name)
    return harness.timed(model.fit, **dataset(model.input_shape[1:], steps, ROWS[name].weighted), verbose=0)


def executions(name: str, replicas: int | None) -> int:
    """Return how many steps of `TPUModel` are one execution."""
    return int(warm_model(name, replicas, "TPUModel").steps_per_execution)


def compare(workers: list[Any], peer_class: str, name: str, replicas: int | None, options: argparse.Namespace) -> Any:
    """Train `TPUModel` in one worker and its peer in the other, in turns, and return the row."""
    ours, peer = (
        functools.partial(worker, turn, name, replicas, class_name)
        for worker, class_name in zip(workers, ("TPUModel", peer_class), strict=True)
    )
    # The second of two: the first may compile, for another number of steps say.
    slower = max(min(train(32) for _ in range(2)) for train in (peer, ours))
    row = in_turns(ours, peer, options.pairs, min(max(32, int(32 * options.seconds / slower)), 1500))
    return {**row, "steps_per_execution": workers[0](executions, name, replicas)}


def in_turns(ours: Callable[[int], float], peer: Callable[[int], float], pairs: int, steps: int) -> dict[str, Any]:
    """Train both for `steps` in turns, and return the row."""
    row = harness.paired(lambda: ours(steps), lambda: peer(steps), pairs=pairs)
    per_step = {name: 1000 * row.pop(key) / steps for name, key in (("ours_ms", "a_s"), ("peer_ms", "b_s"))}
    return {**row, **per_step, "steps": steps}


def compare_with_scan(pairs: int, replicas: int | None) -> dict[str, Any]:
    """Compare `TPUModel` at its pace with a loop by hand whose executions are as long."""
    from _scan_by_hand import ScanByHand

    ours, steps = functools.partial(turn, AUTO, replicas, "TPUModel"), 1500
    ours(steps)  # it has found its executions
    chunk = executions(AUTO, replicas)
    by_hand = ScanByHand(perceptron(keras.Model), keras.optimizers.Adam(), chunk)
    data = dataset((784,), steps)
    row = in_turns(ours, lambda _: harness.timed(by_hand.fit, **data), pairs, steps)
    return {**row, "steps_per_execution": chunk}


def main() -> None:
    """Run all comparisons and print a table, then JSON."""
    parser = harness.parser(__doc__, against=True)
    parser.add_argument("--pairs", type=int, default=7, help="turns of each model (default 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn takes (default 1)")
    parser.add_argument("--only", choices=ROWS, metavar="NAME", help="one row by its name, such as 'small dense'")
    parser.add_argument("--accelerator", action="store_true", help="train on one GPU or TPU, and not on the CPU")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    options = parser.parse_args()
    peer, peer_class = ("old", "TPUModel") if options.against else ("keras", "Model")
    rows = {}

    def add(name: str, peer: str, row: dict[str, Any]) -> None:
        rows[name] = row
        if not options.json:
            times = f"{peer} {row['peer_ms']:7.3f} ms/step, TPUModel {row['ours_ms']:7.3f} ms/step"
            print(f"{name:39s} {times}, {harness.in_words(row)}", flush=True)

    with harness.workers(options.against) as workers:
        for name in [options.only] if options.only else ROWS:
            for replicas in [None] if options.accelerator else ROWS[name].replicas:
                row = compare(workers, peer_class, name, replicas, options)
                add(f"{name}, {replicas} replicas" if replicas == 8 else f"{name}, 1 replica", peer, row)
    if keras.backend.backend() == "jax" and not options.only and not options.against:
        add(
            "dense, auto against a scan by hand",
            "by hand",
            compare_with_scan(options.pairs, None if options.accelerator else 1),
        )
    harness.report("step_time", against=options.against, quiet=options.json, batch=BATCH, rows=rows)


if __name__ == "__main__":
    main()
