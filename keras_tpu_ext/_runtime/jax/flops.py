"""FLOPs of a model's training step on JAX: traced once more, from shapes, and never run.

Private names of Keras that this module leans on (tests/_runtime/test_jax_private_names.py watches them):
of `Trainer`: `compute_loss_and_updates`, which is not private and not documented either.
"""

from __future__ import annotations

from typing import Any

import jax
import keras

from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.jax.jaxpr_flops import flops_of_jaxpr
from keras_tpu_ext._runtime.jax.loop import CompiledLoop, own_variables
from keras_tpu_ext._runtime.jax.scope import distribution_of, within
from keras_tpu_ext._runtime.jax.step import TrainStep


def count_flops(model: Any, batch: Any, batch_size: int) -> FlopsCount:
    """Return the FLOPs of a step of `model`; see `common/protocols.py`.

    Of a step that is Keras's or ours the optimizer and the metrics are left out; of one of the user's own, nothing.
    """
    own = type(model).train_step not in (keras.Model.train_step, TrainStep.train_step)
    jaxpr_of = _jaxpr_of_own_step if own else _jaxpr_of_gradients
    with within(distribution_of(model) or keras.distribution.distribution()):
        flops = flops_of_jaxpr(jaxpr_of(model, batch).jaxpr)
    rows = jax.tree.leaves(batch)[0].shape[0]
    return FlopsCount(flops / rows, rows)


def _jaxpr_of_gradients(model: Any, batch: Any) -> Any:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    trainable, *rest = _state(model)

    def loss(trainable: Any, rest: Any, batch: Any) -> Any:
        non_trainable, optimizer, metrics = rest
        arguments = (trainable, non_trainable, metrics, *batch)
        loss, _ = model.compute_loss_and_updates(*arguments, training=True, optimizer_variables=optimizer)
        return loss.sum()

    def along(trainable: Any, tangents: Any, *others: Any) -> Any:
        return jax.jvp(lambda values: loss(values, *others), (trainable,), (tangents,))

    others = (rest, (x, y, sample_weight))
    try:
        # A derivative along a direction has the very products that the gradient has, none of them twice: what
        # `jax.checkpoint` computes again in a backward pass is no part of a model's FLOPs.
        return jax.make_jaxpr(along)(trainable, trainable, *others)
    except TypeError:  # a function with a gradient of its own, `jax.custom_vjp`, has no such derivative
        return jax.make_jaxpr(jax.grad(loss))(trainable, *others)


def _jaxpr_of_own_step(model: Any, batch: Any) -> Any:
    def step(state: Any, data: Any) -> Any:
        return model.train_step(state, data)

    if not isinstance(model, TrainStep):
        return jax.make_jaxpr(step)(_state(model), batch)
    own = _shapes(own_variables(model))
    return jax.make_jaxpr(lambda state, own, data: CompiledLoop(model, step).stateless(state, own, data, None))(
        _state(model), own, batch
    )


def _state(model: Any) -> tuple[Any, ...]:
    """Return the shapes of the state that Keras passes to a step."""
    optimizer = getattr(model, "optimizer", None)
    variables = (
        model.trainable_variables,
        model.non_trainable_variables,
        [] if optimizer is None else optimizer.variables,
        model.metrics_variables,
    )
    return tuple(map(_shapes, variables))


def _shapes(variables: Any) -> list[Any]:
    return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]
