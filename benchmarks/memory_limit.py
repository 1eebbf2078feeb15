"""Where ResNet-50 in float32 fills a v5e-8: what preflight says of 2048 and 4096 images, and the largest that fits.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/memory_limit.py

Nothing is kept between runs, so that the times are those of compiling. The last line is JSON.
"""

from __future__ import annotations

import dataclasses
import time

import harness
from _resnet50 import batch, compiled

import keras_tpu_ext as kte


def main() -> None:
    """Print a line for each question, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--target", default="v5e-8", help="a TPU slice (default: v5e-8)")
    options = parser.parse_args()
    rows = []
    for examples, largest in ((2048, False), (4096, False), (2048, True)):
        begun = time.perf_counter()
        report = kte.preflight(
            compiled(exact=True, policy="float32"),
            batch(),
            options.target,
            examples // 8,
            find_largest_batch=largest,
            cache_dir=False,
            progress=False,
        )
        seconds = time.perf_counter() - begun
        print(str(report).splitlines()[0])
        memory = report.memory
        if memory is None:
            raise SystemExit(str(report))
        needed = "more" if memory.needed is None else f"{memory.needed / harness.GIB:.1f}"
        share = "" if memory.temporaries is None else f", {memory.temporaries / harness.GIB:.1f} of it temporaries"
        how = "compiled" if report.largest_was_compiled else "worked out"
        print(f"  needs {needed} of {memory.available / harness.GIB:.2f} GiB a chip{share}")
        print(f"  largest batch of a chip: {report.largest_per_replica_batch} ({how}); all of it in {seconds:.0f} s")
        row = {"batch": examples, "memory": {**dataclasses.asdict(memory), "buffers": None}, "seconds": seconds}
        for key in ("ok", "largest_per_replica_batch", "largest_was_compiled", "versions"):
            row[key] = getattr(report, key)
        rows.append(row)
    harness.report("memory_limit", rows=rows)


if __name__ == "__main__":
    main()
