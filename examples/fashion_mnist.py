"""Train a small image classifier on all the devices there are, or on eight rehearsed replicas.

    python examples/fashion_mnist.py                             # scikit-learn's digits: nothing to download
    python examples/fashion_mnist.py --dataset fashion_mnist     # Fashion-MNIST through keras.datasets
    python examples/fashion_mnist.py --data DIR                  # files in a folder: --help says which

It prints what ran where, how fast, and whether the replicas took the steps that one device takes.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the first import of TensorFlow

import _command_line
import _data
import _parity
import _report
import keras
import numpy as np

import keras_tpu_ext as kte

BEGAN = time.perf_counter()
FEW = 1_000  # with fewer images than this, shifted and mirrored copies are worth their time
COPIES = 7


def main() -> None:
    """Load, build, train, report."""
    args = parse()
    data = _data.load_images(args.dataset, args.data)
    epochs = args.epochs or data.epochs
    print(f"Data: {data}")
    images, labels = training_set(data, args.seed)

    # The scope comes first: virtual devices cannot be added once anything, even a seed, has made a tensor.
    with kte.strategy_scope(replicas=_command_line.replicas(args), precision=args.precision) as scope:
        keras.utils.set_random_seed(args.seed)
        model = kte.TPUModel.from_model(network(data.train[0].shape[1:]))
        model.compile("adam", loss(), metrics=["accuracy"])
    batch = scope.global_batch_size(args.batch_size)
    print(f"Runs on: {scope}; batches of {batch}, {args.batch_size} on each replica\n", flush=True)

    lines = _report.EpochLines({"accuracy": "accuracy", "val_accuracy": "test accuracy"}, epochs=epochs)
    fit_began = time.perf_counter()
    history = model.fit(
        images,
        labels,
        batch_size=batch,
        epochs=epochs,
        validation_data=data.test,  # only watched: nothing is chosen by it
        validation_freq=_report.some_epochs(epochs),
        callbacks=[kte.callbacks.Throughput(), lines],
        verbose=0,
    ).history
    report(args, data, scope, model, history, time.perf_counter() - fit_began)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = _command_line.parser(
        "Train a small image classifier. --data DIR holds fashion-mnist-sprite.png (900 tiles of Fashion-MNIST) "
        "or MNIST's t10k files (mnist-t10k-images-idx3-ubyte.gz and -labels-idx1-ubyte.gz)."
    )
    parser.add_argument(
        "--dataset",
        choices=("auto", "digits", "fashion_mnist", "mnist"),
        default="auto",
        help="default: what DIR holds, Fashion-MNIST before MNIST; without DIR, scikit-learn's digits",
    )
    parser.add_argument("--epochs", type=_command_line.positive, help="default: 5 to 40, fewer for more images")
    parser.add_argument(
        "--batch-size", type=_command_line.positive, default=8, help="images on each replica; default: 8"
    )
    return parser.parse_args()


def network(shape: tuple[int, ...]) -> keras.Model:
    """Return the published network: one convolution, pooling, one dense layer."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(64, 3),
            keras.layers.MaxPooling2D(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, dtype="float32"),  # logits stay in float32 under a mixed policy
        ]
    )


def loss() -> keras.losses.Loss:
    """Return the loss for logits: the network has no softmax."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def for_preflight() -> kte.TPUModel:
    """Return the model for `keras-tpu-ext preflight fashion_mnist:for_preflight --target v5e-8 --batch-size 1024`."""
    with kte.precision.policy_scope("mixed_bfloat16"):
        model = kte.TPUModel.from_model(network((28, 28, 1)))
    model.compile("adam", loss(), metrics=["accuracy"])
    return model


def training_set(data: _data.Data, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the images to train on, each in several positions where there are only few."""
    images, labels = data.train
    if len(labels) >= FEW:
        return images, labels
    print(f"There are few: each is also shown in {COPIES} other positions, by up to 2 pixels, half of them mirrored")
    return _data.with_shifted_copies(images, labels, copies=COPIES, seed=seed)


def report(
    args: argparse.Namespace, data: _data.Data, scope: kte.Scope, model: Any, history: dict, fit_seconds: float
) -> None:
    """Compare with one device, draw the picture and print the table."""
    batch = scope.global_batch_size(args.batch_size)
    predicted = np.argmax(model.predict(data.test[0], batch_size=batch, verbose=0), axis=-1)
    some = _parity.some_batches(data.train, batch)
    difference = _parity.update_difference(
        lambda: network(data.train[0].shape[1:]), loss, scope, *some, batch_size=batch
    )
    path = _report.save(picture(data, history, predicted, scope), args.output, "fashion_mnist.png")
    rows = {
        "data": str(data),
        "ran on": str(scope),
        "global batch": f"{batch}, {args.batch_size} on each replica",
        "epochs": str(len(history["loss"])),
        "test accuracy": f"{np.mean(predicted == data.test[1]):.4f}",
        "seconds": f"{fit_seconds:.1f} to train, {time.perf_counter() - BEGAN:.1f} in all",
        "throughput": f"{_report.samples_per_second(history):,.0f} samples/s",
        "parity": _parity.in_words(difference, scope),
        "picture": str(path),
    }
    _report.print_table("Result", rows)


def picture(data: _data.Data, history: dict, predicted: np.ndarray, scope: kte.Scope) -> Any:
    """Draw test images with the answers, and accuracy and throughput over the epochs."""
    accuracy = np.mean(predicted == data.test[1])
    figure, left, right = _report.new_picture(f"{data.name}: test accuracy {accuracy:.3f}", str(scope))
    _report.draw_examples(left, data, predicted)
    curves, rates = right.subplots(2, 1)
    shown = {"accuracy": ("training", _report.BLUE), "val_accuracy": ("test", _report.ORANGE)}
    _report.draw_curves(curves, history, shown)
    _report.draw_throughput(rates, history)
    return figure


if __name__ == "__main__":
    _command_line.run(main)
