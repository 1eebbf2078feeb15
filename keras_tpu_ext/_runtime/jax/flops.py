"""Count the FLOPs of a train step on JAX: traced once more, from shapes, and never run."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import keras

from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.jax.jaxpr_flops import flops_of_jaxpr
from keras_tpu_ext._runtime.jax.loop import CompiledLoop, own_variables
from keras_tpu_ext._runtime.jax.scope import distribution_of, use_distribution
from keras_tpu_ext._runtime.jax.step import TrainStep

_Shapes = list[jax.ShapeDtypeStruct]


def count_flops(model: keras.Model, batch: Nest, batch_size: int) -> FlopsCount:
    """Count the FLOPs of a train step of `model`; see `common/protocols.py`.

    For Keras's step and ours, the optimizer and the metrics are left out; for a user's own step, everything counts.
    """
    own = type(model).train_step not in (keras.Model.train_step, TrainStep.train_step)
    jaxpr_of = _jaxpr_of_own_step if own else _jaxpr_of_gradients
    with use_distribution(distribution_of(model) or keras.distribution.distribution()):
        flops = flops_of_jaxpr(jaxpr_of(model, batch).jaxpr)
    rows = jax.tree.leaves(batch)[0].shape[0]
    return FlopsCount(flops / rows, rows)


def _jaxpr_of_gradients(model: keras.Model, batch: Nest) -> jax.extend.core.ClosedJaxpr:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    trainable, *rest = _state(model)

    def loss(trainable: Nest, rest: tuple[Nest, ...], batch: tuple[Nest, ...]) -> jax.Array:
        non_trainable, optimizer, metrics = rest
        arguments = (trainable, non_trainable, metrics, *batch)
        loss, _ = model.compute_loss_and_updates(*arguments, training=True, optimizer_variables=optimizer)
        return loss.sum()

    def jvp(trainable: Nest, tangents: Nest, *others: tuple[Nest, ...]) -> tuple[jax.Array, jax.Array]:
        return jax.jvp(lambda values: loss(values, *others), (trainable,), (tangents,))

    others = (rest, (x, y, sample_weight))
    try:
        # A JVP has the products of the gradient, each of them once: what `jax.checkpoint` computes again in a
        # backward pass is not part of a model's FLOPs.
        return jax.make_jaxpr(jvp)(trainable, trainable, *others)
    except TypeError:  # `jax.custom_vjp` has no JVP
        return jax.make_jaxpr(jax.grad(loss))(trainable, *others)


def _jaxpr_of_own_step(model: keras.Model, batch: Nest) -> jax.extend.core.ClosedJaxpr:
    if not isinstance(model, TrainStep):
        return jax.make_jaxpr(model.train_step)(_state(model), batch)
    step = CompiledLoop(model, model.train_step, is_lowered=True).stateless
    return jax.make_jaxpr(step)(_state(model), _shapes(own_variables(model)), batch, None)


def _state(model: keras.Model) -> tuple[_Shapes, ...]:
    """Return the shapes of the state that Keras passes to a train step."""
    optimizer = getattr(model, "optimizer", None)
    variables = (
        model.trainable_variables,
        model.non_trainable_variables,
        [] if optimizer is None else optimizer.variables,
        model.metrics_variables,
    )
    return tuple(map(_shapes, variables))


def _shapes(variables: Sequence[keras.Variable]) -> _Shapes:
    return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]
