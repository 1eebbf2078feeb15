"""Assertions, which are decided while a program is traced or not at all, and functions that call Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import numbers, tensor

Array = Any


def _of_values(name: str, is_true: Callable[..., Any]) -> Callable[..., Any]:
    """Return an assertion about values, for arrays whose values are known."""

    def call(*arguments: Any) -> None:
        values = [value for value in arguments if not isinstance(value, str) and value is not None]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values)):
            raise out_of_reach(
                what=f"tf.debugging.{name}",
                why="a compiled program cannot raise an error when a value is wrong",
                write="the check in the tf.data pipeline or in a callback; a TPU never ran this one: leave it out",
            )
        if not np.all(is_true(*values)):
            message = next((value for value in arguments if isinstance(value, str)), "")
            raise tf.errors.InvalidArgumentError(None, None, f"tf.debugging.{name} failed. {message}")

    return call


def _of_shapes(name: str, is_true: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    """Return an assertion about rank or dtype, which are always known."""

    def call(x: Any, expected: Any, message: Any) -> None:
        if not is_true(tensor(x), expected):
            array = tensor(x)
            raise ValueError(f"tf.debugging.{name}: {array.dtype}{array.shape}, expected {expected}. {message or ''}")

    return call


def _is_near(x: Any, y: Any, *tolerances: Any) -> Any:
    return np.isclose(x, y, *tolerances) if tolerances else np.isclose(x, y, 1e-5, 1e-6)


def call_python(*_: Any) -> Any:
    """Tell that functions of Python and NumPy cannot be part of a compiled program."""
    raise out_of_reach(
        what="tf.py_function and tf.numpy_function in a model",
        why="a TPU cannot call Python, and the shape of the result is not known",
        write="the function with tf or keras.ops, or the call in the tf.data pipeline",
    )


def _print(*values: Any, sep: str = " ", **_: Any) -> None:
    """Print, each time that the program runs."""
    jax.debug.print(sep.replace("{", "{{").replace("}", "}}").join("{}" for _ in values), *values)


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "assert_equal": np.equal,
    "assert_none_equal": np.not_equal,
    "assert_greater": np.greater,
    "assert_greater_equal": np.greater_equal,
    "assert_less": np.less,
    "assert_less_equal": np.less_equal,
    "assert_near": _is_near,
    "assert_negative": lambda x: np.asarray(x) < 0,
    "assert_non_negative": lambda x: np.asarray(x) >= 0,
    "assert_positive": lambda x: np.asarray(x) > 0,
    "assert_non_positive": lambda x: np.asarray(x) <= 0,
    "assert_all_finite": lambda x: np.isfinite(np.asarray(x)),
    "Assert": lambda condition, *data: np.asarray(condition),
}
_SHAPES: dict[str, Callable[[Any, Any], bool]] = {
    "assert_rank": lambda x, rank: x.ndim == numbers(rank)[0],
    "assert_rank_at_least": lambda x, rank: x.ndim >= numbers(rank)[0],
    "assert_rank_in": lambda x, ranks: x.ndim in numbers(ranks),
    "assert_type": lambda x, to: jnp.dtype(x.dtype) == jax.dtypes.canonicalize_dtype(tf.as_dtype(to).as_numpy_dtype),
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"debugging.{name}": _of_values(name, is_true) for name, is_true in _COMPARISONS.items()},
    **{f"debugging.{name}": _of_shapes(name, is_true) for name, is_true in _SHAPES.items()},
    "debugging.check_numerics": lambda x, message: (
        _of_values("check_numerics", _COMPARISONS["assert_all_finite"])(x) or tensor(x)
    ),
    "print": _print,
    "py_function": call_python,
    "numpy_function": call_python,
}
