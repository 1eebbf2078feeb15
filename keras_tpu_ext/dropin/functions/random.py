"""Random numbers, which a compiled step draws anew each time: from a generator that the model has as its state.

`tf.random.normal` and the like get no array, so the dispatcher cannot choose them by argument: whoever replaces them
asks `is_in_layer()`. Numbers are others than TensorFlow's, of the same distributions.
"""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras.src.backend import in_symbolic_scope
from keras.src.backend.common.global_state import get_global_attribute

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.images import COLOURS

Array = Any
_GENERATOR = "_dropin_seed_generator"


def is_in_layer() -> bool:
    """Return whether a layer is being called on values of JAX or Keras, or a step is traced."""
    return get_global_attribute("stateless_scope") is not None or get_global_attribute("current_call_ctx") is not None


# The generators that layers and models were given, in that order.
_GIVEN: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def give_generator(layer: Any) -> Any:
    """Return the generator of a layer or model; if it is made here, Keras's own seeds stay as they are."""
    found = next((each for each in layer._flatten_layers() if hasattr(each, _GENERATOR)), None)
    if found is not None:
        return getattr(found, _GENERATOR)
    state = random.getstate()
    generator = keras.random.SeedGenerator()
    random.setstate(state)
    layer._seed_generators.append(generator)  # a tracker takes none once the layer is built
    vars(layer)[_GENERATOR] = generator
    _GIVEN[len(_GIVEN) and max(_GIVEN) + 1] = generator
    return generator


def _next_key() -> Array:
    """Return a key that no other call gets.

    Raises:
        OutOfReachError: If it would be the same in each step.
    """
    context, scope = get_global_attribute("current_call_ctx"), get_global_attribute("stateless_scope")
    generator = None
    if context is None and in_symbolic_scope():
        return jax.random.key(0)  # an operation in a functional model: only its shape is asked for
    if scope is not None and not in_symbolic_scope():
        # Only what a step is given as its state, it returns changed.
        generator = next((one for one in _GIVEN.values() if scope.get_current_value(one.state) is not None), None)
    elif context is not None:
        generator = give_generator(context.entry_layer)
    elif scope is None and not isinstance(jnp.zeros(()), jax.core.Tracer):
        generator = _without_layer()
    if generator is None:
        raise out_of_reach(
            what="a random function in a step that has no generator for it",
            why="it would give the same numbers in each step",
            write="keras.random.normal(..., seed=self.seed_generator), with self.seed_generator = "
            "keras.random.SeedGenerator() in the layer's __init__",
        )
    return _key(generator.next())


@functools.cache
def _without_layer() -> Any:
    return keras.random.SeedGenerator()


def _key(seed: Array) -> Array:
    """Return the key of a seed, which is two integers."""
    seed = jnp.asarray(seed).astype("uint32")
    return jax.random.fold_in(jax.random.key(seed[0]), seed[1])


def _uniform(key: Array, shape: Any, low: Any, high: Any, to: Any) -> Array:
    if jnp.issubdtype(to, jnp.integer):
        if high is None:
            raise ValueError(f"tf.random.uniform: dtype {to} needs maxval")
        return jax.random.randint(key, shape, low, high, to)
    return low + jax.random.uniform(key, shape, to) * (jnp.asarray(1 if high is None else high, to) - low)


def _normal(key: Array, shape: Any, mean: Any, deviation: Any, to: Any) -> Array:
    return mean + jax.random.normal(key, shape, to) * deviation


def _truncated_normal(key: Array, shape: Any, mean: Any, deviation: Any, to: Any) -> Array:
    return mean + jax.random.truncated_normal(key, -2.0, 2.0, shape, to) * deviation


def _categorical(key: Array, logits: Array, count: int, to: Any) -> Array:
    drawn = jax.random.categorical(key, logits, shape=(count, logits.shape[0]), axis=-1)
    return drawn.T.astype(to or "int32")


def _gamma(key: Array, shape: Any, alpha: Any, beta: Any, to: Any) -> Array:
    alpha, beta = jnp.asarray(alpha, to), jnp.asarray(1 if beta is None else beta, to)
    each = jnp.broadcast_shapes(alpha.shape, beta.shape)
    return jax.random.gamma(key, alpha, (*shape, *each), alpha.dtype) / beta


def _dropout(key: Array, x: Array, rate: Any, noise_shape: Any) -> Array:
    if not isinstance(rate, jax.core.Tracer) and not 0 <= rate < 1:
        raise ValueError(f"tf.nn.dropout: rate must be in [0, 1), not {rate}")
    kept = jax.random.uniform(key, noise_shape or x.shape) >= rate
    return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype)).astype(x.dtype)


def _flip(axis: int) -> Callable[..., Array]:
    def call(key: Array, x: Array) -> Array:
        return jnp.where(jax.random.bernoulli(key, 0.5, (*x.shape[:-3], 1, 1, 1)), jnp.flip(x, axis), x)

    return call


def _crop(key: Array, x: Array, size: Any) -> Array:
    spaces = jnp.asarray([have - want + 1 for have, want in zip(x.shape, size, strict=True)])
    return jax.lax.dynamic_slice(x, list(jax.random.randint(key, (x.ndim,), 0, spaces)), size)


def _adjusted(name: str, both_signs: bool) -> Callable[..., Array]:
    """Return a function that adjusts an image by a random number from an interval, or up to one either way."""

    def call(key: Array, x: Array, *bounds: Any) -> Array:
        low, high = (-bounds[0], bounds[0]) if both_signs else bounds
        return COLOURS[f"image.adjust_{name}"](x, jax.random.uniform(key, (), minval=low, maxval=high))

    return call


# Functions of a key, and of what TensorFlow's are given but for the seed.
_RANDOM: dict[str, Callable[..., Array]] = {
    "random.uniform": _uniform,
    "random.normal": _normal,
    "random.truncated_normal": _truncated_normal,
    "random.gamma": _gamma,
    "random.categorical": _categorical,
    "image.random_flip_left_right": _flip(-2),
    "image.random_flip_up_down": _flip(-3),
    "image.random_crop": _crop,
    "image.random_brightness": _adjusted("brightness", True),
    "image.random_contrast": _adjusted("contrast", False),
    "image.random_saturation": _adjusted("saturation", False),
    "image.random_hue": _adjusted("hue", True),
}


def _stateful(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function that is given a seed, which does not make it repeat itself."""
    return lambda seed, *values: function(_next_key(), *values)


def _stateless(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda seed, *values: function(_key(seed), *values)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nn.dropout": lambda seed, x, rate, shape: x if rate == 0 else _dropout(_next_key(), x, rate, shape),
    "random.shuffle": _stateful(jax.random.permutation),
    **{name: _stateful(function) for name, function in _RANDOM.items()},
    **{
        name.replace("random.", "random.stateless_").replace("image.random", "image.stateless_random"): (
            _stateless(function)
        )
        for name, function in _RANDOM.items()
    },
}
