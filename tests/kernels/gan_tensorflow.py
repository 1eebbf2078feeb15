"""The GAN of `programs.py` on TensorFlow, with a step as programs for one device write it."""

from __future__ import annotations

import tensorflow as tf

from kernels.programs import TwoNetworks


class GAN(TwoNetworks):
    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, data):
        images, noise = data
        rows = tf.shape(images)[0]
        both = tf.concat([self.generator(noise), images], axis=0)
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        variables = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, variables), variables, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros((rows, 1)), self.discriminator(self.generator(noise)))
        variables = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, variables), variables, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}
