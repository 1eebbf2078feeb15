"""The steps of `dcgan.py` on TensorFlow: one for the model, and one by hand in plain Keras to compare it with."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from _gan_networks import cross_entropy


def train_step(gan: Any, data: Any) -> dict[str, Any]:
    """Take one step of both networks from one forward pass, as the tutorial does."""
    noise, images = data
    with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
        fakes = gan.generator(noise, training=True)
        on_real = gan.discriminator(images, training=True)
        on_fake = gan.discriminator(fakes, training=True)
        g_loss = gan.global_mean(cross_entropy(1.0, on_fake))
        d_loss = gan.global_mean(cross_entropy(1.0, on_real) + cross_entropy(0.0, on_fake))
    # The tapes hold what the forward pass has read, so the second step does not see the first one's update.
    gan.minimize(g_loss, gan.generator.trainable_variables, gan.g_optimizer, g_tape)
    gan.minimize(d_loss, gan.discriminator.trainable_variables, gan.d_optimizer, d_tape)
    for name, loss in (("d_loss", d_loss), ("g_loss", g_loss)):
        gan.losses_so_far[name].update_state(loss)
    return {name: metric.result() for name, metric in gan.losses_so_far.items()}


def step_by_hand(generator: Any, discriminator: Any, g_optimizer: Any, d_optimizer: Any, batch: Any) -> None:
    """Take one step of both networks on one device."""
    noise, images = batch
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
