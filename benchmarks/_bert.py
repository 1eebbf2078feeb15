"""The BERT that benchmarks of preflight compile, of Keras's own layers."""

from __future__ import annotations

from typing import Any

import keras

import keras_tpu_ext as kte

TOKENS, PREDICTIONS, VOCABULARY = 512, 76, 30522


class Embeddings(keras.layers.Layer):
    """Tokens, positions and segments as vectors, and the vectors of tokens as the weights of the output."""

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tokens = keras.layers.Embedding(VOCABULARY, width, name="tokens", dtype=self.dtype_policy)
        self.positions = keras.layers.Embedding(TOKENS, width, name="positions", dtype=self.dtype_policy)
        self.segments = keras.layers.Embedding(2, width, name="segments", dtype=self.dtype_policy)
        self.width = width

    def build(self, shape: Any) -> None:
        """Build the three tables."""
        for table in (self.tokens, self.positions, self.segments):
            table.build(shape)

    def call(self, tokens: Any, segments: Any) -> Any:
        """Return the sum of the three."""
        return self.tokens(tokens) + self.positions(keras.ops.arange(TOKENS)) + self.segments(segments)

    def logits(self, x: Any) -> Any:
        """Return the logits of all words."""
        return keras.ops.matmul(x, keras.ops.transpose(keras.ops.cast(self.tokens.embeddings, x.dtype)))


class Bert(keras.Model):
    """BERT for pre-training: masked words and the next sentence.

    Source: https://arxiv.org/abs/1810.04805; its dropout is `dropout=0.1`.
    """

    def __init__(
        self, layers: int, width: int, heads: int, flash_attention: bool | None, dropout: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)

        def dropped(x: Any) -> Any:
            return keras.layers.Dropout(dropout)(x) if dropout else x

        self.embeddings = Embeddings(width, name="embeddings")
        self.first = keras.layers.LayerNormalization(epsilon=1e-12, name="norm")
        tokens = keras.Input((TOKENS, width))
        x = tokens
        for i in range(layers):
            attention = keras.layers.MultiHeadAttention(
                heads, width // heads, dropout=dropout, flash_attention=flash_attention, name=f"attention{i}"
            )
            x = keras.layers.LayerNormalization(epsilon=1e-12)(x + dropped(attention(x, x)))
            hidden = keras.layers.Dense(4 * width, "gelu", name=f"wide{i}")(x)
            x = keras.layers.LayerNormalization(epsilon=1e-12)(
                x + dropped(keras.layers.Dense(width, name=f"narrow{i}")(hidden))
            )
        self.encoder = keras.Model(tokens, x, name="encoder")
        self.transform = keras.layers.Dense(width, "gelu", name="transform")
        self.last = keras.layers.LayerNormalization(epsilon=1e-12, name="last")
        self.pooler = keras.layers.Dense(width, "tanh", name="pooler")
        self.next_sentence = keras.layers.Dense(2, name="next", dtype="float32")
        self.words = keras.layers.Activation("linear", dtype="float32", name="words")

    def call(self, inputs: dict[str, Any], training: bool | None = None) -> dict[str, Any]:
        """Return the logits of masked words and of whether a sentence follows."""
        # Without `training` among the arguments, Keras would not tell the layers of it, and nothing be dropped.
        x = self.encoder(self.first(self.embeddings(inputs["tokens"], inputs["segments"])), training=training)
        places = keras.ops.one_hot(inputs["places"], TOKENS, dtype=x.dtype)
        masked = self.last(self.transform(keras.ops.matmul(places, x)))
        return {
            "words": self.words(self.embeddings.logits(masked)),
            "next": self.next_sentence(self.pooler(x[:, 0])),
        }


class TpuBert(kte.TPUModel, Bert):
    """`Bert` with the exact step."""


def compiled(
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    flash_attention: bool | None = None,
    *,
    dropout: float = 0.0,
    optimizer: Any = None,
) -> Any:
    """Return a BERT in mixed_bfloat16 with LAMB, by default the large one."""
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    model = TpuBert(layers, width, heads, flash_attention, dropout)
    losses = {
        name: keras.losses.SparseCategoricalCrossentropy(from_logits=True, name=name) for name in ("words", "next")
    }
    model.compile(optimizer or keras.optimizers.Lamb(1e-3), losses)
    return model


def batch() -> tuple[Any, Any]:
    """Return what an example and its targets are like."""
    ids = keras.KerasTensor((1, TOKENS), "int32")
    places = keras.KerasTensor((1, PREDICTIONS), "int32")
    return (
        {"tokens": ids, "segments": ids, "places": places},
        {"words": places, "next": keras.KerasTensor((1,), "int32")},
    )
