"""`tf.custom_gradient` and `tf.recompute_grad` on JAX values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from keras import tree

from keras_tpu_ext.dropin import tensors
from keras_tpu_ext.dropin.report import mapped


def array(value: Any) -> Any:
    """Return a tensor of either kind, or a number, as a JAX array."""
    return jnp.asarray(value.numpy() if hasattr(value, "numpy") and not isinstance(value, jax.Array) else value)


def arrays(values: Any) -> Any:
    """Return a structure with JAX arrays for tensors of all kinds and numbers."""
    return tree.map_structure(array, values)


def with_gradient(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run what `tf.custom_gradient` decorates: a function that returns its result and its gradient's function."""
    at = [i for i, one in enumerate(args) if hasattr(one, "dtype")]

    def run(*values: Any) -> tuple[Any, Callable[..., Any]]:
        given = [*args]
        for i, value in zip(at, values, strict=True):
            given[i] = value
        result, gradient = function(*given, **kwargs)
        return arrays(result), gradient

    @jax.custom_vjp
    def differentiable(*values: Any) -> Any:
        return run(*values)[0]

    def backward(values: Any, upstream: Any) -> tuple[Any, ...]:
        found = run(*values)[1](*tree.flatten(upstream))
        found = [*found] if isinstance(found, (list, tuple)) else [found]
        by_argument = dict(enumerate(found)) if len(found) == len(args) else dict(zip(at, found, strict=True))
        return tuple(_gradient(value, by_argument[i]) for i, value in zip(at, values, strict=True))

    differentiable.defvjp(lambda *values: (differentiable(*values), values), backward)
    return differentiable(*(array(args[i]) for i in at))


def _gradient(value: Any, found: Any) -> Any:
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return np.zeros(value.shape, jax.dtypes.float0)
    return jnp.zeros_like(value) if found is None else jnp.broadcast_to(array(found), value.shape).astype(value.dtype)


def _decorator(original: Callable[..., Any], on_jax: Callable[..., Any]) -> Callable[..., Any]:
    """Return TensorFlow's decorator, whose functions run on JAX values too, as `on_jax(function, args, kwargs)`."""

    def decorate(f: Any = None) -> Any:
        if f is None:
            return decorate
        on_tensorflow = original(f)

        @functools.wraps(f)
        def function(*args: Any, **kwargs: Any) -> Any:
            if tensors.has_jax_value((args, kwargs)):
                return on_jax(f, args, kwargs)
            return on_tensorflow(*args, **kwargs)

        return function

    return decorate


def custom_gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `tf.custom_gradient`."""
    return _decorator(original, lambda f, args, kwargs: tensors.call("custom_gradient", (f, *args), kwargs))


def recompute_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `tf.recompute_grad`: on JAX nothing is computed twice."""

    def run(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        mapped("tf.recompute_grad", "the same numbers, without computing twice")
        return f(*args, **kwargs)

    return _decorator(original, run)
