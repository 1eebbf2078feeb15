"""Count the FLOPs of a train step on JAX: traced once more, from shapes, and never run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import keras

from keras_tpu_ext._runtime.common.flops import LOOP, FlopsCount, UncountableError, flops_of_sizes
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.jax.batch import number_of_rows
from keras_tpu_ext._runtime.jax.loop import stateless
from keras_tpu_ext._runtime.jax.program import TrainStep
from keras_tpu_ext._runtime.jax.scope import distribution_of, use_distribution
from keras_tpu_ext._runtime.jax.update import own_variables, state_variables

_Shapes = list[jax.ShapeDtypeStruct]


def count_flops(model: keras.Model, batch: Nest, batch_size: int) -> FlopsCount:
    """Count the FLOPs of a train step of `model`; see `training/protocols.py`.

    For Keras's step and ours, the optimizer and the metrics are left out; for a user's own step, everything counts.
    """
    own = type(model).train_step not in (keras.Model.train_step, TrainStep.train_step)
    jaxpr_of = _jaxpr_of_own_step if own else _jaxpr_of_gradients
    with use_distribution(distribution_of(model) or keras.distribution.distribution()):
        flops = flops_of_jaxpr(jaxpr_of(model, batch).jaxpr)
    rows = number_of_rows(batch)
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
    step = functools.partial(stateless, model, model.train_step, None)
    return jax.make_jaxpr(step)(_state(model), _shapes(own_variables(model)), batch, None)


def _state(model: keras.Model) -> tuple[_Shapes, ...]:
    """Return the shapes of the state that Keras passes to a train step."""
    return tuple(map(_shapes, state_variables(model)))


def _shapes(variables: Sequence[keras.Variable]) -> _Shapes:
    return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]


# Their products are in no jaxpr, or the jaxpr does not say how often they run.
_HIDDEN = ("pallas_call", "custom_call", "ffi_call", "ragged_dot", "cudnn", "dot_product_attention")


def flops_of_jaxpr(jaxpr: jax.extend.core.Jaxpr, used_outputs: list[bool] | None = None) -> float:
    """Count the FLOPs that the used outputs of a jaxpr need, by default all; XLA removes the rest as dead code."""
    used_outputs = [True] * len(jaxpr.outvars) if used_outputs is None else used_outputs
    needed = {id(output) for output, used in zip(jaxpr.outvars, used_outputs, strict=True) if used}
    total = 0.0
    for equation in reversed(jaxpr.eqns):
        used = [id(variable) in needed for variable in equation.outvars]
        if any(used) or equation.effects:
            needed.update(id(variable) for variable in equation.invars)
            total += _flops_of(equation, used)
    return total


def _flops_of(equation: jax.extend.core.JaxprEqn, used: list[bool]) -> float:
    name, parameters = equation.primitive.name, equation.params
    if name in _PRODUCTS:
        return _PRODUCTS[name](equation)
    if any(hidden in name for hidden in _HIDDEN):
        raise UncountableError(f"it has an operation whose products cannot be seen ({name})")
    if name == "cond":
        return max(flops_of_jaxpr(branch.jaxpr, used) for branch in parameters["branches"])
    if name == "scan":
        return float(parameters["length"]) * flops_of_jaxpr(parameters["jaxpr"].jaxpr)
    inner = list(jaxprs_of(parameters))
    if name == "while" and any(map(flops_of_jaxpr, inner)):
        raise UncountableError(LOOP)
    return math.fsum(flops_of_jaxpr(one, used if len(one.outvars) == len(used) else None) for one in inner)


def jaxprs_of(parameters: Mapping[str, object]) -> Iterator[jax.extend.core.Jaxpr]:
    """Yield the jaxprs among the parameters of an equation."""
    for value in jax.tree.leaves(list(parameters.values()), is_leaf=lambda value: hasattr(value, "eqns")):
        if hasattr(value, "eqns"):
            yield getattr(value, "jaxpr", value)


def _dot(equation: jax.extend.core.JaxprEqn) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return flops_of_sizes(*out, *[left[i] for i in contracted])


def _convolution(equation: jax.extend.core.JaxprEqn) -> float:
    """Count the FLOPs of a convolution, without products with the zeros of dilation and padding.

    Each element of the output is a sum over the kernel. Where the input is dilated or widely padded, as in the
    gradient of a convolution, fewer products are left: one for each element of the input and each tap.
    """
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    left, kernel = (variable.aval.shape for variable in equation.invars)
    taps = [kernel[i] for i in numbers.rhs_spec[2:]]
    outputs, inputs = kernel[numbers.rhs_spec[0]], kernel[numbers.rhs_spec[1]]
    by_result = flops_of_sizes(*equation.outvars[0].aval.shape, *taps, inputs)
    if parameters["batch_group_count"] > 1:
        return by_result
    return min(by_result, flops_of_sizes(*left, *taps, outputs // parameters["feature_group_count"]))


_PRODUCTS: dict[str, Callable[[jax.extend.core.JaxprEqn], float]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
}
