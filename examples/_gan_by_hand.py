"""The steps of `dcgan.py` on one device, in plain Keras: what the replicas are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from _gan_networks import cross_entropy


def train(generator: Any, discriminator: Any, g_optimizer: Any, d_optimizer: Any, batches: Iterable[Any]) -> None:
    """Take one step of both networks for each batch of noise and images."""
    for noise, images in batches:
        with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
            fakes = generator(noise, training=True)
            on_real = discriminator(images, training=True)
            on_fake = discriminator(fakes, training=True)
            g_loss = tf.reduce_mean(cross_entropy(1.0, on_fake))
            d_loss = tf.reduce_mean(cross_entropy(1.0, on_real) + cross_entropy(0.0, on_fake))
        g_gradients = g_tape.gradient(g_loss, generator.trainable_variables)
        d_gradients = d_tape.gradient(d_loss, discriminator.trainable_variables)
        g_optimizer.apply(g_gradients, generator.trainable_variables)
        d_optimizer.apply(d_gradients, discriminator.trainable_variables)
