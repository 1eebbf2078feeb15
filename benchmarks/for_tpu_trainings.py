"""Whether a model learns the same with `strategy_scope(for_tpu=True)`: trainings to the end, on real data, by seed.

    KERAS_BACKEND=jax python benchmarks/for_tpu_trainings.py FOLDER [--seeds 5]

FOLDER has the MNIST test set and Reuters, as keras.datasets has them. A vision transformer learns the images, and a
GPT the next word, both with dropout 0.1. Each seed is trained plainly and for a TPU, from the same weights, on the
same batches; only dropout draws other numbers. The difference of validation losses is compared with their spread over
seeds. The last line is JSON.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import keras
import numpy as np
from keras import layers

import keras_tpu_ext as kte

WORDS, TOKENS = 2000, 64


def digits(folder: Path) -> tuple[Any, ...]:
    """8,000 images of digits and their labels, and 2,000 to validate with."""
    with gzip.open(folder / "mnist-t10k-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), "uint8", offset=16).reshape(-1, 28, 28, 1) / np.float32(255)
    with gzip.open(folder / "mnist-t10k-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), "uint8", offset=8).astype("int32")
    return x[:8000], y[:8000], (x[8000:], y[8000:])


def news(folder: Path) -> tuple[Any, ...]:
    """4,000 pieces of 64 words of news and the words that follow, and 1,000 to validate with."""
    texts = np.load(folder / "reuters.npz", allow_pickle=True)["x"]
    words = np.concatenate([np.asarray(text) for text in texts])
    words = np.where(words < WORDS, words, 0).astype("int32")[: 5000 * (TOKENS + 1)].reshape(5000, TOKENS + 1)
    x, y = words[:, :-1], words[:, 1:]
    return x[:4000], y[:4000], (x[4000:], y[4000:])


def blocks(x: Any, width: int, count: int, *, causal: bool) -> Any:
    """The blocks of a transformer, with normalization first."""
    for _ in range(count):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y, use_causal_mask=causal)
        x = x + layers.Dropout(0.1)(y)
        y = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(width)(y))
    return layers.LayerNormalization()(x)


class Positions(layers.Layer):
    """Adds a vector of its own to each position."""

    def build(self, shape: Any) -> None:
        """Make the vectors."""
        self.vectors = self.add_weight(shape=shape[1:], initializer="uniform")

    def call(self, x: Any) -> Any:
        """Return the sums."""
        return x + self.vectors


def vit() -> keras.Model:
    """A vision transformer: 49 patches, 4 blocks of width 64."""
    inputs = keras.Input((28, 28, 1))
    x = layers.Reshape((49, 64))(layers.Conv2D(64, 4, 4)(inputs))
    x = blocks(Positions()(x), 64, 4, causal=False)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def gpt() -> keras.Model:
    """A GPT: 64 words of 2,000, 3 blocks of width 96."""
    inputs = keras.Input((TOKENS,), dtype="int32")
    x = layers.Dropout(0.1)(Positions()(layers.Embedding(WORDS, 96)(inputs)))
    return keras.Model(inputs, layers.Dense(WORDS)(blocks(x, 96, 3, causal=True)))


CASES: dict[str, tuple[Callable[[], keras.Model], Callable[[Path], tuple[Any, ...]], int]] = {
    "ViT, MNIST": (vit, digits, 4),
    "GPT, Reuters": (gpt, news, 4),
}


def trained(
    make: Callable[[], keras.Model], data: tuple[Any, ...], epochs: int, seed: int, *, for_tpu: bool
) -> float:
    """Return the validation loss at the end of a training."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    x, y, validation = data
    with kte.strategy_scope(require="cpu", for_tpu=for_tpu):
        model = make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss)
    history = model.fit(x, y, batch_size=64, epochs=epochs, validation_data=validation, verbose=0)
    return float(history.history["val_loss"][-1])


def main() -> None:
    """Print a line for each model, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5, help="default: 5")
    options = parser.parse_args()
    rows = []
    for name, (make, data, epochs) in CASES.items():
        loaded = data(options.folder)
        losses: dict[str, list[float]] = {"plain": [], "for_tpu": []}
        for seed in range(options.seeds):
            for variant, found in losses.items():
                found.append(trained(make, loaded, epochs, seed, for_tpu=variant == "for_tpu"))
            print(
                f"{name}, seed {seed}: {losses['plain'][-1]:.4f}, {losses['for_tpu'][-1]:.4f} for a TPU", flush=True
            )
        plain, ours = (np.array(found) for found in losses.values())
        row = {
            **losses,
            "difference": float(np.mean(ours - plain)),
            "spread": float(np.std(plain, ddof=1)),
            "standard_error": float(np.std(ours - plain, ddof=1) / np.sqrt(len(plain))),
        }
        rows.append({"model": name, "epochs": epochs, **row})
        print(
            f"{name}: validation loss {plain.mean():.4f}, {ours.mean():.4f} for a TPU; difference "
            f"{row['difference']:+.4f} with a standard error of {row['standard_error']:.4f}; spread over seeds "
            f"{row['spread']:.4f}",
            flush=True,
        )
    harness.report("for_tpu_trainings", rows=rows)


if __name__ == "__main__":
    main()
