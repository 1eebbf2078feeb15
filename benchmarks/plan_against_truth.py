"""How near is `kte.plan(target="cpu")` to the time that `fit` then takes? Ten trainings, each in fresh processes.

For each, one process plans it and another one trains it; import and building are in neither. Whatever else runs
beside one of the two and not beside the other is an error of the plan here. So it waits until other programs are
quiet, for `--patience` seconds at most in all. A pair beside which other programs had more than a quarter of the CPU
time is done again, up to three times, whatever its error was, and the quietest one counts.

Where a machine is never quiet, `--cpu-time` plans and counts the seconds that the process has the CPU, in place of
those that pass: this checks what the plan makes of its measurements, but not what others, sleep and disks do to them.

    KERAS_BACKEND=jax python benchmarks/plan_against_truth.py --out benchmarks/results/plan_against_truth-jax.txt
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import parser

_QUIET = 0.25  # of the CPU time, for other programs
RNG = np.random.default_rng(0)


def images(count: int = 512, size: int = 24) -> tuple[Any, Any]:
    """Return images and their classes."""
    return RNG.normal(size=(count, size, size, 3)).astype("float32"), RNG.integers(0, 10, count)


def rows(count: int = 16384) -> tuple[Any, Any]:
    """Return rows of a table and a target."""
    x = RNG.normal(size=(count, 64)).astype("float32")
    return x, x.sum(axis=1)


def tokens(count: int = 512, length: int = 64) -> tuple[Any, Any]:
    """Return sentences and their classes."""
    x = RNG.integers(1, 1000, (count, length))
    return x, (x.sum(axis=1) % 2).astype("float32")


def dense(**options: Any) -> Any:
    """Return a network of dense layers."""
    import keras

    layers = [keras.layers.Dense(512, "relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    model.compile(options.pop("optimizer", "adam"), "mse", **options)
    return model


def accumulating() -> Any:
    """Return one that accumulates gradients."""
    import keras

    return dense(optimizer=keras.optimizers.Adam(gradient_accumulation_steps=4))


def in_groups() -> Any:
    """Return one with several steps in an execution."""
    return dense(steps_per_execution=16)


def conv() -> Any:
    """Return a convolutional network."""
    import keras

    make = keras.layers.Conv2D
    body = [make(32, 3, activation="relu"), make(32, 3, strides=2, activation="relu"), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((24, 24, 3)), *body, keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def rnn() -> Any:
    """Return a recurrent network."""
    import keras

    body = [keras.layers.Embedding(1000, 32), keras.layers.GRU(64)]
    model = keras.Sequential([keras.Input((64,)), *body, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy")
    return model


def transformer() -> Any:
    """Return a transformer."""
    import keras

    inputs = keras.Input((64,), dtype="int32")
    x = keras.layers.Embedding(1000, 64)(inputs)
    for _ in range(2):
        x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x))
        x = x + keras.layers.Dense(64)(keras.layers.Dense(256, "gelu")(x))
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x))
    model.compile("adam", "binary_crossentropy")
    return model


def mapped() -> Any:
    """A tf.data pipeline that does some work; on JAX without TensorFlow the same in a `PyDataset`."""
    x, y = images()
    try:
        import tensorflow as tf
    except ModuleNotFoundError:
        return sequence(
            x, y, lambda batch: np.tanh(np.fft.irfft(np.fft.rfft(batch, axis=1), n=24, axis=1)), "float32"
        )
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512)
    dataset = dataset.map(
        lambda a, b: (tf.image.resize(tf.image.resize(a, (64, 64)), (24, 24)), b), num_parallel_calls=2
    )
    return dataset.batch(32).prefetch(2)


def sleeping() -> Any:
    """Return a PyDataset that sleeps in each batch."""

    def slow(batch: Any) -> Any:
        time.sleep(0.05)
        return batch

    return sequence(*rows(4096), slow)


def sequence(x: Any, y: Any, work: Callable[[Any], Any], dtype: str = "float32") -> Any:
    """Return a PyDataset that does some work in each batch."""
    import keras

    class Sequence(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(x) // 32

        def __getitem__(self, index: int) -> Any:
            part = slice(32 * index, 32 * index + 32)
            return work(x[part]).astype(dtype), y[part]

    return Sequence()


def checkpoint() -> Any:
    """Return a callback that saves every epoch."""
    import keras

    return keras.callbacks.ModelCheckpoint(os.path.join(tempfile.mkdtemp(), "model.keras"))


# The model, the data, and what else `fit` and `plan` get.
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "dense": (dense, rows, dict),
    "conv": (conv, lambda: images(500), dict),
    "rnn": (rnn, tokens, dict),
    "transformer": (transformer, tokens, dict),
    "tf.data": (conv, mapped, dict),
    "PyDataset that sleeps": (dense, sleeping, dict),
    "validation": (conv, images, lambda: {"validation_data": images(1024)}),
    "ModelCheckpoint": (dense, lambda: rows(1024), lambda: {"callbacks": [checkpoint()]}),
    "steps_per_execution=16": (in_groups, rows, dict),
    "accumulation": (accumulating, rows, dict),
}


def fit(model: Any, data: Any, epochs: int, more: dict[str, Any]) -> float:
    """Train a model and return the seconds."""
    begin = time.perf_counter()
    arguments = {"x": data[0], "y": data[1], "batch_size": 32} if isinstance(data, tuple) else {"x": data}
    model.fit(**arguments, epochs=epochs, verbose=0, **more)
    return time.perf_counter() - begin


def planned(name: str, seconds: float) -> dict[str, Any]:
    """Choose how many epochs take so many seconds, and plan them."""
    import keras_tpu_ext as kte

    build, make, options = CASES[name]
    data, model = make(), build()
    fit(model, data, 1, options())
    epochs = max(2, round(seconds / fit(model, data, 1, options())))
    begin = time.perf_counter()
    report = kte.plan(build, data, epochs=epochs, batch_size=32, target="cpu", **options())
    return {**report.to_dict(), "took": time.perf_counter() - begin}


def trained(name: str, epochs: int) -> dict[str, Any]:
    """Train a fresh model."""
    build, make, options = CASES[name]
    return {"seconds": fit(build(), make(), epochs, options())}


def child(*arguments: object) -> dict[str, Any]:
    """Run this file in another process and return what it prints last, with the load while it ran."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    command += ["--cpu-time"] if "--cpu-time" in sys.argv else []
    before = ticks()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    used = [b - a for a, b in zip(before, ticks(), strict=True)]
    return {**json.loads(done.stdout.splitlines()[-1]), "others": 1 - used[1] / max(used[0], 1e-9)}


def ticks() -> tuple[float, float]:
    """Return the seconds that all cores were busy, and those that this process's children were."""
    busy = [int(part) for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    of_children = os.times()
    idle = busy[3] + busy[4]
    return (sum(busy) - idle) / os.sysconf("SC_CLK_TCK"), of_children.children_user + of_children.children_system


def wait_for_quiet(until: float) -> None:
    """Wait until less than a quarter of the cores is busy for three seconds, or a time has come."""
    while time.time() < until:
        before = ticks()[0]
        time.sleep(3)
        if (ticks()[0] - before) / 3 < _QUIET * (os.cpu_count() or 1):
            return


def pair(name: str, seconds: float, until: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plan and the training of the pair that other programs disturbed least."""
    pairs = []
    for _ in range(3):
        wait_for_quiet(until)
        plan = child("plan", name, seconds)
        pairs.append((plan, child("fit", name, plan["epochs"])))
        if disturbed(pairs[-1]) < _QUIET or time.time() >= until:
            break
    return min(pairs, key=disturbed)


def disturbed(one: tuple[dict[str, Any], dict[str, Any]]) -> float:
    """Return the larger share of other programs in the CPU time."""
    return max(part["others"] for part in one)


def main() -> None:
    """Run all pairs, and write the table."""
    options = parser(__doc__)
    options.add_argument("--child", nargs=3)
    options.add_argument("--seconds", type=float, default=25.0, help="about how long each training takes")
    options.add_argument("--cpu-time", action="store_true", help="count CPU seconds")
    options.add_argument("--patience", type=float, default=0.0, help="seconds to wait for quiet in all (default: 0)")
    options.add_argument("--only", nargs="*", default=list(CASES))
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    if chosen.cpu_time:
        time.perf_counter = time.process_time  # before anything keeps it
    if chosen.child:
        what, name, number = chosen.child
        print(json.dumps(planned(name, float(number)) if what == "plan" else trained(name, int(number))))
        return
    lines = [
        f"{'training':<24}{'planned':>9}{'from':>8}{'to':>8}{'real':>8}{'error':>8}  in range  others' CPU: plan, fit"
    ]
    print(lines[0], flush=True)
    errors, inside, until = [], 0, time.time() + chosen.patience
    for name in chosen.only:
        plan, real = pair(name, chosen.seconds, until)
        (low, high), middle, took = plan["seconds_range"], plan["seconds"], real["seconds"]
        errors.append(middle / took - 1)
        inside += low <= took <= high
        lines.append(
            f"{name:<24}{middle:>9.1f}{low:>8.1f}{high:>8.1f}{took:>8.1f}{errors[-1]:>+8.1%}  "
            f"{'yes' if low <= took <= high else 'NO':<10}{plan['others']:>8.0%}{real['others']:>6.0%}"
        )
        print(lines[-1], json.dumps({k: round(v, 2) for k, v in plan["buckets"].items()}), flush=True)
    unit = "CPU seconds" if chosen.cpu_time else "seconds"
    median = statistics.median(map(abs, errors))
    lines.append(
        f"\nin the range: {inside} of {len(errors)}; median error {median:.1%}; {unit}; {os.cpu_count()} cores"
    )
    print(lines[-1])
    if chosen.out:
        chosen.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
