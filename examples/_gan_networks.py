"""The two networks of a small DCGAN, for images whose height and width four divides, and their loss."""

from __future__ import annotations

from typing import Any

import keras

NOISE = 32  # numbers that an image is made of
FILTERS = 16


def generator(shape: tuple[int, ...]) -> Any:
    """Return the network that makes images of `shape`, values from -1 to 1, of `NOISE` numbers.

    Its batch normalisation is `synchronized`: each replica alone would use the mean of its own few images.
    No layer before one has a bias, which it would take away again.
    """
    height, width, channels = shape
    return keras.Sequential(
        [
            keras.Input((NOISE,)),
            keras.layers.Dense(height // 4 * (width // 4) * 2 * FILTERS, use_bias=False),
            *_normalized(),
            keras.layers.Reshape((height // 4, width // 4, 2 * FILTERS)),
            keras.layers.Conv2DTranspose(FILTERS, 4, strides=2, padding="same", use_bias=False),
            *_normalized(),
            keras.layers.Conv2DTranspose(channels, 4, strides=2, padding="same"),
            keras.layers.Activation("tanh", dtype="float32"),
        ],
        name="generator",
    )


def discriminator(shape: tuple[int, ...], *, dropout: float) -> Any:
    """Return the network that tells images of `shape` that are real, by a positive logit, from generated ones.

    Its convolutions have no bias: TensorFlow 2.21 logs an error when it meets one before a LeakyReLU in training.
    """
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(FILTERS, 4, strides=2, padding="same", use_bias=False),
            keras.layers.LeakyReLU(0.2),
            keras.layers.Dropout(dropout),
            keras.layers.Conv2D(2 * FILTERS, 4, strides=2, padding="same", use_bias=False),
            keras.layers.LeakyReLU(0.2),
            keras.layers.Dropout(dropout),
            keras.layers.Flatten(),
            keras.layers.Dense(1, dtype="float32"),  # logits stay in float32 under a mixed policy
        ],
        name="discriminator",
    )


def cross_entropy(truth: float, logits: Any) -> Any:
    """Return the loss of each example, not reduced: the mean over all replicas is the model's to take."""
    return keras.losses.binary_crossentropy(keras.ops.full_like(logits, truth), logits, from_logits=True)


def _normalized() -> list[Any]:
    # On JAX every step sees the whole batch, and Keras knows no other batch normalisation there.
    synchronized = keras.backend.backend() != "jax"
    return [keras.layers.BatchNormalization(synchronized=synchronized), keras.layers.LeakyReLU(0.2)]
