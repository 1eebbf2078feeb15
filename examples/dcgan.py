"""Train a DCGAN: a train_step of one's own, two optimizers, all the devices there are or eight rehearsed replicas.

    python examples/dcgan.py                   # scikit-learn's digits, 8x8: nothing to download
    python examples/dcgan.py --data DIR        # MNIST: DIR holds its t10k files, --help says which

It is TensorFlow's DCGAN, smaller, with the loss of TensorFlow's tutorial on distributed training: per-example
losses, summed over all replicas and divided by the size of the *global* batch. That is what `global_mean` does,
and it counts the examples that there are: a constant would give a short last batch too little weight.
At the end some steps are taken once more, without dropout, on the replicas and by hand on one device, the last one
with a batch that leaves half of the replicas empty; both networks are compared.
"""

from __future__ import annotations

import argparse
import importlib
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
from _gan_networks import NOISE, discriminator, generator

import keras_tpu_ext as kte

BEGAN = time.perf_counter()
STEPS = importlib.import_module(f"_gan_{keras.backend.backend()}")  # the one thing that frameworks do not share
PICTURES = (5, 8)  # rows and columns of generated images
GUESSING = float(np.log(2))  # the cross-entropy of somebody who always says fifty-fifty


@keras.saving.register_keras_serializable("examples")
class GAN(kte.TPUModel):
    """A generator and a discriminator, trained against each other.

    Args:
        generator: From noise to images from -1 to 1.
        discriminator: From images to one logit: positive where it takes them for real.
    """

    def __init__(self, generator: Any, discriminator: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.generator, self.discriminator = generator, discriminator
        self.losses_so_far = {name: keras.metrics.Mean(name) for name in ("d_loss", "g_loss")}
        self.built = True

    def call(self, noise: Any, training: bool | None = None) -> Any:
        """Return images made of noise."""
        return self.generator(noise, training=training)

    def compile(self, d_optimizer: Any, g_optimizer: Any, **options: Any) -> None:
        """Take two optimizers, made inside the scope, and what `TPUModel.compile` takes."""
        super().compile(**options)
        self.optimizer = None  # Keras has chosen one, for all weights, which no step here takes
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        d_optimizer.build(self.discriminator.trainable_variables)
        g_optimizer.build(self.generator.trainable_variables)

    train_step = STEPS.train_step

    def get_config(self) -> dict[str, Any]:
        """Return both networks, for a `.keras` file."""
        return keras.saving.serialize_keras_object(
            {"generator": self.generator, "discriminator": self.discriminator, "name": self.name}
        )

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> GAN:
        """Make the model that `get_config` describes."""
        return cls(**keras.saving.deserialize_keras_object(config, custom_objects=custom_objects))

    def get_compile_config(self) -> dict[str, Any]:
        """Return what `compile` was given: Keras cannot know the arguments of a `compile` of one's own."""
        optimizers = {"d_optimizer": self.d_optimizer, "g_optimizer": self.g_optimizer}
        return keras.saving.serialize_keras_object(optimizers)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile as when the model was saved."""
        self.compile(**keras.saving.deserialize_keras_object(config))


def adam() -> Any:
    """Return an optimizer; each network has its own."""
    return keras.optimizers.Adam(1e-3, beta_1=0.5)


def for_preflight() -> tuple[GAN, tuple[np.ndarray, np.ndarray]]:
    """Return model and batch for `keras-tpu-ext preflight dcgan:for_preflight --target v5e-8 --batch-size 1024`."""
    shape = (28, 28, 1)
    with kte.precision.policy_scope("mixed_bfloat16"):
        model = GAN(generator(shape), discriminator(shape, dropout=0.3), name="dcgan")
    model.compile(adam(), adam())
    return model, (np.zeros((64, NOISE), "float32"), np.zeros((64, *shape), "float32"))


def main() -> None:
    """Load, build, train, report."""
    args = parse()
    data = _data.load_images("digits" if args.data is None else "mnist", args.data)
    images = data.train[0] * 2 - 1
    epochs = args.epochs or (24 if args.data is None else 3)
    print(f"Data: {data}")

    # The scope comes first: virtual devices cannot be added once anything, even a seed, has made a tensor.
    with kte.strategy_scope(replicas=_command_line.replicas(args), precision=args.precision) as scope:
        keras.utils.set_random_seed(args.seed)
        model = GAN(generator(images.shape[1:]), discriminator(images.shape[1:], dropout=args.dropout))
        model.compile(adam(), adam())
    batch = scope.global_batch_size(args.batch_size)
    print(f"Runs on: {scope}; batches of {batch}, {args.batch_size} on each replica\n", flush=True)

    lines = _report.EpochLines({"d_loss": "discriminator loss", "g_loss": "generator loss"}, epochs=epochs)
    fit_began = time.perf_counter()
    history = model.fit(
        WithNoise(images, batch, args.seed),
        epochs=epochs,
        shuffle=False,  # the dataset does it
        callbacks=[kte.callbacks.Throughput(batch_size=batch), lines],
        verbose=0,
    ).history
    report(args, data, scope, model, history, time.perf_counter() - fit_began)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = _command_line.parser(
        "Train a DCGAN. --data DIR holds MNIST's t10k files (mnist-t10k-images-idx3-ubyte.gz and "
        "-labels-idx1-ubyte.gz); without it, scikit-learn's digits are taken."
    )
    parser.add_argument("--epochs", type=_command_line.positive, help="default: 3 for MNIST, 24 for the digits")
    parser.add_argument(
        "--batch-size", type=_command_line.positive, default=8, help="images on each replica; default: 8"
    )
    parser.add_argument(
        "--dropout", type=float, default=0.3, help="in the discriminator; default: 0.3, and 0 to compare replicas"
    )
    return parser.parse_args()


class WithNoise(keras.utils.PyDataset):
    """Batches of noise and images, in another order and with new noise in each epoch.

    The noise belongs to the example and comes with the data. Drawn in `train_step` it would be another one on
    every replica, and no other number of replicas could take the same steps.

    Args:
        images: Real images.
        batch: Number of images in a batch.
        seed: Of order and noise.
    """

    def __init__(self, images: np.ndarray, batch: int, seed: int) -> None:
        super().__init__()
        self.images, self.batch = images, batch
        self.random = np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self.images) // self.batch)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one batch."""
        rows = self.order[index * self.batch : (index + 1) * self.batch]
        return self.noise[rows], self.images[rows]

    def on_epoch_end(self) -> None:
        """Shuffle, and draw new noise."""
        self.order = self.random.permutation(len(self.images))
        self.noise = self.random.normal(size=(len(self.images), NOISE)).astype("float32")


def report(
    args: argparse.Namespace, data: _data.Data, scope: kte.Scope, model: Any, history: dict, fit_seconds: float
) -> None:
    """Compare with one device, draw the picture and print the table."""
    batch = scope.global_batch_size(args.batch_size)
    noise = np.random.default_rng(args.seed).normal(size=(PICTURES[0] * PICTURES[1], NOISE)).astype("float32")
    made = model.predict(noise, verbose=0)
    difference = update_difference(data.train[0] * 2 - 1, scope, batch, args.seed)
    path = _report.save(picture(data, history, made, scope), args.output, "dcgan.png")
    rows = {
        "data": str(data),
        "ran on": str(scope),
        "global batch": f"{batch}, {args.batch_size} on each replica",
        "epochs": str(len(history["d_loss"])),
        "discriminator loss": f"{history['d_loss'][-1]:.3f} ({2 * GUESSING:.3f} is guessing)",
        "generator loss": f"{history['g_loss'][-1]:.3f} ({GUESSING:.3f} against a guessing discriminator)",
        "seconds": f"{fit_seconds:.1f} to train, {time.perf_counter() - BEGAN:.1f} in all",
        "throughput": f"{_report.samples_per_second(history):,.0f} samples/s",
        "parity": _parity.in_words(difference, scope),
        "picture": str(path),
    }
    _report.print_table("Result", rows)


def update_difference(images: np.ndarray, scope: kte.Scope, batch: int, seed: int) -> float:
    """Return ||w_N - w_1|| / ||w_1 - w_0|| of the network for which it is greater, as `_parity` does.

    The batches are two full ones and one of half an example for each replica.
    """
    shape, few = images.shape[1:], images[: 2 * batch + (scope.num_replicas + 1) // 2]
    with _parity.same_precision(scope):
        one = [generator(shape), discriminator(shape, dropout=0)]
    start = [network.get_weights() for network in one]
    noise = np.random.default_rng(seed).normal(size=(len(few), NOISE)).astype("float32")
    optimizers = adam(), adam()
    for first in range(0, len(few), batch):
        rows = slice(first, first + batch)
        STEPS.step_by_hand(*one, *optimizers, (noise[rows], few[rows]))
    with scope:
        model = GAN(generator(shape), discriminator(shape, dropout=0))
        model.compile(adam(), adam())
    many = [model.generator, model.discriminator]
    for network, weights in zip(many, start, strict=True):
        network.set_weights(weights)
    model.fit(noise, few, batch_size=batch, verbose=0, shuffle=False)
    return max(
        _parity.distance(n.get_weights(), o.get_weights()) / _parity.distance(o.get_weights(), weights)
        for n, o, weights in zip(many, one, start, strict=True)
    )


def picture(data: _data.Data, history: dict, made: np.ndarray, scope: kte.Scope) -> Any:
    """Draw generated and real images, and losses and throughput over the epochs."""
    epochs = len(history["d_loss"])
    title = f"DCGAN on {data.name}, {epochs} epoch{'' if epochs == 1 else 's'}"
    figure, left, right = _report.new_picture(title, str(scope))
    top, bottom = left.subfigures(2, 1, height_ratios=(PICTURES[0], 1.25))
    _report.draw_images(top, made, "Made of noise by the generator", *PICTURES)
    _report.draw_images(bottom, data.train[0], "Real ones", 1, PICTURES[1])
    curves, rates = right.subplots(2, 1)
    shown = {"d_loss": ("discriminator", _report.BLUE), "g_loss": ("generator", _report.ORANGE)}
    levels = {"where the discriminator can only guess": 2 * GUESSING, "": GUESSING}
    _report.draw_curves(curves, history, shown, levels=levels, what="cross-entropy", legend="center right")
    _report.draw_throughput(rates, history)
    return figure


if __name__ == "__main__":
    _command_line.run(main)
