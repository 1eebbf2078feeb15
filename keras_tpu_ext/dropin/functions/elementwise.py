"""Functions of each element: where a function has a corner, TensorFlow's gradient there is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special
from keras import ops

Array = Any


def absolute(x: Array) -> Array:
    """Return the absolute value, with a gradient of 0 at 0."""
    return x * lax.stop_gradient(jnp.sign(x)) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.abs(x)


def maximum(x: Array, y: Array) -> Array:
    """Return the larger one, the first at a tie; NaN if one is."""
    return jnp.where((x >= y) | (x != x), x, y)


def minimum(x: Array, y: Array) -> Array:
    """Return the smaller one, the first at a tie; NaN if one is."""
    return jnp.where((x <= y) | (x != x), x, y)


def _multiply_no_nan(x: Array, y: Array) -> Array:
    slope = lax.stop_gradient(jnp.where((y == 0) & jnp.isfinite(x), x, 0))  # that of y where it is 0
    return jnp.where(y == 0, 0, x) * y + (y - lax.stop_gradient(y)) * slope


def _unless_zero(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Let `function` be 0 where x is, with a gradient of 0 there."""
    return lambda x, y: jnp.where(x == 0, 0, function(x, jnp.where(x == 0, 1, y)))


def _relu6(x: Array) -> Array:
    return jnp.where((x > 0) & (x < 6), x, lax.stop_gradient(jnp.clip(x, 0, 6)))


def _selu(x: Array) -> Array:
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    return scale * jnp.where(x >= 0, x, alpha * jnp.expm1(jnp.where(x >= 0, 0, x)))


# Those of `tf.math` that have the same name in jax.numpy.
_SAME = """add angle ceil conj cos cosh divide equal exp expm1 floor greater greater_equal imag less less_equal log
    log1p logical_and logical_not logical_or logical_xor multiply negative not_equal real reciprocal rint round sign
    sin sinh sqrt square subtract tan tanh"""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"math.{name}": getattr(jnp, name) for name in _SAME.split()},
    **{f"math.a{name}": getattr(jnp, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    **{f"math.{name}": getattr(special, name) for name in ("digamma", "erf", "erfc", "erfinv")},
    **{f"math.is_{name}": getattr(jnp, f"is{name}") for name in ("finite", "inf", "nan")},
    "math.abs": absolute,
    "math.divide_no_nan": ops.divide_no_nan,
    "math.floordiv": jnp.floor_divide,
    "math.floormod": jnp.mod,
    "math.lgamma": special.gammaln,
    "math.log_sigmoid": jax.nn.log_sigmoid,
    "math.maximum": maximum,
    "math.minimum": minimum,
    "math.multiply_no_nan": _multiply_no_nan,
    "math.pow": jnp.power,
    "math.reciprocal_no_nan": lambda x: ops.divide_no_nan(jnp.ones_like(x), x),
    "math.rsqrt": lax.rsqrt,
    "math.scalar_mul": jnp.multiply,
    "math.sigmoid": jax.nn.sigmoid,
    "math.softplus": jax.nn.softplus,
    "math.squared_difference": lambda x, y: jnp.square(jnp.subtract(x, y)),
    "math.truediv": jnp.true_divide,
    "math.xdivy": _unless_zero(jnp.true_divide),
    "math.xlog1py": _unless_zero(lambda x, y: x * jnp.log1p(y)),
    "math.xlogy": _unless_zero(lambda x, y: x * jnp.log(y)),
    "clip_by_value": lambda x, low, high: maximum(minimum(x, high), low),  # on the bounds there is a gradient
    "dtypes.complex": lax.complex,
    "nn.elu": jax.nn.elu,
    "nn.gelu": jax.nn.gelu,
    "nn.leaky_relu": lambda x, alpha: jnp.where(x > 0, x, alpha * x),
    "nn.relu": jax.nn.relu,
    "nn.relu6": _relu6,
    "nn.selu": _selu,
    "nn.silu": lambda x, beta: x * jax.nn.sigmoid(beta * x),
    "nn.softsign": jax.nn.soft_sign,
}
