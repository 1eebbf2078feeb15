"""What the kernel of attention makes of a step on a TPU, beside XLA's attention, by the compiler's estimate.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/attention_kernel.py

The vision transformer of examples/ (256 patches) and BERT-base (512 tokens, without dropout), as a `TPUModel` in
mixed_bfloat16. No TPU runs anything: times are the compiler's estimates, and those of the kernel its products at the
peak of the matrix units. The last line is JSON.
"""

from __future__ import annotations

import sys
from typing import Any

import _bert
import harness
import keras

sys.path.insert(0, str(harness.ROOT / "examples"))
import vision_transformer


def transformer(kernel: bool) -> tuple[Any, Any]:
    """Return the example's model and batch."""
    side = vision_transformer.SIZE
    images, labels = keras.KerasTensor((1, side, side, 1), "float32"), keras.KerasTensor((1,), "int32")
    return vision_transformer.for_preflight(kernel), (images, labels)


def bert_base(kernel: bool) -> tuple[Any, Any]:
    """Return BERT-base and its batch."""
    return _bert.compiled(12, 768, 12, kernel), _bert.batch()


MODELS = {"vision transformer, 256 patches": (transformer, 128), "BERT-base, 512 tokens": (bert_base, 16)}


def main() -> None:
    """Print a line for each model and target, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--targets", nargs="+", default=["v5e-8"], help="default: v5e-8")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for target in options.targets:
        for name, (make, each) in MODELS.items():
            for attention in ("kernel", "XLA"):
                keras.utils.clear_session()
                if attention == "XLA":
                    keras.config.disable_flash_attention()  # a layer does not heed flash_attention=False
                model, batch = make(attention == "kernel")
                report = harness.preflight(model, batch, target, each)
                row = {"target": target, "model": name, "attention": attention, "each": each}
                rows.append({**row, **harness.estimate(report), "by_kernels": report.time.by_kernels})
                print(
                    f"{target:6s} {name:32s} {attention:7s} {1e3 * report.step_seconds:7.2f} ms/step, "
                    f"{report.memory.needed / harness.GIB:.2f} GiB, {100 * report.time.by_kernels:.0f} % kernels",
                    flush=True,
                )
    harness.report("attention_kernel", rows=rows)


if __name__ == "__main__":
    main()
