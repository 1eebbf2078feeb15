"""Control flow of TensorFlow on JAX values, `tf.function` and gradients of the user's own.

These functions ask no dispatcher. They are replaced by argument: on TensorFlow's tensors they are what they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import keras
import tensorflow as tf
from jax import numpy as jnp
from keras import tree

from keras_tpu_ext.dropin import tensors
from keras_tpu_ext.dropin.dispatcher import by_argument
from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions import TABLE
from keras_tpu_ext.dropin.functions.random import is_in_layer
from keras_tpu_ext.dropin.own_gradients import array, arrays, custom_gradient, recompute_grad, with_gradient
from keras_tpu_ext.dropin.patching import Function, replace, wrap
from keras_tpu_ext.dropin.report import mapped


def _like(structure: Any, values: Any) -> Any:
    """Return arrays in the structure that a loop carries."""
    return tree.pack_sequence_as(structure, tree.flatten(arrays(values)))


def cond(pred: Any, true_fn: Any = None, false_fn: Any = None, *others: Any, **options: Any) -> Any:
    """Run one of two functions."""
    if isinstance(pred, keras.KerasTensor):  # a functional model runs both
        return tree.map_structure(lambda a, b: tf.where(pred, a, b), true_fn(), false_fn())
    if not isinstance(pred, jax.core.Tracer):
        return true_fn() if pred else false_fn()
    return jax.lax.cond(array(pred).astype(bool), lambda: arrays(true_fn()), lambda: arrays(false_fn()))


def case(pred_fn_pairs: Any, default: Any = None, *others: Any, **options: Any) -> Any:
    """Run the first function whose condition holds."""
    pairs = [*(pred_fn_pairs.items() if isinstance(pred_fn_pairs, dict) else pred_fn_pairs)]
    chosen = default if default is not None else pairs.pop()[1]
    for pred, function in reversed(pairs):
        chosen = functools.partial(cond, pred, function, chosen)
    return chosen()


def switch_case(branch_index: Any, branch_fns: Any, default: Any = None, name: str | None = None) -> Any:
    """Run the function with this index, else the default, else the last."""
    pairs = branch_fns.items() if isinstance(branch_fns, dict) else branch_fns
    functions = [one if callable(one) else one[1] for one in _by_index(pairs)]
    functions.append(default or functions[-1])
    last = len(functions) - 1
    if isinstance(branch_index, keras.KerasTensor):
        pairs = [(tf.equal(branch_index, i), function) for i, function in enumerate(functions[:-1])]
        return case(pairs, functions[-1])
    index = jnp.where((branch_index < 0) | (branch_index > last), last, branch_index)
    return jax.lax.switch(index, [lambda one=one: arrays(one()) for one in functions])


def _by_index(pairs: Iterable[Any]) -> list[Any]:
    pairs = [*pairs]
    return pairs if callable(pairs[0]) else sorted(pairs, key=lambda pair: int(pair[0]))


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    *others: Any,
    maximum_iterations: Any = None,
    **options: Any,
) -> Any:
    """Run `body` as long as `cond` holds: in Python where the condition is known, else in JAX."""
    left = None if maximum_iterations is None else int(maximum_iterations)
    while left != 0:
        more = cond(*loop_vars)
        if isinstance(more, keras.KerasTensor):
            return tensors.call("while_loop", (cond, body, loop_vars), {"maximum_iterations": left})
        if isinstance(more, jax.core.Tracer):
            return _traced_loop(cond, body, arrays(loop_vars), left)
        if not more:
            break
        loop_vars = _sequence(body(*loop_vars), loop_vars)
        left = None if left is None else left - 1
    return loop_vars


def _sequence(values: Any, like: Any) -> Any:
    return [values] if len(like) == 1 and not isinstance(values, (list, tuple)) else values


def _traced_loop(cond: Any, body: Any, state: Any, most: int | None) -> Any:
    def step(state: Any) -> Any:
        return _like(state, _sequence(body(*state), state))

    if most is None:  # JAX has no gradient for this, and says so
        return jax.lax.while_loop(lambda state: cond(*state), step, state)

    def step_or_stay(state: Any, _: None) -> tuple[Any, None]:
        return jax.lax.cond(cond(*state), step, lambda same: same, state), None

    return jax.lax.scan(step_or_stay, state, None, most)[0]


def map_fn(
    fn: Callable[..., Any],
    elems: Any,
    dtype: Any = None,
    *others: Any,
    fn_output_signature: Any = None,
    **options: Any,
) -> Any:
    """Apply a function to each element along the first axis, one after the other."""
    found = jax.lax.map(lambda element: arrays(fn(element)), arrays(elems))
    kinds = [_dtype_of(one) for one in tree.flatten(fn_output_signature if dtype is None else dtype)]
    if not kinds or kinds[0] is None:
        return found
    cast = [value.astype(kind) for value, kind in zip(tree.flatten(found), kinds, strict=True)]
    return tree.pack_sequence_as(found, cast)


def _dtype_of(signature: Any) -> Any:
    signature = getattr(signature, "dtype", signature)
    return getattr(signature, "as_numpy_dtype", signature)


def vectorized_map(fn: Callable[..., Any], elems: Any, *others: Any, **options: Any) -> Any:
    """Apply a function to each element along the first axis, all at once."""
    return jax.vmap(lambda element: arrays(fn(element)))(arrays(elems))


def scan(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    *others: Any,
    reverse: bool = False,
    **options: Any,
) -> Any:
    """Accumulate along the first axis, and return each state."""
    start, rest = _started(arrays(elems), initializer, last=reverse)

    def step(state: Any, element: Any) -> tuple[Any, Any]:
        state = _like(state, fn(state, element))
        return state, state

    states = jax.lax.scan(step, start, rest, reverse=reverse)[1]
    if initializer is not None:
        return states
    order = (lambda a, b: (b, a[None])) if reverse else (lambda a, b: (a[None], b))
    return tree.map_structure(lambda a, b: jnp.concatenate(order(a, b)), start, states)


def _started(elems: Any, initializer: Any, *, last: bool) -> tuple[Any, Any]:
    """Return the first state, and the elements that remain."""
    if initializer is not None:
        return arrays(initializer), elems
    first, rest = (-1, slice(None, -1)) if last else (0, slice(1, None))
    return tree.map_structure(lambda x: x[first], elems), tree.map_structure(lambda x: x[rest], elems)


def _fold(*, last: bool) -> Callable[..., Any]:
    """Return `foldl` or `foldr`."""

    def fold(fn: Callable[..., Any], elems: Any, initializer: Any = None, *others: Any, **options: Any) -> Any:
        start, rest = _started(arrays(elems), initializer, last=last)
        return jax.lax.scan(lambda state, x: (_like(state, fn(state, x)), None), start, rest, reverse=last)[0]

    return fold


def _is_of_layer(arguments: Any) -> bool:
    """Return whether a function of TensorFlow is called on values of JAX, or by a layer that computes with them."""
    return tensors.has_jax_value(arguments) or (is_in_layer() and tf.executing_eagerly())


def _call_of_function(stock: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call what `tf.function` makes: on JAX values the Python function itself."""
    if _is_of_layer((args, kwargs)):
        mapped("tf.function on JAX values", "the Python function, which JAX traces")
        return self.python_function(*args, **kwargs)
    return stock(self, *args, **kwargs)


def _as_condition(stock: Function, self: Any) -> bool:
    """Return whether a tracer is true; the error says what to write."""
    try:
        return bool(stock(self))
    except jax.errors.TracerBoolConversionError:
        raise out_of_reach(
            what="an `if` or `while` on a tensor, which Keras 2 turned into TensorFlow's by AutoGraph,",
            why="a program that is traced decides before there are numbers",
            write="tf.where(condition, a, b), or tf.cond(condition, lambda: a, lambda: b)",
        ) from None


CONTROL: dict[str, Callable[..., Any]] = {
    **{one.__name__: one for one in (case, cond, map_fn, scan, switch_case, vectorized_map, while_loop)},
    "foldl": _fold(last=False),
    "foldr": _fold(last=True),
}

# These get no tensor to choose by. Beside each its name in `tf.compat.v1`.
_RANDOM = {
    "gamma": "random_gamma",
    "normal": "random_normal",
    "truncated_normal": "truncated_normal",
    "uniform": "random_uniform",
}


def _at_once(name: str, args: Any, kwargs: Any) -> Any:
    """Run a function that a functional model runs while it is built, as its functions may use the model's tensors."""
    mapped(f"tf.{name}", "the same on JAX")
    return CONTROL[name](*args, **kwargs)


def install() -> None:
    """Replace TensorFlow's functions in the modules where programs find them."""
    TABLE.update(CONTROL, custom_gradient=with_gradient)
    makers = {name: by_argument(name) for name in CONTROL}
    makers |= {name: by_argument(name, run=_at_once) for name in ("case", "cond", "switch_case", "while_loop")}
    makers |= {"custom_gradient": custom_gradient, "recompute_grad": recompute_grad}
    for module in ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2"):
        replace({f"{module}.{name}": make for name, make in makers.items()})
    for name, old in _RANDOM.items():
        make = by_argument(f"random.{name}", _is_of_layer)
        v1 = "tensorflow.compat.v1"
        replace(dict.fromkeys((f"tensorflow.random.{name}", f"{v1}.random.{name}", f"{v1}.{old}"), make))
    function = "tensorflow.python.eager.polymorphic_function.polymorphic_function.Function"
    wrap({f"{function}.__call__": _call_of_function, "jax.core.Tracer.__bool__": _as_condition})
