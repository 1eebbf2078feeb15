"""What preflight estimates of a decoder of 163.6 M weights, beside the rates that its authors measured on one chip.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/decoder_rates.py

Eight layers of width 1,024, 4 heads of 256 with one of keys and values, SwiGLU of 3,072, 32,768 words; a step is 16
micro-batches of 4 x 2,048 tokens and an update by AdamW, in bfloat16. Here it is of Keras's layers in
mixed_bfloat16, in `strategy_scope(for_tpu=True)`, with `gradient_accumulation_steps=16`; each micro-batch is a step
of which the update counts once in 16. Both rates were held out: no correction was fitted to them. No TPU runs
anything here. The last line is JSON; it has for each part of the model its time, and the least that its FLOPs or its
bytes take, whichever is more.
"""

from __future__ import annotations

import re

import harness
import keras
from _decoder import Size, decoder

import keras_tpu_ext as kte

SIZE = Size(layers=8, width=1024, heads=4, key_heads=1, depth=256, hidden=3072, words=32768)
LENGTH, BATCH, MICRO_BATCHES = 2048, 4, 16
# Tokens per second of a training, as its authors give them.
PUBLISHED = {"v6e-1": 433_606.0, "v5e-1": 148_829.0}
UPDATE = "(optimizer)"
PARTS = {
    "dense layers of the blocks": r"block\d/(gate|up|down|query|key|value|out)",
    "attention, rotations, residuals": r"block\d",
    "head and loss": r"head|\(loss\)",
    "a sixteenth of the update": re.escape(UPDATE),
    "embedding, normalisations, other": r".*",
}


def parts_of(report: kte.PreflightReport) -> dict[str, tuple[float, float]]:
    """Return the seconds of each part in a micro-batch, as estimated, and the least that it can take."""
    generation = kte.hardware.TPU_GENERATIONS[report.target.split("-")[0]]
    found = dict.fromkeys(PARTS, (0.0, 0.0))
    for layer in report.layers or ():
        part = next(name for name, pattern in PARTS.items() if re.fullmatch(pattern, layer.layer))
        runs = 1 / MICRO_BATCHES if layer.layer == UPDATE else 1
        least = max(layer.flops / generation.peak_bf16_flops, layer.moved_bytes / generation.hbm_bandwidth)
        least = min(layer.seconds, least)  # of bytes that are moved beside other work, some take no time
        found[part] = found[part][0] + runs * layer.seconds, found[part][1] + runs * least
    return found


def main() -> None:
    """Print a line for each slice, and where its time goes, then JSON."""
    harness.parser(__doc__).parse_args()
    rows = []
    for target, published in PUBLISHED.items():
        keras.utils.clear_session()
        with kte.strategy_scope(require="cpu", for_tpu=True):
            model = decoder(SIZE, LENGTH, remat=False, accumulation=MICRO_BATCHES)
        tokens = keras.KerasTensor((1, LENGTH), "int32")
        report = kte.preflight(model, (tokens, tokens), target, BATCH, progress=False, timeout_s=3600)
        row = harness.estimate(report)
        update = sum(layer.seconds for layer in report.layers or () if layer.layer == UPDATE)
        step = MICRO_BATCHES * (report.step_seconds - update) + update
        rate = MICRO_BATCHES * BATCH * LENGTH / step
        rows.append(
            {
                "target": target,
                **row,
                "update_seconds": update,
                "whole_step_seconds": step,
                "tokens_per_sec": rate,
                "published_tokens_per_sec": published,
                "parts": parts_of(report),
            }
        )
        print(
            f"{target}: {rate:,.0f} tokens/s estimated, {published:,.0f} published, {rate / published:.3f}; "
            f"a micro-batch {1e3 * (report.step_seconds - update):.2f} ms, the update {1e3 * update:.2f} ms",
            flush=True,
        )
        print(report, flush=True)
    harness.report("decoder_rates", rows=rows)


if __name__ == "__main__":
    main()
