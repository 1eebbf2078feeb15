"""What `strategy_scope(for_tpu=True)` makes of transformers, by the TPU compiler's estimate.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/transformers.py [--only NAME ...]

Train steps in mixed_bfloat16 with Adam, of models of Keras's own layers. A model of equal layers is compiled at two
depths, and the rest extrapolated: each further layer costs what the last one does. The time to compile is that of the
deeper one. The floor is the time of the products of Keras's step alone, at the peak of the matrix units. No TPU runs
anything. The last line is JSON.

Gemma is keras-hub's, in bfloat16, and is left out where that is not installed; benchmarks/gemma_layouts.py says how.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import _bert
import harness
import keras
from keras import layers

import keras_tpu_ext as kte


class Case(NamedTuple):
    """A model of a number of equal layers.

    Attributes:
        make: Returns the compiled model with a number of layers, and a batch.
        depth: The number of layers of the model.
        compiled: The numbers of layers that are compiled: this one, or two smaller ones.
        per_replica: Examples on each chip.
        needs: A module without which the model is left out; may be empty.
    """

    make: Callable[[int], tuple[Any, Any]]
    depth: int
    compiled: tuple[int, ...]
    per_replica: int
    needs: str = ""


def bert_large(depth: int) -> tuple[Any, Any]:
    """BERT-large, 512 tokens, pre-training."""
    return _bert.compiled(depth, dropout=0.1, optimizer=keras.optimizers.Adam(1e-4)), _bert.batch()


def block(depth: int) -> tuple[Any, Any]:
    """Blocks of BERT-large, 512 tokens, without what is before and after them."""
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    inputs = x = keras.Input((512, 1024))
    for _ in range(depth):
        y = layers.Dropout(0.1)(layers.MultiHeadAttention(16, 64, dropout=0.1)(x, x))
        x = layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, y]))
        y = layers.Dropout(0.1)(layers.Dense(1024)(layers.Dense(4096, "gelu")(x)))
        x = layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, y]))
    model = kte.TPUModel(inputs, layers.Dense(2, dtype="float32")(layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.Adam(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, (keras.KerasTensor((1, 512, 1024), "float32"), keras.KerasTensor((1,), "int32"))


def long_attention(depth: int) -> tuple[Any, Any]:
    """Attention with dropout to 8,192 tokens, without anything else of a block."""
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    inputs = x = keras.Input((8192, 1024))
    for _ in range(depth):
        x = layers.Add()([x, layers.MultiHeadAttention(16, 64, dropout=0.1)(x, x)])
    model = kte.TPUModel(inputs, layers.Dense(2, dtype="float32")(layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.Adam(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, (keras.KerasTensor((1, 8192, 1024), "float32"), keras.KerasTensor((1,), "int32"))


def vit(dropout: float) -> Callable[[int], tuple[Any, Any]]:
    """ViT-B/16 at 224 x 224."""

    def make(depth: int) -> tuple[Any, Any]:
        keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
        inputs = keras.Input((224, 224, 3))
        x = layers.Reshape((196, 768))(layers.Conv2D(768, 16, 16)(inputs))
        x = layers.Dropout(dropout)(x)
        for _ in range(depth):
            y = layers.LayerNormalization(epsilon=1e-6)(x)
            y = layers.MultiHeadAttention(12, 64, dropout=dropout)(y, y)
            x = layers.Add()([x, layers.Dropout(dropout)(y)])
            y = layers.Dense(3072, "gelu")(layers.LayerNormalization(epsilon=1e-6)(x))
            y = layers.Dense(768)(layers.Dropout(dropout)(y))
            x = layers.Add()([x, layers.Dropout(dropout)(y)])
        x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
        model = kte.TPUModel(inputs, layers.Dense(1000, dtype="float32")(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-4), loss)
        return model, (keras.KerasTensor((1, 224, 224, 3), "float32"), keras.KerasTensor((1,), "int32"))

    return make


def gemma(depth: int) -> tuple[Any, Any]:
    """Gemma-2-2B of keras-hub, 1,024 tokens, of which LoRA trains the queries and values of attention.

    Of 16 GB of a v5e, its 2.6 G weights take 5.2, and two examples, without remat, most of the rest.
    """
    import gemma_layouts
    import keras_hub

    size = {**gemma_layouts.SIZE_2B, "num_layers": depth}
    ids = keras.KerasTensor((1, 1024), "int32")
    backbone = keras_hub.models.GemmaBackbone(**size, dtype="bfloat16")
    backbone.enable_lora(8)
    model = keras_hub.models.GemmaCausalLM(backbone)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, weighted_metrics=[])
    return model, ({"token_ids": ids, "padding_mask": ids}, ids)


CASES = {
    "a block of BERT-large, dropout 0.1": Case(block, 1, (1,), 16),
    "BERT-large, dropout 0.1": Case(bert_large, 24, (1, 2), 16),
    "ViT-B/16, dropout 0.1": Case(vit(0.1), 12, (1, 2), 64),
    "ViT-B/16, no dropout": Case(vit(0.0), 12, (1, 2), 64),
    "attention to 8,192 tokens, dropout 0.1": Case(long_attention, 1, (1,), 2),
    "Gemma-2-2B, LoRA": Case(gemma, 26, (2, 4), 2, needs="keras_hub"),
}
OF_DEPTH = ("seconds", "hbm_bytes", "flops")


def measured(case: Case, target: str, *, for_tpu: bool) -> dict[str, Any]:
    """Return what the compiler says of a model at its full depth."""
    rows = []
    for depth in case.compiled:
        keras.utils.clear_session()
        with kte.strategy_scope(require="cpu", for_tpu=for_tpu):
            model, batch = case.make(depth)
        report = harness.preflight(model, batch, target, case.per_replica)
        if not report.ok and report.memory is not None:
            return {"hbm_bytes": report.memory.needed, "depths": case.compiled, "versions": report.versions}
        rows.append({**harness.estimate(report), "flops": report.time.flops})
    if len(rows) == 1:
        return rows[0] | {"depths": case.compiled}
    (less, more), (first, second) = rows, case.compiled

    def at_depth(one: float, other: float) -> float:
        return one + (case.depth - first) * (other - one) / (second - first)

    whole = more | {key: at_depth(less[key], more[key]) for key in OF_DEPTH}
    whole["mfu"] = more["mfu"] * (whole["flops"] / more["flops"]) / (whole["seconds"] / more["seconds"])
    for bound in more["shares"]:
        each = at_depth(*(row["seconds"] * row["shares"][bound] for row in rows))
        whole["shares"] = whole["shares"] | {bound: each / whole["seconds"]}
    return whole | {"depths": case.compiled, "of_depths": rows}


def in_words(row: dict[str, Any]) -> str:
    """Return the time of a step, or how much of what memory there is it would need."""
    return f"{1e3 * row['seconds']:.1f} ms" if "seconds" in row else f"does not fit: {row['hbm_bytes'] / 1e9:.1f} GB"


def main() -> None:
    """Print a line for each model and target, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--targets", nargs="+", default=["v5e-1"], help="default: v5e-1")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        if CASES[name].needs and importlib.util.find_spec(CASES[name].needs) is None:
            print(f"{name}: left out, since {CASES[name].needs} is not installed", flush=True)
            continue
        for target in options.targets:
            row: dict[str, Any] = {"model": name, "target": target}
            for variant, for_tpu in (("for_tpu", True), ("stock", False)):
                row[variant] = measured(CASES[name], target, for_tpu=for_tpu)
                print(f"{name}, {target}, {variant}: {in_words(row[variant])}", flush=True)
            rows.append(row)
            ours, stock = row["for_tpu"], row["stock"]
            if "seconds" not in stock:
                continue
            time, memory, compiling = (ours[key] / stock[key] for key in ("seconds", "hbm_bytes", "compile_seconds"))
            print(
                f"{name}, {target}: time {time:.3f}, HBM {memory:.3f}, compiling {compiling:.3f}; MFU "
                f"{ours['mfu']:.3f} for {stock['mfu']:.3f}",
                flush=True,
            )
            row["floor_seconds"] = floor = stock["mfu"] * stock["seconds"]
            bounds = {bound: f"{1e3 * share * ours['seconds']:.1f}" for bound, share in ours["shares"].items()}
            print(f"{name}, {target}: floor {1e3 * floor:.1f} ms; for_tpu's ms by bound: {bounds}", flush=True)
    harness.report("transformers", rows=rows)


if __name__ == "__main__":
    main()
