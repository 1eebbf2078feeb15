"""How preflight finds Gemma-2 on a v5e-8, with LoRA and in full, by "fsdp", by "auto" and by keras-hub's own layout.

    make .envs/keras3-compiler/.ready
    alias install=".envs/tools/bin/uv pip install --python .envs/keras3-compiler/bin/python"
    install regex sentencepiece tokenizers safetensors
    install --no-deps keras-hub
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/gemma_layouts.py

Each is asked in a process of its own. Printed are the estimated time of a step, the memory that a chip needs, the
time and the processor time that the report takes, and the most memory that Python and the compiler had, at once and
each. No TPU runs anything here. The last line is JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import harness
import keras
import numpy as np

import keras_tpu_ext as kte

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import gemma_lora

TARGET = "v5e-8"
LENGTH = 1024


class Asked(NamedTuple):
    """A model to ask about.

    Attributes:
        size: Arguments of its backbone.
        mesh: Mesh for keras-hub's layout, which splits the heads of keys and values.
        lora: Whether only LoRA's weights are trained; else all weights are.
    """

    size: dict[str, Any]
    mesh: tuple[int, int]
    lora: bool


SIZE_2B = {
    **gemma_lora.LARGE,
    "num_layers": 26,
    "num_query_heads": 8,
    "num_key_value_heads": 4,
    "hidden_dim": 2304,
    "intermediate_dim": 18432,
}
MODELS = {
    "Gemma-2-2B": Asked(SIZE_2B, (2, 4), lora=True),
    "Gemma-2-2B in full": Asked(SIZE_2B, (2, 4), lora=False),
    "Gemma-2-9B": Asked(gemma_lora.LARGE, (1, 8), lora=True),
}
SHARDS = ("keras-hub", "fsdp", "auto")


def shard_of(name: str, how: str) -> Any:
    """Return what to give as `shard`."""
    if how != "keras-hub":
        return how
    import keras_hub

    devices = np.array([f"tpu:{number}" for number in range(8)])
    mesh = keras.distribution.DeviceMesh(MODELS[name].mesh, ("batch", "model"), devices)
    return keras_hub.models.GemmaBackbone.get_layout_map(mesh)


def ask(name: str, how: str) -> dict[str, object]:
    """Return what preflight says of a model."""
    import keras_hub

    asked = MODELS[name]

    def build() -> keras.Model:
        backbone = keras_hub.models.GemmaBackbone(**asked.size, dtype="bfloat16")
        if asked.lora:
            backbone.enable_lora(gemma_lora.RANK)
        return gemma_lora.compiled(keras_hub.models.GemmaCausalLM(backbone))

    ids = np.zeros((8, LENGTH), "int32")
    began = time.perf_counter()
    with harness.memory_used() as used:
        report = kte.preflight(
            build,
            ({"token_ids": ids, "padding_mask": ids}, ids),
            TARGET,
            shard=shard_of(name, how),
            timeout_s=7200,
            progress=False,
        )
    seconds = time.perf_counter() - began
    print(report, file=sys.stderr)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "what": name,
        "shard": how,
        "fits": report.ok,
        "needed": None if report.memory is None else report.memory.needed,
        "estimated": report.step_seconds,
        "seconds": seconds,
        "cpu_seconds": sum(one.ru_utime + one.ru_stime for one in usage),
        "libtpu": report.versions["libtpu"],
        **used,
    }


def main() -> None:
    """Print a line for each, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SHARD"), help="ask of this one, and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(ask(*options.one)))
        return
    rows = []
    for name in MODELS:
        for how in SHARDS:
            called = [sys.executable, __file__, "--one", name, how]
            done = subprocess.run(called, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            needed = f"{row['needed'] / 2**30:.2f} GiB a chip" if row["needed"] else "memory unknown"
            print(
                f"{name} by {how:9s}: estimated {row['estimated']} s, {needed}, fits: {row['fits']}; asked in "
                f"{row['seconds']:.0f} s ({row['cpu_seconds']:.0f} s of a processor), {row['at_once_gib']:.1f} GiB "
                f"at once ({row['python_gib']:.1f} and {row['compiler_gib']:.1f})",
                flush=True,
            )
    harness.report("gemma_layouts", target=TARGET, keras_hub=importlib.metadata.version("keras-hub"), rows=rows)


if __name__ == "__main__":
    main()
