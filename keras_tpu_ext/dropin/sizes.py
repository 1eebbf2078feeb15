"""The sizes of tensors, as `tf.shape` gives them: numbers wherever a trace knows them.

TensorFlow computes sizes as tensors; on JAX shapes are static. A function that is being traced sees numbers, or JAX's
own symbols while Keras infers a shape (`Sizes`). A functional model that is being built sees none: an `OpenSize` says
of which `KerasTensor` and axis the size is, and each call of the model looks it up.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import tensorflow as tf

from keras_tpu_ext.dropin.errors import out_of_reach

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": lambda a, b: jax.core.max_dim(a, b),
    "min": lambda a, b: jax.core.min_dim(a, b),
}


class OpenSize:
    """A size that a functional model looks up at each call.

    Args:
        formula: What to compute, in lists, strings, numbers and `KerasTensor`s, as a saved model keeps it:
            `["size", tensor, axis]` or `[operator, left, right]`.
    """

    def __init__(self, formula: list[Any]) -> None:
        self.formula = formula

    def __repr__(self) -> str:
        return f"<size that the data decide: {self.formula}>"

    def __bool__(self) -> bool:
        raise out_of_reach(
            what="a condition on tf.shape(x) of an open size",
            why="the model is built before the size is known",
            write="keras.Input with this size, or a keras.layers.Layer whose call() asks x.shape",
        )

    def __neg__(self) -> OpenSize:
        return OpenSize(["*", self.formula, -1])


def _method(symbol: str, *, reverse: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, OpenSize)):
            try:
                other = operator.index(other)
            except TypeError:
                return NotImplemented
        sides = [_formula_of(other), self.formula] if reverse else [self.formula, _formula_of(other)]
        return OpenSize([symbol, *sides])

    return method


def _formula_of(size: Any) -> Any:
    return size.formula if isinstance(size, OpenSize) else size


def value_of(formula: Any) -> Any:
    """Return the size that a formula says; its tensors have values now."""
    if not isinstance(formula, (list, tuple)):
        return formula
    symbol, left, right = formula
    if symbol == "size":
        return left.shape[right]
    if symbol not in _OPERATORS:
        raise ValueError(f"a size is computed by one of {', '.join(_OPERATORS)}, not by {symbol!r}")
    return _OPERATORS[symbol](value_of(left), value_of(right))


class Sizes(tuple[Any, ...]):
    """A vector of sizes: numbers, symbols of JAX or `OpenSize`s. Operators work on each, as on a tensor."""

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the vector."""
        return tf.TensorShape([len(self)])

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return Sizes(found) if isinstance(key, slice) else found

    def numpy(self) -> Any:
        """Return the sizes as a NumPy array."""
        return tf.constant(list(self)).numpy()

    def as_list(self) -> list[Any]:
        """Return the sizes as a list."""
        return list(self)


def _each(function: Callable[[Any, Any], Any], *, reverse: bool) -> Callable[[Any, Any], Any]:
    def method(self: Sequence[Any], other: Any) -> Any:
        others = list(other) if hasattr(other, "__len__") else [other] * len(self)
        return Sizes(function(b, a) if reverse else function(a, b) for a, b in zip(self, others, strict=True))

    return method


for _symbol, _name in {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}.items():
    for _prefix in ("", "r"):
        _reverse = bool(_prefix)
        setattr(OpenSize, f"__{_prefix}{_name}__", _method(_symbol, reverse=_reverse))
        setattr(Sizes, f"__{_prefix}{_name}__", _each(_OPERATORS[_symbol], reverse=_reverse))


def sizes_of(value: Any) -> Sizes:
    """Return the sizes of a tensor; those of a `KerasTensor` that are open become `OpenSize`s."""
    if not isinstance(value, keras.KerasTensor):
        return Sizes(value.shape)
    return Sizes(OpenSize(["size", value, i]) if n is None else n for i, n in enumerate(value.shape))


def is_size(value: object) -> bool:
    """Return whether this is a size without a number, or a vector of sizes."""
    return isinstance(value, (OpenSize, Sizes)) or jax.export.is_symbolic_dim(value)


def _cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    return x if tf.as_dtype(dtype).is_integer else NotImplemented


def _concat(values: Sequence[Any], axis: int = 0, name: str | None = None) -> Any:
    return Sizes(size for value in values for size in _numbers(value) or [])


def _stack(values: Sequence[Any], axis: int = 0, name: str | None = None) -> Any:
    return Sizes(values) if all(_numbers(value) is None for value in values) else NotImplemented


def _numbers(value: Any) -> list[Any] | None:
    """Return the elements of a vector; `None` for a single size."""
    if isinstance(value, (tuple, list)):
        return list(value)
    return [int(one) for one in value] if getattr(value, "ndim", 0) == 1 else None


def _gather(params: Any, indices: Any, *others: Any, **options: Any) -> Any:
    chosen = _numbers(indices)
    return params[int(indices)] if chosen is None else Sizes(params[i] for i in chosen)


def _same(value: Any, *others: Any, **options: Any) -> Any:
    return value


# TensorFlow's functions on sizes alone: their results are sizes again, so that shapes stay static.
ON_SIZES: dict[str, Callable[..., Any]] = {
    "cast": _cast,
    "concat": _concat,
    "stack": _stack,
    "unstack": lambda value, num=None, axis=0, name=None: list(value),
    "gather": _gather,
    "convert_to_tensor": _same,
    "identity": _same,
    "math.reduce_prod": lambda input_tensor, axis=None, keepdims=False, name=None: math.prod(input_tensor),
    "math.add": lambda x, y, name=None: x + y,
    "__operators__.add": lambda x, y, name=None: x + y,
    "math.subtract": lambda x, y, name=None: x - y,
    "math.multiply": lambda x, y, name=None: x * y,
    "math.floordiv": lambda x, y, name=None: x // y,
    "floor_div": lambda x, y, name=None: x // y,
    "math.floormod": lambda x, y, name=None: x % y,
    "math.maximum": lambda x, y, name=None: _extreme("max", x, y),
    "math.minimum": lambda x, y, name=None: _extreme("min", x, y),
}


def _extreme(which: str, x: Any, y: Any) -> Any:
    if isinstance(x, OpenSize) or isinstance(y, OpenSize):
        return OpenSize([which, _formula_of(x), _formula_of(y)])
    return _OPERATORS[which](x, y)
