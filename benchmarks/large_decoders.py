"""What preflight estimates for decoders larger than a chip, beside what was measured on real TPUs.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/large_decoders.py

Each decoder is of Keras's layers, made without memory, sharded by "fsdp", its blocks in `keras.RematScope`, and
compiled for the slice. What differs from the published runs: MaxText's own kernels and flags of the compiler; the
Llamas there keep activations in the host's memory instead of computing them twice. Where FLOP/s were published, the
measured time is by them. No TPU runs anything here. The last line is JSON.
"""

from __future__ import annotations

import functools
import resource
import time
from typing import NamedTuple

import harness
import numpy as np
from _decoder import LLAMA_8B, LLAMA_70B, MAXTEXT_16B, MAXTEXT_32B, Size, decoder

import keras_tpu_ext as kte
from keras_tpu_ext.preflight.targets import parse_target

_RECIPES = "https://github.com/AI-Hypercomputer/tpu-recipes/tree/10ca5b92b479/training/trillium"
_MAXTEXT = "https://github.com/AI-Hypercomputer/maxtext/blob/0ed7bd529b9d/MaxText/configs/v5e/README.md"


class Row(NamedTuple):
    """A decoder and what was measured of it.

    Attributes:
        name: What it is called.
        size: Its size.
        target: Slice.
        each: Sequences on a chip.
        length: Tokens in a sequence.
        policy: Dtype policy.
        seconds: Measured time of a step; 0 where FLOP/s were published.
        flops_per_sec: Published FLOP/s of a chip; 0 where a time was.
        source: Where it is published; empty for none.
    """

    name: str
    size: Size
    target: str
    each: int
    length: int
    policy: str = "mixed_bfloat16"
    seconds: float = 0.0
    flops_per_sec: float = 0.0
    source: str = ""

    @property
    def measured(self) -> float | None:
        """The measured time of a step, by FLOP/s where these were published."""
        if self.flops_per_sec:
            return self.size.flops(self.each * self.length, self.length) / self.flops_per_sec
        return self.seconds or None


ROWS = (
    Row("Llama 8B", LLAMA_8B, "v6e-8", 3, 8192, seconds=3.443, source=f"{_RECIPES}/Llama3.1-8B-MaxText/v6e-8"),
    Row(
        "Llama 70B", LLAMA_70B, "v6e-32", 2, 8192, "bfloat16", 17.79, source=f"{_RECIPES}/Llama3.1-70B-MaxText/v6e-32"
    ),
    Row("MaxText 16B", MAXTEXT_16B, "v5e-256", 6, 2048, flops_per_sec=120e12, source=_MAXTEXT),
    Row("MaxText 32B", MAXTEXT_32B, "v5e-256", 4, 2048, flops_per_sec=132e12, source=_MAXTEXT),
    Row("Llama 70B", LLAMA_70B, "v5p-64", 1, 8192, "bfloat16"),
    Row("Llama 70B", LLAMA_70B, "v6e-64", 1, 8192, "bfloat16"),
)


def asked(row: Row) -> dict[str, object]:
    """Return what preflight says of a decoder, and what asking takes."""
    examples = row.each * parse_target(row.target).devices
    tokens = np.broadcast_to(np.int32(0), (examples, row.length))
    began = time.perf_counter()
    report = kte.preflight(
        functools.partial(decoder, row.size, row.length, policy=row.policy),
        (tokens, tokens),
        row.target,
        shard="fsdp",
        timeout_s=7200,
        progress=False,
    )
    memory = report.memory
    return {
        "what": row.name,
        "target": row.target,
        "each": row.each,
        "length": row.length,
        "parameters": row.size.parameters,
        "measured": row.measured,
        "source": row.source,
        "fits": report.ok,
        "needed": None if memory is None else memory.needed,
        "estimated": report.step_seconds,
        "mfu": None if report.time is None else report.time.mfu,
        "shares": None if report.time is None else report.time.shares,
        "compile_seconds": report.compile_seconds,
        "seconds": time.perf_counter() - began,
        "host_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "compiler_gib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20,
    }


def main() -> None:
    """Print a line for each decoder, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", default="", help="text that is in the rows to be done")
    options = parser.parse_args()
    rows = []
    for row in ROWS:
        if options.only in f"{row.name} {row.target}":
            found = asked(row)
            rows.append(found)
            estimated, measured = found["estimated"], row.measured
            ratio = f", {estimated / measured:.3f}" if estimated and measured else ""  # type: ignore[operator]
            print(
                f"{row.name:12s} {row.target:8s} {row.each} x {row.length:5d} a chip: estimated {estimated} s, "
                f"measured {measured} s{ratio}; {found['needed']} bytes a chip, fits: {found['fits']}; asked in "
                f"{found['seconds']:.0f} s, {found['host_gib']:.1f} and {found['compiler_gib']:.1f} GiB",
                flush=True,
            )
    harness.report("large_decoders", rows=rows)


if __name__ == "__main__":
    main()
