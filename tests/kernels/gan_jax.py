"""The GAN of `programs.py` on JAX, where the state of a step has one optimizer: Adam, which takes each weight."""

from __future__ import annotations

import jax
from jax import numpy as jnp

from kernels.programs import TwoNetworks


class GAN(TwoNetworks):
    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile(optimizer=d_optimizer)
        self.loss_fn = loss_fn

    def call(self, images):
        return self.discriminator(images)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        images, noise = data
        g_count = len(self.generator.trainable_variables)
        g, d = trainable[:g_count], trainable[g_count:]
        zeros, ones = jnp.zeros((len(images), 1)), jnp.ones((len(images), 1))

        def d_loss(d):
            fakes, _ = self.generator.stateless_call(g, [], noise)
            scores, _ = self.discriminator.stateless_call(d, [], jnp.concatenate([fakes, images]))
            return self.loss_fn(jnp.concatenate([ones, zeros]), scores)

        def g_loss(g):
            fakes, _ = self.generator.stateless_call(g, [], noise)
            return self.loss_fn(zeros, self.discriminator.stateless_call(d, [], fakes)[0])

        d_value, d_gradients = jax.value_and_grad(d_loss)(d)
        g_value, g_gradients = jax.value_and_grad(g_loss)(g)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, [*g_gradients, *d_gradients], trainable)
        split = len(self.d_loss.variables)
        metrics = [
            *self.d_loss.stateless_update_state(metrics[:split], d_value),
            *self.g_loss.stateless_update_state(metrics[split:], g_value),
        ]
        logs = {
            "d_loss": self.d_loss.stateless_result(metrics[:split]),
            "g_loss": self.g_loss.stateless_result(metrics[split:]),
        }
        return logs, (trainable, non_trainable, optimizer, metrics)
