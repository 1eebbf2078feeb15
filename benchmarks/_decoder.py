"""A decoder as Llama's, of Keras's own layers, for benchmarks of preflight."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

import keras_tpu_ext as kte


class Size(NamedTuple):
    """The size of a decoder.

    Attributes:
        layers: Number of blocks.
        width: Size of a token's vector.
        heads: Number of heads of queries.
        key_heads: Number of heads of keys and values.
        depth: Size of a head.
        hidden: Size between the two dense layers of a block.
        words: Size of the vocabulary.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    depth: int
    hidden: int
    words: int

    @property
    def parameters(self) -> int:
        """Number of weights in matrices."""
        attention = 2 * self.width * self.depth * (self.heads + self.key_heads)
        return self.layers * (attention + 3 * self.width * self.hidden) + 2 * self.words * self.width

    def flops(self, tokens: int, length: int) -> float:
        """FLOPs of a train step as MaxText counts them: 6 a weight and token, and attention without its mask."""
        in_products = 6 * (self.parameters - self.words * self.width) * tokens
        return in_products + 12 * self.layers * self.heads * self.depth * length * tokens


# Sources: Llama 3 (arXiv:2407.21783, table 3); MaxText's configs/base.yml with a global_parameter_scale of 16 and 32.
LLAMA_8B = Size(32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_70B = Size(80, 8192, 64, 8, 128, 28672, 128256)
MAXTEXT_16B = Size(32, 4096, 64, 64, 128, 28672, 32000)
MAXTEXT_32B = Size(32, 8192, 64, 64, 128, 28672, 32000)


class Block(keras.layers.Layer):
    """Attention with rotary positions, and two dense layers with a gate.

    Source: https://arxiv.org/abs/2302.13971.
    """

    def __init__(self, size: Size, **options: Any) -> None:
        super().__init__(**options)
        policy = self.dtype_policy
        heads, keys, depth = size.heads, size.key_heads, size.depth
        self.depth = depth
        self.before = keras.layers.RMSNormalization(dtype=policy)
        self.query = keras.layers.EinsumDense("btd,dhk->bthk", (None, heads, depth), dtype=policy, name="query")
        self.key = keras.layers.EinsumDense("btd,dhk->bthk", (None, keys, depth), dtype=policy, name="key")
        self.value = keras.layers.EinsumDense("btd,dhk->bthk", (None, keys, depth), dtype=policy, name="value")
        self.out = keras.layers.EinsumDense("bthk,hkd->btd", (None, size.width), dtype=policy, name="out")
        self.between = keras.layers.RMSNormalization(dtype=policy)
        self.gate = keras.layers.Dense(size.hidden, "silu", use_bias=False, dtype=policy, name="gate")
        self.up = keras.layers.Dense(size.hidden, use_bias=False, dtype=policy, name="up")
        self.down = keras.layers.Dense(size.width, use_bias=False, dtype=policy, name="down")

    def call(self, x: Any) -> Any:
        """Return the vectors after the block."""
        normed = self.before(x)
        query, key = (rotated(part(normed), self.depth) for part in (self.query, self.key))
        x += self.out(ops.dot_product_attention(query, key, self.value(normed), is_causal=True))
        normed = self.between(x)
        return x + self.down(self.gate(normed) * self.up(normed))


def rotated(x: Any, depth: int) -> Any:
    """Return heads turned by their positions (https://arxiv.org/abs/2104.09864)."""
    rates = ops.power(500000.0, -ops.arange(0, depth, 2, dtype="float32") / depth)
    angles = ops.arange(x.shape[1], dtype="float32")[:, None] * rates
    sine, cosine = (ops.cast(part(angles)[None, :, None], x.dtype) for part in (ops.sin, ops.cos))
    first, second = ops.split(x, 2, axis=-1)
    return ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def decoder(
    size: Size, length: int, *, remat: bool = True, policy: str = "mixed_bfloat16", accumulation: int = 1
) -> keras.Model:
    """Return a compiled decoder whose blocks, with `remat`, compute their activations twice."""
    names = [f"block{i}" for i in range(size.layers)]
    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(size.words, size.width, dtype=policy, name="tokens")(tokens)
    with keras.RematScope(mode="list_of_layers" if remat else None, layer_names=names):
        blocks = [Block(size, name=name, dtype=policy) for name in names]
    for block in blocks:
        x = block(x)
    x = keras.layers.RMSNormalization(dtype=policy)(x)
    logits = keras.layers.Dense(size.words, use_bias=False, dtype=policy, name="head")(x)
    model = kte.TPUModel(tokens, logits, name="decoder")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss, gradient_accumulation_steps=accumulation)
    return model
