"""Functions of each element: one table of names, and what differs from JAX's function of that name.

Where a function has a corner, TensorFlow's gradient there is kept: at ties `maximum` has it in its first argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from keras_tpu_ext.dropin.functions.arguments import dtype, tensors

Array = Any


def absolute(x: Array) -> Array:
    """Return the absolute value, with a gradient of 0 at 0."""
    return x * lax.stop_gradient(jnp.sign(x)) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.abs(x)


def maximum(x: Array, y: Array) -> Array:
    """Return the larger one; NaN if one is."""
    return jnp.where((x >= y) | (x != x), x, y)


def minimum(x: Array, y: Array) -> Array:
    """Return the smaller one; NaN if one is."""
    return jnp.where((x <= y) | (x != x), x, y)


def clip_by_value(x: Array, low: Array, high: Array) -> Array:
    """Clip; on the bounds there is a gradient."""
    return maximum(minimum(x, high), low)


def divide_no_nan(x: Array, y: Array) -> Array:
    """Return x / y, and 0 where y is 0."""
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


@jax.custom_jvp
def _multiply_no_nan(x: Array, y: Array) -> Array:
    return jnp.where(y == 0, 0, x) * y


@_multiply_no_nan.defjvp
def _multiply_no_nan_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (x, y), (dx, dy) = primals, tangents
    return _multiply_no_nan(x, y), jnp.where(y == 0, 0, dx) * y + x * dy


def multiply_no_nan(x: Array, y: Array) -> Array:
    """Return x * y, and 0 where y is 0, even if x is NaN."""
    return _multiply_no_nan(*jnp.broadcast_arrays(x, y))


def _unless_zero(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Let `function` be 0 where x is, with a gradient of 0 there."""

    def call(x: Array, y: Array) -> Array:
        return jnp.where(x == 0, 0, function(x, jnp.where(x == 0, 1, y)))

    return call


def relu6(x: Array) -> Array:
    """Clip between 0 and 6, with no gradient on either bound."""
    return jnp.where((x > 0) & (x < 6), x, lax.stop_gradient(jnp.clip(x, 0, 6)))


def leaky_relu(x: Array, alpha: Any) -> Array:
    """Return x, or alpha x if x is not above 0."""
    return jnp.where(x > 0, x, alpha * x)


def selu(x: Array) -> Array:
    """Return the scaled ELU."""
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    return scale * jnp.where(x >= 0, x, alpha * jnp.expm1(jnp.where(x >= 0, 0, x)))


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    return jnp.logaddexp(x, jnp.zeros((), x.dtype))


def saturate_cast(x: Array, to: Any) -> Array:
    """Cast, clipping to what the dtype has."""
    to = dtype(to)
    info = jnp.iinfo(to) if jnp.issubdtype(to, jnp.integer) else jnp.finfo(to)
    return jnp.clip(x, info.min, info.max).astype(to)


def polyval(coefficients: list[Array], x: Array) -> Array:
    """Return the polynomial's value; the first coefficient is that of the highest power."""
    value = jnp.zeros_like(x)
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


_ON_TENSORS: dict[str, Callable[..., Array]] = {
    "math.abs": absolute,
    "math.acos": jnp.arccos,
    "math.acosh": jnp.arccosh,
    "math.add": jnp.add,
    "math.angle": jnp.angle,
    "math.asin": jnp.arcsin,
    "math.asinh": jnp.arcsinh,
    "math.atan": jnp.arctan,
    "math.atan2": jnp.arctan2,
    "math.atanh": jnp.arctanh,
    "math.bessel_i0": special.i0,
    "math.bessel_i0e": special.i0e,
    "math.bessel_i1": special.i1,
    "math.bessel_i1e": special.i1e,
    "math.betainc": special.betainc,
    "math.ceil": jnp.ceil,
    "math.conj": jnp.conj,
    "math.cos": jnp.cos,
    "math.cosh": jnp.cosh,
    "math.digamma": special.digamma,
    "math.divide": jnp.true_divide,
    "math.divide_no_nan": divide_no_nan,
    "math.equal": jnp.equal,
    "math.erf": special.erf,
    "math.erfc": special.erfc,
    "math.erfcinv": lambda x: special.erfinv(1 - x),
    "math.erfinv": special.erfinv,
    "math.exp": jnp.exp,
    "math.expm1": jnp.expm1,
    "math.floor": jnp.floor,
    "math.floordiv": jnp.floor_divide,
    "math.floormod": jnp.mod,
    "math.greater": jnp.greater,
    "math.greater_equal": jnp.greater_equal,
    "math.igamma": special.gammainc,
    "math.igammac": special.gammaincc,
    "math.imag": jnp.imag,
    "math.is_finite": jnp.isfinite,
    "math.is_inf": jnp.isinf,
    "math.is_nan": jnp.isnan,
    "math.less": jnp.less,
    "math.less_equal": jnp.less_equal,
    "math.lgamma": special.gammaln,
    "math.log": jnp.log,
    "math.log1p": jnp.log1p,
    "math.log_sigmoid": lambda x: -softplus(-x),
    "math.logical_and": jnp.logical_and,
    "math.logical_not": jnp.logical_not,
    "math.logical_or": jnp.logical_or,
    "math.logical_xor": jnp.logical_xor,
    "math.maximum": maximum,
    "math.minimum": minimum,
    "math.multiply": jnp.multiply,
    "math.multiply_no_nan": multiply_no_nan,
    "math.ndtri": special.ndtri,
    "math.negative": jnp.negative,
    "math.not_equal": jnp.not_equal,
    "math.polygamma": lambda n, x: special.polygamma(n.astype("int32"), x),
    "math.pow": jnp.power,
    "math.real": jnp.real,
    "math.reciprocal": jnp.reciprocal,
    "math.reciprocal_no_nan": lambda x: divide_no_nan(jnp.ones_like(x), x),
    "math.rint": jnp.round,
    "math.round": jnp.round,
    "math.rsqrt": lax.rsqrt,
    "math.scalar_mul": jnp.multiply,
    "math.sigmoid": jax.nn.sigmoid,
    "math.sign": jnp.sign,
    "math.sin": jnp.sin,
    "math.sinh": jnp.sinh,
    "math.softplus": softplus,
    "math.sqrt": jnp.sqrt,
    "math.square": jnp.square,
    "math.squared_difference": lambda x, y: jnp.square(jnp.subtract(x, y)),
    "math.subtract": jnp.subtract,
    "math.tan": jnp.tan,
    "math.tanh": jnp.tanh,
    "math.truediv": jnp.true_divide,
    "math.xdivy": _unless_zero(jnp.true_divide),
    "math.xlog1py": _unless_zero(lambda x, y: x * jnp.log1p(y)),
    "math.xlogy": _unless_zero(lambda x, y: x * jnp.log(y)),
    "math.zeta": special.zeta,
    "bitwise.bitwise_and": jnp.bitwise_and,
    "bitwise.bitwise_or": jnp.bitwise_or,
    "bitwise.bitwise_xor": jnp.bitwise_xor,
    "bitwise.invert": jnp.bitwise_not,
    "bitwise.left_shift": jnp.left_shift,
    "bitwise.right_shift": jnp.right_shift,
    "clip_by_value": clip_by_value,
    "dtypes.complex": lax.complex,
    "nn.elu": jax.nn.elu,
    "nn.leaky_relu": leaky_relu,
    "nn.relu": jax.nn.relu,
    "nn.relu6": relu6,
    "nn.selu": selu,
    "nn.silu": lambda x, beta: x * jax.nn.sigmoid(beta * x),
    "nn.softsign": jax.nn.soft_sign,
    "realdiv": jnp.true_divide,
    "truncatemod": jnp.fmod,
}


def _on_tensors(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(*values: Any) -> Array:
        return function(*tensors(*values))

    return call


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _on_tensors(function) for name, function in _ON_TENSORS.items()},
    "dtypes.saturate_cast": lambda x, to: saturate_cast(tensors(x)[0], to),
    "math.polyval": lambda coefficients, x: polyval(tensors(*coefficients), *tensors(x)),
    "nn.gelu": lambda x, approximate: jax.nn.gelu(*tensors(x), approximate),
}
