"""`keras.backend` (`K.*`): the functions of Keras 2, for JAX values by argument, for all others TensorFlow's.

Keras 3 keeps most of them in `keras.src.legacy.backend`, made of `tf.*`: most run on JAX through the dispatcher.
Replaced are those that need more, and added those that Keras 3 has dropped.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.legacy import backend as legacy

from keras_tpu_ext.dropin import dispatcher
from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions import TABLE
from keras_tpu_ext.dropin.keras_backend import variables
from keras_tpu_ext.dropin.keras_backend.arrays import ARRAYS
from keras_tpu_ext.dropin.keras_backend.variables import VARIABLES
from keras_tpu_ext.dropin.patching import add, replace
from keras_tpu_ext.dropin.report import mapped
from keras_tpu_ext.tools.migrate.tables.out_of_reach import OUT_OF_REACH

_IN_TABLE = "keras.backend."  # before a name in the drop-in's table of functions

Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def _placeholder(shape: Any = None, ndim: int | None = None, dtype: Any = None, **options: Any) -> Any:
    """Return an input of a functional model, its batch size included in `shape`."""
    if options.pop("ragged", False):
        raise out_of_reach(what="K.placeholder(ragged=True)", why="JAX has no ragged tensors", write="a padded batch")
    shape = shape or (None,) * (ndim or 0)
    return keras.Input(batch_shape=tuple(shape), dtype=dtype or keras.config.floatx(), **options)


def _function(inputs: Any, outputs: Any, updates: Any = None, name: str | None = None, **options: Any) -> Any:
    """Return a function from arrays to NumPy arrays, between tensors of a functional model."""
    tensors_only = all(isinstance(one, keras.KerasTensor) for one in keras.tree.flatten((inputs, outputs)))
    if updates or options or not tensors_only:
        raise out_of_reach(
            what="K.function with updates, options or a learning phase",
            why="there is no graph of TensorFlow to run",
            write="keras.Model(inputs, outputs), called as model(x, training=False)",
        )
    model = keras.Model(inputs, outputs)

    def run(arrays: Any) -> Any:
        found = keras.tree.map_structure(variables.get_value, model(arrays))
        return [found] if isinstance(outputs, list) and not isinstance(found, list) else found

    return run


def _print_tensor(x: Any, message: str = "", summarize: int = 3) -> Any:
    tf.print(message, x, summarize=summarize)
    return x


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: this was about sessions of TensorFlow, or about its variables' first values."""


def _gone(name: str) -> Callable[..., Any]:
    def raise_error(*args: Any, **kwargs: Any) -> Any:
        raise out_of_reach(what=f"K.{name}", why="Keras 3 has no such function", write=OUT_OF_REACH[_IN_TABLE + name])

    return raise_error


# Whatever the arguments are.
ALWAYS: dict[str, Callable[..., Any]] = {
    "count_params": lambda x: math.prod(x.shape),
    "dtype": lambda x: str(keras.backend.standardize_dtype(getattr(x.dtype, "name", x.dtype))),
    "foldl": lambda fn, elems, initializer=None, name=None: tf.foldl(fn, elems, initializer),
    "foldr": lambda fn, elems, initializer=None, name=None: tf.foldr(fn, elems, initializer),
    "gradients": _gone("gradients"),
    "int_shape": lambda x: tuple(n if isinstance(n, int) else None for n in x.shape),
    "map_fn": lambda fn, elems, name=None, dtype=None: tf.map_fn(fn, elems, dtype=dtype),
    "ndim": lambda x: len(x.shape),
}

# What Keras 3 has dropped.
ADDED: dict[str, Callable[..., Any]] = {
    "function": _function,
    **{name: _gone(name) for name in ("get_session", "local_conv1d", "local_conv2d", "normalize_batch_in_training")},
    "identity": lambda x, name=None: tf.identity(x, name),
    "in_test_phase": lambda x, alt, training=None: variables.in_train_phase(alt, x, training),
    "in_train_phase": variables.in_train_phase,
    "learning_phase": variables.learning_phase,
    "logsumexp": lambda x, axis=None, keepdims=False: tf.reduce_logsumexp(x, axis, keepdims),
    "manual_variable_initialization": _nothing,
    "placeholder": _placeholder,
    "print_tensor": _print_tensor,
    "random_binomial": lambda *args, **kwargs: legacy.random_bernoulli(*args, **kwargs),
    "set_learning_phase": variables.set_learning_phase,
    "set_session": _nothing,
    "reset_uids": _nothing,
}


def _switch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `switch` that calls functions of its own accord in a functional model, where they make its tensors."""
    by_argument = dispatcher.by_argument(_IN_TABLE + "switch")(original)

    @functools.wraps(original)
    def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
        branches = [then_expression, else_expression]
        if isinstance(condition, keras.KerasTensor):
            branches = [one() if callable(one) else one for one in branches]
        return by_argument(condition, *branches)

    return switch


def _outside_of_graphs(name: str, ours: Callable[..., Any]) -> Make:
    """Return what makes a function that is TensorFlow's in a graph of TensorFlow only."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly() or any(hasattr(one, "tocoo") for one in args):
                return original(*args, **kwargs)
            mapped(f"K.{name}", "the same on JAX")
            return ours(*args, **kwargs)

        return function

    return make


def _makers() -> dict[str, Make]:
    """Return what makes each function that is replaced from Keras's own."""
    return {
        **{name: dispatcher.by_argument(_IN_TABLE + name) for name in ARRAYS},
        "switch": _switch,
        **{name: _outside_of_graphs(name, ours) for name, ours in VARIABLES.items()},
        **{name: functools.partial(lambda ours, original: ours, ours) for name, ours in ALWAYS.items()},
    }


def names() -> list[str]:
    """Return the names of all functions of `keras.backend` that old programs find."""
    kept = [name for name, found in vars(legacy).items() if getattr(found, "__module__", None) == legacy.__name__]
    return sorted({*(name for name in kept if not name.startswith("_")), *ALWAYS, *ADDED})


def into(module: Any) -> None:
    """Give a module what Keras 2 had in `keras.backend`."""
    for name, make in _makers().items():
        found = vars(module).get(name)
        if module is legacy or found not in (None, getattr(legacy, name)):  # imported before, with Keras's own
            replace({f"keras.src.legacy.backend.{name}": make}, module)
    for name in names():
        add(module, name, ADDED.get(name) or getattr(legacy, name))
    add(module, "tf", tf)  # as in `K.tf`


def install() -> None:
    """Replace and add functions, in Keras's modules and in those of `tf.keras` that are loaded."""
    TABLE.update({_IN_TABLE + name: ours for name, ours in ARRAYS.items()})
    into(legacy)
    for module in ("keras.backend", "keras._tf_keras.keras.backend", "tensorflow.keras.backend"):
        into(importlib.import_module(module))
