"""From gradients to updated weights on JAX: accumulate, unscale, check, clip, apply; all of it without side effects.

A gradient of the loss of a global batch is that of all devices; JAX has summed it before anyone sees it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from keras_tpu_ext._runtime.jax.state import choose, stateless
from keras_tpu_ext._runtime.keras3.optimizer_view import innermost, optimizer_view


class Weights(NamedTuple):
    """Values of variables.

    Attributes:
        trainable: Of the trainable variables.
        non_trainable: Of the model's others.
        optimizer: Of the optimizer's.
    """

    trainable: Any
    non_trainable: Any
    optimizer: Any


def accumulate_or_apply(model: Any, gradients: Any, weights: Weights, non_trainable: Any, examples: Any) -> Weights:
    """Take a step, or add the gradients to the window of steps; return the values after it.

    Args:
        model: The model; its `_step_state` holds the scale and the window.
        gradients: Of the scaled loss, one a trainable variable.
        weights: The values before the step.
        non_trainable: Values of the non-trainable variables after the forward pass.
        examples: Number of examples in the batch: what its gradient counts for in a window.
    """
    state, optimizer = model._step_state, model.optimizer
    if state.watch is not None:
        state.watch.note(gradients)
    if state.loss_scale is not None:
        gradients = [gradient / state.scale.value.astype(gradient.dtype) for gradient in gradients]
    window = state.window(optimizer)
    if window is None:
        after, finite = _step(state, optimizer, gradients, weights)
        if finite is not None:
            non_trainable = choose(finite, non_trainable, weights.non_trainable)
        return after._replace(non_trainable=non_trainable)
    window.add(gradients, examples)
    return flush(model, weights._replace(non_trainable=non_trainable), window.position.value >= window.steps)


def flush(model: Any, weights: Weights, condition: Any = True) -> Weights:
    """Take the step of a window where `condition` holds, and start a new one."""
    state, optimizer = model._step_state, model.optimizer
    window = state.window(optimizer)
    variables = state.own_variables()
    gradients, values = window.means(), [variable.value for variable in variables]

    def take() -> Any:
        taken: list[Weights] = []
        after = stateless(lambda: taken.append(_step(state, optimizer, gradients, weights)[0]), variables, values)
        return taken[0], after

    weights, values = jax.lax.cond(condition, take, lambda: (weights, values))
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    window.empty_if(condition)
    return weights


def _step(state: Any, optimizer: Any, gradients: Any, weights: Weights) -> tuple[Weights, Any]:
    """Return the values after a step and, where the loss was scaled, whether it was taken."""

    def apply() -> Weights:
        values, trainable = weights.optimizer, weights.trainable
        trainable, values = _applied(optimizer, values, gradients, trainable)
        return Weights(trainable, weights.non_trainable, values)

    if state.loss_scale is None:
        return apply(), None
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(gradient)) for gradient in gradients]))
    state.note(finite)
    return jax.lax.cond(finite, apply, lambda: weights), finite


def _applied(optimizer: Any, values: Any, gradients: Any, trainable: Any) -> tuple[Any, Any]:
    """Return what Keras's `stateless_apply` does, by an optimizer that does not accumulate by itself."""
    inner = innermost(optimizer)
    others = (inner.gradient_accumulation_steps or 1) - 1
    if not others:
        return optimizer.stateless_apply(values, gradients, trainable)
    # It counts batches, and its learning rate schedule goes by them.
    place = next(i for i, variable in enumerate(optimizer.variables) if variable is inner._iterations)
    before = values[place]
    values = [value + others if i == place else value for i, value in enumerate(values)]
    trainable, after = optimizer_view(optimizer).stateless_apply(values, gradients, trainable)
    # Loss scaling may have skipped the step, and then it does not count at all.
    skipped = after[place] == values[place]
    after = [jnp.where(skipped, before, value) if i == place else value for i, value in enumerate(after)]
    return trainable, after
