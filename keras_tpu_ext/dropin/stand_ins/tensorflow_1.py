"""Names of TensorFlow 1 with which programs for Keras begin: they change nothing, or have another name."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.jax import random as jax_random
from keras.src.random import seed_generator
from tensorflow.python.compat import v2_compat
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import array_ops

from keras_tpu_ext.dropin import patching, report
from keras_tpu_ext.dropin.errors import OutOfReachError, out_of_reach

# Names in `tf` that have another one today.
_RENAMED = {
    "set_random_seed": "random.set_seed",
    "logging": "compat.v1.logging",
    "ConfigProto": "compat.v1.ConfigProto",
    "GPUOptions": "compat.v1.GPUOptions",
    "Session": "compat.v1.Session",
    "get_default_graph": "compat.v1.get_default_graph",
    "reset_default_graph": "compat.v1.reset_default_graph",
    "log": "math.log",
    "gfile": "compat.v1.gfile",
}

# Names in `tf` that are gone, and what to write.
_GONE = {
    "contrib": "the layer, loss or optimizer of tf.keras",
    "layers": "tf.keras.layers",
    "estimator": "a tf.keras model, compile and fit",
    "placeholder": "tf.keras.Input(shape)",
    "get_variable": "self.add_weight(...) in a layer",
    "variable_scope": "a layer, which has its variables",
    "global_variables_initializer": "nothing: variables have their values when they are made",
    "losses": "tf.keras.losses",
    "metrics": "tf.keras.metrics",
}

# Functions of `tf.compat.v1`, and where they are defined.
_V1 = {
    "disable_eager_execution": framework_ops,
    "disable_v2_behavior": v2_compat,
    "placeholder": array_ops,
}


class GoneError(OutOfReachError, AttributeError):
    """A name that TensorFlow had; an `AttributeError`, so that `hasattr` says that it is not there."""


_SEEDS: list[random.Random] = []  # what Keras draws seeds from, once `tf.random.set_seed` was called


def install() -> None:
    """Give TensorFlow the old names."""
    patching.add(tf, "__getattr__", _old_name)
    # `import tensorflow.compat.v1` makes a module anew, from where the functions are defined.
    for name, defined in _V1.items():
        make = _placeholder if name == "placeholder" else functools.partial(_without_effect, name)
        patching.replace(defined, f"{defined.__name__}.{name}", make)
        patching.replace(tf.compat.v1, f"tensorflow.compat.v1.{name}", make)
    patching.replace(tf.random, "tensorflow.random.set_seed", _set_seed)
    patching.add(tf.random, "set_random_seed", tf.random.set_seed)
    for module in (seed_generator, jax_random):
        patching.replace(module, f"{module.__name__}.make_default_seed", _default_seed)


def _old_name(name: str) -> Any:
    """Return what a name in `tf` is called now."""
    if name in _RENAMED:
        report.mapped(f"tf.{name}", f"tf.{_RENAMED[name]}")
        return functools.reduce(getattr, _RENAMED[name].split("."), tf)
    if name in _GONE:
        why = "it is TensorFlow 1's, and this TensorFlow has it no more"
        raise GoneError(str(out_of_reach(what=f"tf.{name}", why=why, write=_GONE[name])))
    raise AttributeError(f"module 'tensorflow' has no attribute {name!r}")


def _without_effect(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def without_effect() -> None:
        report.told(f"tf.compat.v1.{name}()", "nothing: Keras is on JAX, and tf.data needs TensorFlow 2")

    return functools.wraps(original)(without_effect)


def _placeholder(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def placeholder(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            raise out_of_reach(
                what="tf.compat.v1.placeholder",
                why="sessions of TensorFlow 1 do not know JAX",
                write="tf.keras.Input(shape), and a model with fit and predict",
            )
        return original(*args, **kwargs)

    return placeholder


def _set_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Seed Keras, too: it had its random numbers from TensorFlow."""

    @functools.wraps(original)
    def set_seed(seed: Any) -> None:
        original(seed)
        _SEEDS.clear()
        if random.getstate() == random.Random(int(seed)).getstate():
            return  # by keras.utils.set_random_seed, say: Keras draws from Python's numbers, which begin anew, too
        _SEEDS.append(random.Random(int(seed)))
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)

    return set_seed


def _default_seed(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def make_default_seed() -> int:
        return _SEEDS[0].randint(1, int(1e9)) if _SEEDS else original()

    return make_default_seed
