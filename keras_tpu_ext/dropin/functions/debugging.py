"""Assertions, which are decided while a program is traced or not at all, and functions that call Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from keras_tpu_ext.dropin.errors import out_of_reach

Array = Any


def _of_values(name: str, is_true: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return an assertion about values, the first `count` arguments, for arrays whose values are known."""

    def call(*arguments: Any) -> None:
        values = arguments[:count]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values)):
            raise out_of_reach(
                what=f"tf.debugging.{name}",
                why="a compiled program cannot raise an error when a value is wrong",
                write="the check in the tf.data pipeline or in a callback; a TPU never ran this one: leave it out",
            )
        if not np.all(is_true(*map(np.asarray, values))):
            message = next((one for one in arguments[count:] if isinstance(one, str)), "")
            raise tf.errors.InvalidArgumentError(None, None, f"tf.debugging.{name} failed. {message}")

    return call


def _of_ranks(name: str, is_true: Callable[[int, int], bool]) -> Callable[..., Any]:
    """Return an assertion about the rank, which is always known."""

    def call(x: Any, rank: Any, message: Any) -> None:
        if not is_true(np.ndim(x), int(rank)):
            raise ValueError(f"tf.debugging.{name}: the rank is {np.ndim(x)}, expected {rank}. {message or ''}")

    return call


def _check_numerics(x: Array, message: str) -> Array:
    _of_values("check_numerics", np.isfinite, 1)(x, message)
    return x


def _call_python(*_: Any) -> Any:
    raise out_of_reach(
        what="tf.py_function and tf.numpy_function in a model",
        why="a TPU cannot call Python, and the shape of the result is not known",
        write="the function with tf or keras.ops, or the call in the tf.data pipeline",
    )


def _print(*values: Any, sep: str = " ", **_: Any) -> None:
    """Print, each time that the program runs."""
    jax.debug.print(sep.replace("{", "{{").replace("}", "}}").join("{}" for _ in values), *values)


_COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"debugging.assert_{name}": _of_values(f"assert_{name}", getattr(np, name), 2) for name in _COMPARISONS},
    "debugging.assert_non_negative": _of_values("assert_non_negative", lambda x: x >= 0, 1),
    "debugging.assert_positive": _of_values("assert_positive", lambda x: x > 0, 1),
    "debugging.assert_all_finite": _of_values("assert_all_finite", np.isfinite, 1),
    "debugging.Assert": _of_values("Assert", lambda condition: condition, 1),
    "debugging.assert_rank": _of_ranks("assert_rank", int.__eq__),
    "debugging.assert_rank_at_least": _of_ranks("assert_rank_at_least", int.__ge__),
    "debugging.check_numerics": _check_numerics,
    "print": _print,
    "py_function": _call_python,
    "numpy_function": _call_python,
}
