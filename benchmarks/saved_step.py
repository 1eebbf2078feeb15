"""How long a process takes from its scope to the end of its first epoch, with the steps of a file and with none.

    python benchmarks/saved_step.py [--pairs 5] [--replicas 8] [--blocks 8]

On this machine's CPU: one process compiles and saves, then processes with and without the file take turns. JAX's own
cache is off. Below 1.00 the file saves time. The last line is JSON.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

PROGRAM = """
import json, sys, time
import jax, keras, numpy as np
import keras_tpu_ext as kte

replicas, blocks, sha256 = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
begun = time.perf_counter()
compiled = ("step.kte", sha256) if len(sha256) == 64 else None
with kte.strategy_scope(require="cpu", replicas=replicas, compiled=compiled):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((32, 32, 3))
    for _ in range(blocks):
        x = keras.layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
        x = keras.layers.Activation("relu")(keras.layers.BatchNormalization()(x))
    model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
images, labels = np.zeros((32, 32, 32, 3), "float32"), np.zeros(32, "int32")
if sha256 == "save":
    sha256 = kte.preflight(model, (images, labels), target=f"cpu-{replicas}", progress=False).save("step.kte")
    print(json.dumps({"sha256": sha256}))
else:
    history = model.fit(images, labels, batch_size=32, validation_data=(images, labels), verbose=0).history
    print(json.dumps({"seconds": time.perf_counter() - begun, "loss": history["loss"]}))
"""


def run(folder: str, replicas: int, blocks: int, sha256: str) -> dict:
    """Run a process and return what it prints."""
    path = os.pathsep.join([str(harness.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "KERAS_BACKEND": "jax", "PYTHONPATH": path}
    command = [sys.executable, "-c", PROGRAM, str(replicas), str(blocks), sha256]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Compile and save once, let the processes take turns and print the medians."""
    parser = harness.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="number of processes of each kind (default 5)")
    parser.add_argument("--replicas", type=int, default=8, help="number of virtual devices (default 8)")
    parser.add_argument("--blocks", type=int, default=8, help="number of convolutions with normalization (default 8)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sha256 = run(folder, options.replicas, options.blocks, "save")["sha256"]
        losses: set[float] = set()

        def seconds(digest: str) -> float:
            found = run(folder, options.replicas, options.blocks, digest)
            losses.update(found["loss"])
            return found["seconds"]

        warm, cold = functools.partial(seconds, sha256), functools.partial(seconds, "none")
        row = harness.paired(warm, cold, pairs=options.pairs)
        size = Path(folder, "step.kte").stat().st_size
    assert len(losses) == 1, f"the same loss bit for bit, with the file and without: {losses}"
    print(f"with the file: {harness.in_words(row)}; without {row['b_s']:.2f} s; the file has {size / 1e6:.1f} MB")
    harness.report("saved_step", replicas=options.replicas, blocks=options.blocks, bytes=size, **row)


if __name__ == "__main__":
    main()
