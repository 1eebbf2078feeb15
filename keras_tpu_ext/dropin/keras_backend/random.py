"""Random numbers in models: each step of a compiled program draws new ones.

In TensorFlow a random function has a state; in JAX it is a pure function of a seed. The seed is a variable of the
layer that draws first, so that the step keeps it with the rest of the model's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from keras import ops
from keras.src.backend.common import global_state
from keras.src.utils.jax_utils import is_in_jax_tracing_scope

_OF_LAYER = "_kte_dropin_seed"


def is_traced() -> bool:
    """Return whether JAX traces a function: a random number that TensorFlow draws now would be the same at each step."""
    return bool(is_in_jax_tracing_scope())


def seed() -> Any:
    """Return a seed for the function that is being traced, another at each call of the compiled program."""
    if not is_traced():
        return None
    context = global_state.get_global_attribute("current_call_ctx")
    layer = None if context is None else context.entry_layer
    found = next(iter(_generators(layer)), None)
    if found is None and layer is not None and keras.src.backend.in_symbolic_scope():
        found = keras.random.SeedGenerator()
        layer._seed_generators.append(found)
        setattr(layer, _OF_LAYER, found)
    return _from_host() if found is None else found


def _generators(layer: Any) -> list[Any]:
    """Return the seeds of a layer and of those inside it that the step has among its state."""
    if layer is None:
        return []
    found = [vars(one)[_OF_LAYER] for one in layer._flatten_layers() if _OF_LAYER in vars(one)]
    scope = keras.src.backend.get_stateless_scope()
    if keras.src.backend.in_symbolic_scope() or scope is None:
        return found
    return [one for one in found if scope.get_current_value(one.state) is not None]


def _from_host() -> jax.Array:
    """Ask the host for a seed: right, though slower, where no layer has one, as in a loss."""
    kind = jax.ShapeDtypeStruct((2,), np.uint32)
    return jax.experimental.io_callback(lambda: np.random.randint(0, 2**32, 2, dtype=np.uint32), kind)


def _dtype(dtype: Any) -> str:
    return keras.config.floatx() if dtype is None else keras.backend.standardize_dtype(getattr(dtype, "name", dtype))


def random_normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: int | None = None) -> Any:
    """Draw from a normal distribution."""
    return keras.random.normal(tuple(shape), mean, stddev, _dtype(dtype), _seed())


def random_uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: int | None = None) -> Any:
    """Draw from a uniform distribution; integers are below `maxval`."""
    function = keras.random.uniform if keras.backend.is_float_dtype(_dtype(dtype)) else keras.random.randint
    return function(tuple(shape), minval, maxval, _dtype(dtype), _seed())


def truncated_normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: int | None = None) -> Any:
    """Draw from a normal distribution within two standard deviations."""
    return keras.random.truncated_normal(tuple(shape), mean, stddev, _dtype(dtype), _seed())


def random_bernoulli(shape: Any, p: Any = 0.0, dtype: Any = None, seed: int | None = None) -> Any:
    """Draw ones with the probability `p`, and zeros."""
    return ops.cast(keras.random.uniform(tuple(shape), seed=_seed()) <= p, _dtype(dtype))


def dropout(x: Any, level: float, noise_shape: Any = None, seed: int | None = None) -> Any:
    """Set a fraction `level` to zero, and scale up the rest."""
    return keras.random.dropout(x, level, noise_shape, _seed())


_seed = seed  # an argument above has this name

# By argument, and also wherever JAX traces.
RANDOM: dict[str, Callable[..., Any]] = {
    "dropout": dropout,
    "random_bernoulli": random_bernoulli,
    "random_normal": random_normal,
    "random_uniform": random_uniform,
    "truncated_normal": truncated_normal,
}
