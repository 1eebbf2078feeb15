"""FLOPs of a function of JAX, from its jaxpr."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from keras_tpu_ext._runtime.common.flops import LOOP, UncountableError, flops_of_sizes

# Their products are in no jaxpr, or it is not said how often they run.
_HIDDEN = (
    "pallas_call",
    "custom_call",
    "ffi_call",
    "tpu_custom_call",
    "ragged_dot",
    "cudnn",
    "dot_product_attention",
)


def flops_of_jaxpr(jaxpr: Any, wanted: list[bool] | None = None) -> float:
    """Return the FLOPs of what the outputs of a jaxpr need; of the rest nothing is ever run.

    Args:
        jaxpr: A `jax.extend.core.Jaxpr`.
        wanted: For each output whether it is; `None` for all of them.

    Raises:
        UncountableError: If that cannot be told from the jaxpr.
    """
    outputs = (
        jaxpr.outvars if wanted is None else [out for out, is_ in zip(jaxpr.outvars, wanted, strict=True) if is_]
    )
    needed = {id(variable) for variable in outputs}
    total = 0.0
    for equation in reversed(jaxpr.eqns):
        read = [id(variable) in needed for variable in equation.outvars]
        if any(read) or equation.effects:
            needed.update(id(variable) for variable in equation.invars)
            total += _flops_of(equation, read)
    return total


def _flops_of(equation: Any, read: list[bool]) -> float:
    name, parameters = equation.primitive.name, equation.params
    if name in _PRODUCTS:
        return _PRODUCTS[name](equation)
    if any(hidden in name for hidden in _HIDDEN):
        raise UncountableError(f"it has an operation whose products cannot be seen ({name})")
    if name == "cond":
        return max(flops_of_jaxpr(branch.jaxpr, read) for branch in parameters["branches"])
    if name == "scan":
        return float(parameters["length"]) * flops_of_jaxpr(parameters["jaxpr"].jaxpr)
    inner = list(_jaxprs(parameters))
    if name == "while" and any(map(flops_of_jaxpr, inner)):
        raise UncountableError(LOOP)
    return math.fsum(flops_of_jaxpr(one, read if len(one.outvars) == len(read) else None) for one in inner)


def _jaxprs(parameters: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation calls."""
    for value in jax.tree.leaves(list(parameters.values()), is_leaf=lambda value: hasattr(value, "eqns")):
        if hasattr(value, "eqns"):
            yield getattr(value, "jaxpr", value)


def _dot(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return flops_of_sizes(*out, *[left[i] for i in contracted])


def _convolution(equation: Any) -> float:
    """Return the FLOPs of a convolution, of its zeros none.

    Every number of the result is a sum over the kernel, unless the input is spread out with zeros or has a wide rim
    of them, as in the gradient of a convolution; then every number of the input goes into a sum for each tap.
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


_PRODUCTS: dict[str, Callable[[Any], float]] = {"dot_general": _dot, "conv_general_dilated": _convolution}
