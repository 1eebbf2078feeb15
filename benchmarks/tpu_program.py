"""What the TPU compiler makes of `TPUModel`'s train step beside that of plain Keras: time, memory, collectives.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/tpu_program.py
    KERAS_BACKEND=tensorflow .envs/keras3-compiler/bin/python benchmarks/tpu_program.py [--targets v3-8 v5e-8]

ResNet-50 from keras.applications, 224 x 224, mixed_bfloat16, SGD with momentum, 128 images on each core or chip, as a
`keras.Model` and as `TPUModel.from_model` of it. No TPU runs anything: times are the compiler's estimates. The last
line is JSON.
"""

from __future__ import annotations

import harness
from _resnet50 import estimated


def main() -> None:
    """Print a line for each target and model, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--targets", nargs="+", default=["v3-8", "v5e-8"], help="default: v3-8 v5e-8")
    parser.add_argument("--per-replica-batch", type=int, default=128, help="images on a core or chip (default: 128)")
    options = parser.parse_args()
    rows = []
    print("target  model      ms/step  images/s  GiB of HBM  collectives    MB  compiled in")
    for target in options.targets:
        for name, exact in (("keras", False), ("TPUModel", True)):
            row = {"model": name, **estimated(target, options.per_replica_batch, exact=exact)}
            rows.append(row)
            print(
                f"{target:7s} {name:10s} {1e3 * row['seconds']:7.1f} {row['samples_per_sec']:9,.0f} "
                f"{(row['hbm_bytes'] or 0) / harness.GIB:11.2f} {row['collectives']:12d} "
                f"{row['collective_bytes'] / 1e6:5.1f} {row['compile_seconds']:10.0f} s",
                flush=True,
            )
        stock, exact_row = rows[-2:]
        time, memory = (exact_row[key] / stock[key] for key in ("seconds", "hbm_bytes"))
        print(f"{target:7s} TPUModel / keras: time {time:.3f}, memory {memory:.3f}", flush=True)
    harness.report("tpu_program", rows=rows)


if __name__ == "__main__":
    main()
