"""How much memory it takes to load a preset of keras-hub, on one device and sharded over eight.

    make .envs/keras3-jax/.ready
    alias install=".envs/tools/bin/uv pip install --python .envs/keras3-jax/bin/python"
    install regex sentencepiece tokenizers safetensors h5py
    install --no-deps keras-hub
    KERAS_BACKEND=jax python benchmarks/preset_memory.py [--layers 16]

A Gemma with random weights is saved as a preset, whose weights are one file or some of at most 256 MB, and loaded by
`from_preset` in a process of its own. Printed are the peak of that process over what it had before, and the most
that the first device held, both in times of the bytes of the weights. The virtual devices share the host's memory, so
that 1 is the least for the process; on a TPU the weights themselves are not there. Needs Linux, which tells the peak.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
import jax
import keras

import keras_tpu_ext as kte

GEMMA = {
    "vocabulary_size": 32768,
    "num_query_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_dim": 1024,
    "intermediate_dim": 8192,
}
FILES = {"one file": 100.0, "files of at most 256 MB": 0.25}  # GB in a file
SCOPES = {"one device": {"require": "cpu"}, '"fsdp" over 8': {"shard": "fsdp", "replicas": 8}}


def main() -> None:
    """Print a line for each way to load, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--layers", type=int, default=16, help="number of blocks (default 16)")
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(loaded(*options.load)), flush=True)
        return
    rows = []
    for files, gigabytes in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            save(folder, options.layers, gigabytes)
            for where in SCOPES:
                command = [sys.executable, __file__, "--load", folder, where]
                # Or what is freed may stay with the process.
                environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
                run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                if run.returncode:
                    raise SystemExit(run.stderr[-2000:])
                row = {"files": files, "where": where, **json.loads(run.stdout.splitlines()[-1])}
                print(
                    f"{files:24s} {where:14s} {row['weights'] / harness.GIB:.2f} GiB of weights: the process "
                    f"{row['process'] / row['weights']:.2f}, the first device {row['device'] / row['weights']:.2f}",
                    flush=True,
                )
                rows.append(row)
    harness.report("preset_memory", layers=options.layers, rows=rows)


def save(folder: str, layers: int, gigabytes: float) -> None:
    """Save a preset."""
    import keras_hub

    backbone = keras_hub.models.GemmaBackbone(**GEMMA, num_layers=layers)
    backbone.save_to_preset(folder, max_shard_size=gigabytes)


def loaded(folder: str, where: str) -> dict[str, int]:
    """Load a preset; return the bytes of its weights, the peak of the process, and that of the first device."""
    import keras_hub

    kte.strategy_scope(require="cpu", replicas=8)  # makes the devices
    assigned, held = keras.Variable._direct_assign, [0]

    def watched(variable: Any, value: Any) -> None:
        held.append(sum(map(on_first_device, jax.live_arrays())))
        assigned(variable, value)

    keras.Variable._direct_assign = watched
    with kte.strategy_scope(**SCOPES[where]):
        keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])  # what is made once is made
        before = resident_after_a_clean_start()
        model = keras_hub.models.GemmaBackbone.from_preset(folder)
    weights = sum(variable.value.nbytes for variable in model.weights)
    return {"weights": weights, "process": memory("VmHWM") - before, "device": max(held)}


def on_first_device(array: jax.Array) -> int:
    """Return how many bytes of an array are on the first device."""
    if array.is_deleted() or all(device.id for device in array.sharding.device_set):
        return 0
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def resident_after_a_clean_start() -> int:
    """Let the peak of this process begin anew, and return what it has."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(name: str) -> int:
    """Return a line of Linux's status of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


if __name__ == "__main__":
    main()
