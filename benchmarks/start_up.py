"""How many CPU seconds a program takes to its first epoch, with an empty `compile_cache` and with a full one.

    KERAS_BACKEND=jax python benchmarks/start_up.py [--pairs 5] [--replicas 8] [--model resnet50]

Each turn is a fresh process: it imports, makes a model, and trains and evaluates a batch. "cold" finds an empty
folder and "warm" what a process before has left; they take turns. The ratio is warm / cold, of the CPU time of all
threads, which a busy machine changes less than the time on the wall. The last line is JSON.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import harness

PROGRAM = """
import sys, time
import keras, numpy as np
import keras_tpu_ext as kte
started = time.process_time()
with kte.strategy_scope(require="cpu", replicas=int(sys.argv[1]), compile_cache=sys.argv[3]):
    keras.utils.set_random_seed(0)
    if sys.argv[2] == "resnet50":
        model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    else:
        layers = [keras.layers.Conv2D(8, 3), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
        model = keras.Sequential([keras.Input((64, 64, 3)), *layers])
    model.compile("adam", "sparse_categorical_crossentropy")
x, y = np.ones((16, 64, 64, 3), "float32"), np.arange(16) % 10
counts = kte.callbacks.Recompilations()
model.fit(x, y, batch_size=16, verbose=0, validation_data=(x, y), callbacks=[counts])
print(time.process_time() - started, sum(one.seconds for one in counts.report().compilations))
"""


def seconds_of(empty: bool, arguments: list[str], folder: Path, parts: list[tuple[float, ...]]) -> float:
    """Run the program with a folder, and return its CPU seconds."""
    if empty:
        shutil.rmtree(folder, ignore_errors=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERS"))}
    command = [sys.executable, "-c", PROGRAM, *arguments, str(folder)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, check=True, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    parts.append(tuple(float(word) for word in done.stdout.split()))
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run the processes one after the other and print the medians."""
    parser = harness.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="number of pairs (default 5)")
    parser.add_argument("--replicas", type=int, default=8, help="number of virtual CPU devices (default 8)")
    parser.add_argument("--model", choices=("small", "resnet50"), default="small", help="(default: small)")
    options = parser.parse_args()
    parts: dict[str, list[tuple[float, ...]]] = {"warm": [], "cold": []}
    with tempfile.TemporaryDirectory() as place:
        arguments = [str(options.replicas), options.model]
        runs: dict[str, Callable[[], float]] = {
            name: functools.partial(seconds_of, name == "cold", arguments, Path(place) / name, parts[name])
            for name in parts
        }
        row = harness.paired(runs["warm"], runs["cold"], pairs=options.pairs)
    after_imports = {
        name: sorted(part[0] for part in found[1:])[len(found[1:]) // 2] for name, found in parts.items()
    }
    print(f"{options.model}, {options.replicas} replicas: warm {row['a_s']:.1f} CPU s, cold {row['b_s']:.1f} CPU s,")
    print(f"of these without imports {after_imports['warm']:.1f} s, {after_imports['cold']:.1f} s;")
    print(harness.in_words(row))
    harness.report("start_up", model=options.model, replicas=options.replicas, **row, after_imports_s=after_imports)


if __name__ == "__main__":
    main()
