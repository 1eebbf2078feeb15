"""Names of TensorFlow 1 with which programs for Keras begin: they change nothing, or have another name."""

from __future__ import annotations

import functools
import random
from typing import Any

import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

from keras_tpu_ext.dropin import patching, report
from keras_tpu_ext.dropin.errors import OutOfReachError, out_of_reach
from keras_tpu_ext.tools.migrate.tables.out_of_reach import TF1_GONE, TF1_NAMES


class GoneError(OutOfReachError, AttributeError):
    """A name that TensorFlow had; an `AttributeError`, so that `hasattr` says that it is not there."""


_SEEDS: list[random.Random] = []  # what Keras draws seeds from, once `tf.random.set_seed` was called


def install() -> None:
    """Give TensorFlow the old names."""
    patching.add(tf, "__getattr__", _old_name)
    # `import tensorflow.compat.v1` makes a module anew, from where the functions are defined.
    v1, python = "tensorflow.compat.v1", "tensorflow.python"
    for name, module in (
        ("disable_eager_execution", f"{python}.framework.ops"),
        ("disable_v2_behavior", f"{python}.compat.v2_compat"),
    ):
        told = functools.partial(_told, f"tf.compat.v1.{name}()")
        patching.wrap({f"{v1}.{name}": told, f"{module}.{name}": told})
    patching.wrap(
        {
            f"{v1}.placeholder": _placeholder,
            f"{python}.ops.array_ops.placeholder": _placeholder,
            "tensorflow.random.set_seed": _set_seed,
            "keras.src.random.seed_generator.make_default_seed": _default_seed,
            "keras.src.backend.jax.random.make_default_seed": _default_seed,
        }
    )
    patching.add(tf.random, "set_random_seed", tf.random.set_seed)


def _old_name(name: str) -> Any:
    """Return what a name in `tf` is called now."""
    if name in TF1_NAMES:
        report.mapped(f"tf.{name}", f"tf.{TF1_NAMES[name]}")
        return functools.reduce(getattr, TF1_NAMES[name].split("."), tf)
    if name in TF1_GONE:
        why = "it is TensorFlow 1's, and this TensorFlow has it no more"
        raise GoneError(str(out_of_reach(what=f"tf.{name}", why=why, write=TF1_GONE[name])))
    raise AttributeError(f"module 'tensorflow' has no attribute {name!r}")


def _told(what: str, _: patching.Function) -> None:
    report.told(what, "nothing: Keras is on JAX, and tf.data needs TensorFlow 2")


def _placeholder(stock: patching.Function, *args: Any, **kwargs: Any) -> Any:
    if tf.executing_eagerly():
        raise out_of_reach(
            what="tf.compat.v1.placeholder",
            why="sessions of TensorFlow 1 do not know JAX",
            write="tf.keras.Input(shape), and a model with fit and predict",
        )
    return stock(*args, **kwargs)


def _set_seed(stock: patching.Function, seed: Any) -> None:
    """Seed Keras, too: it had its random numbers from TensorFlow."""
    stock(seed)
    _SEEDS.clear()
    if random.getstate() == random.Random(int(seed)).getstate():
        return  # by keras.utils.set_random_seed, say: Keras draws from Python's numbers, which begin anew, too
    _SEEDS.append(random.Random(int(seed)))
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)


def _default_seed(stock: patching.Function) -> int:
    return _SEEDS[0].randint(1, int(1e9)) if _SEEDS else int(stock())
