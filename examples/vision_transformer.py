"""Train a small vision transformer, and take its steps once more on the paths that Keras takes on a TPU.

    KERAS_BACKEND=jax python examples/vision_transformer.py               # scikit-learn's digits: nothing to download
    KERAS_BACKEND=jax python examples/vision_transformer.py --data DIR    # files in a folder: --help says which

An image is 256 patches, a length at which Keras gives attention on a TPU to a kernel. Stock Keras 3.15 computes
something else there than on a CPU, and does not compile for several chips; docs/tpus.md says more.
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import Any

import _command_line
import _data
import _parity
import _report
import keras
import numpy as np

import keras_tpu_ext as kte

BEGAN = time.perf_counter()
SIZE, PATCH = 32, 2
DEPTH, HEADS, BLOCKS = 48, 3, 2


def main() -> None:
    """Load, build, train, compare, report."""
    args = parse()
    data = _data.load_images(args.dataset, args.data)
    images, labels = enlarged(data.train[0]), data.train[1]
    print(f"Data: {data}")
    with kte.strategy_scope(replicas=_command_line.replicas(args), precision=args.precision) as scope:
        keras.utils.set_random_seed(args.seed)
        model = network()
        model.compile(keras.optimizers.Adam(1e-3), loss(), metrics=["accuracy"])
    batch = scope.global_batch_size(args.batch_size)
    print(f"Runs on: {scope}; batches of {batch}, {args.batch_size} on each replica\n", flush=True)
    lines = _report.EpochLines({"accuracy": "accuracy"}, epochs=args.epochs)
    history = model.fit(
        images,
        labels,
        batch_size=batch,
        epochs=args.epochs,
        callbacks=[kte.callbacks.Throughput(), lines],
        verbose=0,
    ).history
    predicted = np.argmax(model.predict(enlarged(data.test[0]), batch_size=batch, verbose=0), axis=-1)
    rows = {
        "data": str(data),
        "ran on": str(scope),
        "test accuracy": f"{np.mean(predicted == data.test[1]):.4f}",
        "throughput": f"{_report.samples_per_second(history):,.0f} samples/s",
        **differences(scope, images[:40], labels[:40]),
        "seconds": f"{time.perf_counter() - BEGAN:.1f}",
    }
    _report.print_table("Result", rows)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = _command_line.parser("Train a small vision transformer, and compare with the paths of a TPU.")
    parser.add_argument("--dataset", choices=("auto", "digits", "fashion_mnist", "mnist"), default="auto")
    parser.add_argument("--epochs", type=_command_line.positive, default=5, help="default: 5")
    parser.add_argument("--batch-size", type=_command_line.positive, default=8, help="a replica; default: 8")
    return parser.parse_args()


class Positions(keras.layers.Layer):
    """Adds a learned vector to each patch."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the vectors."""
        self.vectors = self.add_weight(shape=shape[1:], initializer="random_normal", name="vectors")

    def call(self, x: Any) -> Any:
        """Add them."""
        return x + self.vectors


def network(flash_attention: bool | None = None) -> keras.Model:
    """Return the transformer, of Keras's own layers: norm before attention and before the dense layers.

    Args:
        flash_attention: As in Keras; `True` takes the kernel on a TPU where it would not pay, too.
    """
    inputs = keras.Input((SIZE, SIZE, 1))
    x = keras.layers.Conv2D(DEPTH, PATCH, PATCH, name="patches")(inputs)
    x = Positions(name="positions")(keras.layers.Reshape((-1, DEPTH))(x))
    for i in range(BLOCKS):
        normed = keras.layers.LayerNormalization()(x)
        attention = keras.layers.MultiHeadAttention(
            HEADS, DEPTH // HEADS, flash_attention=flash_attention, name=f"attention{i}"
        )
        x = keras.layers.Add()([x, attention(normed, normed)])
        hidden = keras.layers.Dense(2 * DEPTH, "gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(DEPTH)(hidden)])
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.Model(inputs, keras.layers.Dense(10, dtype="float32")(x), name="vision_transformer")


def loss() -> keras.losses.Loss:
    """Return the loss for logits: the network has no softmax."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def for_preflight(flash_attention: bool | None = True) -> keras.Model:
    """Return the model for `keras-tpu-ext preflight vision_transformer:for_preflight --batch-size 1024`."""
    with kte.precision.policy_scope("mixed_bfloat16"):
        model = kte.TPUModel.from_model(network(flash_attention))
    model.compile("adam", loss(), metrics=["accuracy"])
    return model


def enlarged(images: np.ndarray) -> np.ndarray:
    """Return images of 32 by 32 pixels: pixels repeated as often as they fit, and zeros around them."""
    images = images.repeat(SIZE // images.shape[1], axis=1).repeat(SIZE // images.shape[2], axis=2)
    rows, columns = (SIZE - images.shape[1]), (SIZE - images.shape[2])
    around = ((0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2), (0, 0))
    return np.pad(images, around)


def differences(scope: kte.Scope, x: np.ndarray, y: np.ndarray) -> dict[str, str]:
    """Compare three steps on one device with those of replicas, on a TPU's paths too where Keras has such."""
    with_kernel = functools.partial(network, flash_attention=True)
    found = _parity.update_difference(network, loss, scope, x, y, batch_size=16)
    rows = {"parity": _parity.in_words(found, scope)}
    if keras.backend.backend() != "jax" or scope.hardware.kind != "cpu":
        return rows
    for replicas in (1, 2, scope.num_replicas):
        few = kte.strategy_scope(replicas=replicas, require="cpu")
        found = _parity.update_difference(network, loss, few, x, y, batch_size=16, as_on_tpu=with_kernel)
        rows[f"as on {replicas} chip{'s' * (replicas > 1)}"] = _parity.in_words(found, few)
    return rows


if __name__ == "__main__":
    _command_line.run(main)
