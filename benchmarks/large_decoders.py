"""What preflight estimates for decoders larger than a chip, beside what was measured on real TPUs.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/large_decoders.py

Each decoder is of Keras's layers, made without memory, sharded by "fsdp", its blocks in `keras.RematScope`, and
compiled for the slice. What differs from the published runs: MaxText's own kernels and flags of the compiler; the
Llamas there keep activations in the host's memory instead of computing them twice. Where FLOP/s were published, the
measured rate is by them. What does not fit is asked about again with the largest batch that does. No TPU runs
anything here. The last line is JSON.
"""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple

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
        """Measured tokens per second of a chip, by FLOP/s where these were published."""
        tokens = self.each * self.length
        if self.flops_per_sec:
            return tokens * self.flops_per_sec / self.size.flops(tokens, self.length)
        return tokens / self.seconds if self.seconds else None


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


def asked(row: Row, each: int) -> dict[str, Any]:
    """Return what preflight says of a decoder with so many sequences on a chip, and what asking takes."""
    examples = each * parse_target(row.target).devices
    tokens = np.broadcast_to(np.int32(0), (examples, row.length))
    began = time.perf_counter()
    with harness.memory_used() as used:
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
        "libtpu": report.versions["libtpu"],
        "each": each,
        "length": row.length,
        "parameters": row.size.parameters,
        "source": row.source,
        "measured_each": row.each,
        "measured": row.measured,
        "fits": report.ok,
        "largest": report.largest_per_replica_batch,
        "needed": None if memory is None else memory.needed,
        "estimated": None if report.step_seconds is None else each * row.length / report.step_seconds,
        "mfu": None if report.time is None else report.time.mfu,
        "shares": None if report.time is None else report.time.shares,
        "compile_seconds": report.compile_seconds,
        "seconds": time.perf_counter() - began,
        **used,
    }


def told(row: Row, each: int) -> dict[str, Any]:
    """Ask about a decoder, and print a line."""
    found = asked(row, each)
    estimated, measured = found["estimated"], row.measured
    rates = f"estimated {estimated and round(estimated)} tokens/s"
    if measured:
        rates += f", measured {measured:.0f} with {row.each} sequences"
    if measured and estimated:
        rates += f", {estimated / measured:.3f}"
    print(
        f"{row.name:12s} {row.target:8s} {each} x {row.length:5d} a chip: {rates}; "
        f"{found['needed'] / 2**30:.1f} GiB a chip, fits: {found['fits']}; asked in {found['seconds']:.0f} s, "
        f"{found['at_once_gib']:.1f} GiB at once ({found['python_gib']:.1f} and {found['compiler_gib']:.1f})",
        flush=True,
    )
    return found


def main() -> None:
    """Print a line for each decoder, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", default="", help="text that is in the rows to be done")
    options = parser.parse_args()
    rows = []
    for row in ROWS:
        if options.only in f"{row.name} {row.target}":
            found = told(row, row.each)
            rows.append(found)
            if not found["fits"] and found["largest"]:
                rows.append(told(row, found["largest"]))
    harness.report("large_decoders", rows=rows)


if __name__ == "__main__":
    main()
