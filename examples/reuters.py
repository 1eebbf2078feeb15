"""Train a text classifier on Reuters newswires, on all the devices there are or on eight rehearsed replicas.

    python examples/reuters.py                 # through keras.datasets
    python examples/reuters.py --data DIR      # DIR holds reuters.npz

The code this comes from was published with a softmax at the end of the network and a loss with
`from_logits=True`, which applies softmax once more. A softmax of a softmax is almost flat, the gradient nearly
vanishes, and training accuracy stays at 0.61 after ten epochs. Keras 3 on TensorFlow notices in float32, warns
and repairs it; under `mixed_bfloat16` it does not notice. `kte.TPUModel.compile` warns in either case.
Here the network ends in logits, the loss expects logits, and it learns.
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
WORDS = 10_000  # the most frequent words; the others become "unknown"
LENGTH = 300
AS_PUBLISHED = 0.61  # training accuracy with the softmax left in


def main() -> None:
    """Load, build, train, report."""
    args = parse()
    data = _data.load_reuters(args.data, words=WORDS, length=LENGTH)
    epochs = args.epochs or data.epochs
    print(f"Data: {data}")

    # The scope comes first: virtual devices cannot be added once anything, even a seed, has made a tensor.
    with kte.strategy_scope(replicas=_command_line.replicas(args), precision=args.precision) as scope:
        keras.utils.set_random_seed(args.seed)
        model = kte.TPUModel.from_model(network())
        model.compile("nadam", loss(), metrics=["accuracy", top_5()])
    print(f"Runs on: {scope}; batches of {args.batch_size} over all replicas\n", flush=True)

    shown = {"accuracy": "accuracy", "val_accuracy": "validation accuracy", "val_top_5": "top 5"}
    fit_began = time.perf_counter()
    history = model.fit(
        *data.train,
        batch_size=args.batch_size,
        epochs=epochs,
        validation_data=data.test,
        validation_freq=_report.some_epochs(epochs),
        callbacks=[kte.callbacks.Throughput(), _report.EpochLines(shown, epochs=epochs)],
        verbose=0,
    ).history
    report(args, data, scope, model, history, time.perf_counter() - fit_began)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = _command_line.parser("Train a text classifier. --data DIR holds reuters.npz, as Keras publishes it.")
    parser.add_argument("--epochs", type=_command_line.positive, help="default: 10")
    parser.add_argument(
        "--batch-size", type=_command_line.positive, default=32, help="texts over all replicas; default: 32"
    )
    return parser.parse_args()


def network() -> keras.Model:
    """Return the published network, but for the softmax at its end."""
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, 7),
            keras.layers.Conv1D(64, 5, activation="relu"),
            keras.layers.MaxPooling1D(),
            keras.layers.Conv1D(32, 3, activation="relu"),
            keras.layers.MaxPooling1D(),
            keras.layers.Flatten(),
            keras.layers.Dense(46, dtype="float32"),  # logits stay in float32 under a mixed policy
        ]
    )


def loss() -> keras.losses.Loss:
    """Return the loss for logits: the network has no softmax."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def for_preflight() -> kte.TPUModel:
    """Return the model for `keras-tpu-ext preflight reuters:for_preflight --target v5e-8 --batch-size 1024`."""
    with kte.precision.policy_scope("mixed_bfloat16"):
        model = kte.TPUModel.from_model(network())
    model.compile("nadam", loss(), metrics=["accuracy", top_5()])
    return model


def top_5() -> keras.metrics.Metric:
    """Return how often the topic is among the five most likely."""
    return keras.metrics.SparseTopKCategoricalAccuracy(5, name="top_5")


def report(
    args: argparse.Namespace, data: _data.Data, scope: kte.Scope, model: Any, history: dict, fit_seconds: float
) -> None:
    """Compare with one device, draw the picture and print the table."""
    batch = args.batch_size
    predicted = np.argmax(model.predict(data.test[0], batch_size=batch, verbose=0), axis=-1)
    some = _parity.some_batches(data.train, batch)
    difference = _parity.update_difference(network, loss, scope, *some, batch_size=batch)
    path = _report.save(picture(data, history, predicted, scope), args.output, "reuters.png")
    rows = {
        "data": str(data),
        "ran on": str(scope),
        "global batch": f"{batch} over all replicas",
        "epochs": str(len(history["loss"])),
        **accuracies(history),
        "seconds": f"{fit_seconds:.1f} to train, {time.perf_counter() - BEGAN:.1f} in all",
        "throughput": f"{_report.samples_per_second(history):,.0f} samples/s",
        "parity": _parity.in_words(difference, scope),
        "picture": str(path),
    }
    _report.print_table("Result", rows)


def accuracies(history: dict) -> dict[str, str]:
    """Return the rows of the table that say how well it learned."""
    on_validation = history["val_accuracy"]
    best = int(np.argmax(on_validation))
    epoch = _report.some_epochs(len(history["loss"]))[best]
    return {
        "train accuracy": f"{history['accuracy'][-1]:.4f} (as published: {AS_PUBLISHED} after 10 epochs)",
        "val accuracy": f"{on_validation[-1]:.4f}, top 5 {history['val_top_5'][-1]:.4f}, after the last epoch",
        "best val": f"{on_validation[best]:.4f} after epoch {epoch}, which these same texts chose",
    }


def picture(data: _data.Data, history: dict, predicted: np.ndarray, scope: kte.Scope) -> Any:
    """Draw the share of right answers for each topic, and accuracy and throughput over the epochs."""
    best = max(history["val_accuracy"])
    title = f"{data.name}: accuracy {history['accuracy'][-1]:.2f} in training, at best {best:.2f} in validation"
    figure, left, right = _report.new_picture(title, str(scope))
    _report.draw_classes(left.subplots(), data, predicted, most=20)
    curves, rates = right.subplots(2, 1)
    shown = {
        "accuracy": ("training", _report.BLUE),
        "val_accuracy": ("validation", _report.ORANGE),
        "val_top_5": ("validation, top 5", _report.GREEN),
    }
    _report.draw_curves(curves, history, shown, levels={"training, as published": AS_PUBLISHED})
    _report.draw_throughput(rates, history)
    return figure


if __name__ == "__main__":
    _command_line.run(main)
