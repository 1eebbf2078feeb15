"""The steps of `dcgan.py` on JAX: one for the model, and one by hand in plain Keras to compare it with.

On JAX a step is a function of values: those of the variables come in `state`, and the next ones are returned. The
two optimizers are not in `state`, which has room for one; a `TPUModel` carries the variables of every optimizer that
is an attribute of the model, and in the step they can be read and assigned.
"""

from __future__ import annotations

from typing import Any

import jax
import keras
from _gan_networks import cross_entropy


def train_step(gan: Any, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
    """Take one step of both networks; a mean over the batch is one over all replicas."""
    trainable, non_trainable, optimizer, metrics = state
    values = dict(zip(map(id, gan.trainable_variables), trainable, strict=True))
    kept = dict(zip(map(id, gan.non_trainable_variables), non_trainable, strict=True))
    networks = (gan.generator, gan.discriminator)
    g, d = ([values[id(variable)] for variable in network.trainable_variables] for network in networks)
    g_loss, d_loss, g_gradients, d_gradients, after = gradients(*networks, g, d, kept, data)

    for network, own, those, now in (
        (gan.generator, gan.g_optimizer, g_gradients, g),
        (gan.discriminator, gan.d_optimizer, d_gradients, d),
    ):
        now, of_optimizer = own.stateless_apply([variable.value for variable in own.variables], those, now)
        values.update(zip(map(id, network.trainable_variables), now, strict=True))
        for variable, value in zip(own.variables, of_optimizer, strict=True):
            variable.assign(value)

    pairs = list(zip(gan.metrics_variables, metrics, strict=True))
    with keras.StatelessScope(state_mapping=pairs) as scope:
        for name, loss in (("d_loss", d_loss), ("g_loss", g_loss)):
            gan.losses_so_far[name].update_state(loss)
        logs = {name: metric.result() for name, metric in gan.losses_so_far.items()}
    metrics = [scope.get_current_value(variable) for variable in gan.metrics_variables]
    trainable = [values[id(variable)] for variable in gan.trainable_variables]
    non_trainable = [after[id(variable)] for variable in gan.non_trainable_variables]
    return logs, (trainable, non_trainable, optimizer, metrics)


def gradients(generator: Any, discriminator: Any, g: Any, d: Any, kept: dict[int, Any], data: Any) -> Any:
    """Return both losses, the gradient of each for its network, and what the forward pass left.

    Args:
        generator: From noise to images.
        discriminator: From images to logits.
        g: Values of the generator's trainable variables.
        d: Values of the discriminator's.
        kept: Values of the variables that are not trainable, by the variable's `id`; empty for what they have now.
        data: Noise and images.
    """
    noise, images = data
    untrained = [v for network in (generator, discriminator) for v in network.non_trainable_variables]
    others = kept or {id(variable): variable.value for variable in untrained}

    def losses(g: Any, d: Any) -> Any:
        pairs = [
            *zip(generator.trainable_variables, g, strict=True),
            *zip(discriminator.trainable_variables, d, strict=True),
            *((variable, others[id(variable)]) for variable in untrained),
        ]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            fakes = generator(noise, training=True)
            on_real = discriminator(images, training=True)
            on_fake = discriminator(fakes, training=True)
        g_loss = keras.ops.mean(cross_entropy(1.0, on_fake))
        d_loss = keras.ops.mean(cross_entropy(1.0, on_real) + cross_entropy(0.0, on_fake))
        return g_loss, d_loss, {id(variable): scope.get_current_value(variable) for variable in untrained}

    # Both gradients are of the weights before either step.
    g_gradients = jax.grad(lambda g: losses(g, d)[0])(g)
    d_gradients = jax.grad(lambda d: losses(g, d)[1])(d)
    g_loss, d_loss, after = losses(g, d)
    return g_loss, d_loss, g_gradients, d_gradients, {**kept, **after}


def step_by_hand(generator: Any, discriminator: Any, g_optimizer: Any, d_optimizer: Any, batch: Any) -> None:
    """Take one step of both networks on one device."""
    g, d = ([variable.value for variable in network.trainable_variables] for network in (generator, discriminator))
    compiled = jax.jit(lambda g, d, batch: gradients(generator, discriminator, g, d, {}, batch))
    _, _, g_gradients, d_gradients, after = compiled(g, d, batch)
    g_optimizer.apply(g_gradients, generator.trainable_variables)
    d_optimizer.apply(d_gradients, discriminator.trainable_variables)
    for network in (generator, discriminator):
        for variable in network.non_trainable_variables:
            variable.assign(after[id(variable)])
