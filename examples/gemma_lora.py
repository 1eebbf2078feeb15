"""Fine-tune Gemma with LoRA, sharded over the chips of a TPU, after asking the TPU's compiler whether it fits.

The model is keras-hub's. A preset's name is the one thing to change for real weights; without it the model is small
and its weights are random, so that LoRA teaches it which letters are frequent and no more.

    pip install keras-hub
    KERAS_BACKEND=jax python examples/gemma_lora.py                  # a small Gemma with random weights
    KERAS_BACKEND=jax python examples/gemma_lora.py --preset gemma2_2b_en --precision bfloat16    # on a TPU v5e-8
    KERAS_BACKEND=jax keras-tpu-ext preflight gemma_lora:for_preflight --shard fsdp

The last line, in the folder examples/, needs no TPU. The text is Python's own documentation, which every Python has
with it. The small model reads it as bytes; a preset has its own words, and comes from Kaggle, where its licence is to
be accepted first. No TPU has run this.
"""

from __future__ import annotations

import argparse
import time
from pydoc_data.topics import topics
from typing import Any

import _command_line
import _report
import keras
import keras_hub
import numpy as np

import keras_tpu_ext as kte

BEGAN = time.perf_counter()
RANK = 4
PROMPT = "The for statement is used to"
SMALL = {
    "vocabulary_size": 256,
    "num_layers": 2,
    "num_query_heads": 8,
    "num_key_value_heads": 4,
    "hidden_dim": 64,
    "intermediate_dim": 256,
    "head_dim": 16,
}
# Gemma-2-9B, as its preset gemma2_9b_en has it.
LARGE = {
    "vocabulary_size": 256000,
    "num_layers": 42,
    "num_query_heads": 16,
    "num_key_value_heads": 8,
    "hidden_dim": 3584,
    "intermediate_dim": 28672,
    "head_dim": 256,
    "query_head_dim_normalize": True,
    "use_post_ffw_norm": True,
    "use_post_attention_norm": True,
    "final_logit_soft_cap": 30.0,
    "attention_logit_soft_cap": 50.0,
    "use_sliding_window_attention": True,
    "sliding_window_size": 4096,
}


def main() -> None:
    """Build, generate, train, generate again, report."""
    args = parse()
    scope = kte.strategy_scope(shard="fsdp", replicas=_command_line.replicas(args), precision=args.precision)
    with scope:
        keras.utils.set_random_seed(args.seed)
        model = compiled(gemma(args.preset))
    words = tokens(model)
    batch = scope.global_batch_size(args.batch_size)
    print(f"Runs on: {scope}; batches of {batch}\n", flush=True)
    before = continued(model, PROMPT)
    x, y = examples(words, args.length)
    lines = _report.EpochLines({"sparse_categorical_accuracy": "accuracy"}, epochs=args.epochs)
    history = model.fit(x, y, batch_size=batch, epochs=args.epochs, callbacks=[lines], verbose=0).history
    layout = scope.layout(model)
    rows = {
        "ran on": str(scope),
        "parameters": f"{model.count_params():,}, of which {trained(model):,} are trained",
        "on each device": f"{layout.bytes_per_device:,} bytes of {sum(row.bytes for row in layout.variables):,}",
        "loss": f"{history['loss'][0]:.3f} to {history['loss'][-1]:.3f}",
        "before": before,
        "after": continued(model, PROMPT),
        "seconds": f"{time.perf_counter() - BEGAN:.1f}",
    }
    _report.print_table("Result", rows)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = _command_line.parser("Fine-tune Gemma with LoRA, sharded over all devices.")
    parser.add_argument("--preset", help="of keras-hub, gemma2_2b_en say; default: a small model of random weights")
    parser.add_argument("--epochs", type=_command_line.positive, default=3, help="default: 3")
    parser.add_argument("--length", type=_command_line.positive, default=64, help="tokens in an example; default: 64")
    parser.add_argument("--batch-size", type=_command_line.positive, default=8, help="a replica; default: 8")
    return parser.parse_args()


def gemma(preset: str | None) -> keras.Model:
    """Return a Gemma whose attention is trained by LoRA: of a preset, or a small one."""
    if preset is not None:
        model = keras_hub.models.GemmaCausalLM.from_preset(preset)
    else:
        model = keras_hub.models.GemmaCausalLM(keras_hub.models.GemmaBackbone(**SMALL))
    model.backbone.enable_lora(RANK)
    return model


def compiled(model: keras.Model) -> keras.Model:
    """Compile a model for next words, with a rate for LoRA."""
    optimizer = keras.optimizers.AdamW(5e-4 if model.preprocessor else 1e-2)
    optimizer.exclude_from_weight_decay(var_names=["bias", "scale"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()])
    return model


def tokens(model: keras.Model) -> np.ndarray:
    """Return Python's documentation as the words of a model, or as bytes."""
    text = "\n".join(topics[name] for name in sorted(topics))
    if model.preprocessor is not None:
        return np.asarray(model.preprocessor.tokenizer(text), "int32")
    return np.frombuffer(text.encode(), "uint8")[: 2**15].astype("int32")


def examples(words: np.ndarray, length: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return sequences of words, and for each word the next one."""
    count = (len(words) - 1) // length
    x, y = (part.reshape(count, length) for part in (words[: count * length], words[1 : count * length + 1]))
    return {"token_ids": x, "padding_mask": np.ones_like(x)}, y


def continued(model: keras.Model, prompt: str, more: int = 32) -> str:
    """Return a prompt with what the model writes after it."""
    if model.preprocessor is not None:
        return str(model.generate(prompt, max_length=more + 8))
    start = np.frombuffer(prompt.encode(), "uint8").astype("int32")
    ids = np.zeros((1, len(start) + more), "int32")
    ids[0, : len(start)] = start
    given = {"token_ids": ids, "padding_mask": (np.arange(ids.shape[1]) < len(start))[None].astype("int32")}
    written = model.generate(given, stop_token_ids=None)["token_ids"][0]
    return repr(bytes(np.asarray(written, "uint8")).decode(errors="replace"))


def trained(model: keras.Model) -> int:
    """Return how many parameters are trained."""
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def for_preflight() -> tuple[keras.Model, Any]:
    """Return Gemma-2-9B and a batch, for `keras-tpu-ext preflight`: its variables take no memory there."""
    backbone = keras_hub.models.GemmaBackbone(**LARGE, dtype="bfloat16")
    backbone.enable_lora(RANK)
    model = compiled(keras_hub.models.GemmaCausalLM(backbone))
    ids = np.zeros((8, 1024), "int32")
    return model, ({"token_ids": ids, "padding_mask": ids}, ids)


if __name__ == "__main__":
    _command_line.run(main)
