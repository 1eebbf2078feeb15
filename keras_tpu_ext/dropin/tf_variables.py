"""`tf.Variable` in models: as an attribute of a layer it becomes Keras's; elsewhere a model cannot use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.utils.jax_utils import is_in_jax_tracing_scope
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from keras_tpu_ext.dropin.errors import OWN_VARIABLE, variable_in_model
from keras_tpu_ext.dropin.functions.random import is_in_layer
from keras_tpu_ext.dropin.patching import Function, add, replace, wrap
from keras_tpu_ext.dropin.report import mapped, told


def is_traced() -> bool:
    """Return whether JAX traces a layer or a step of Keras."""
    return is_in_layer() and bool(is_in_jax_tracing_scope())  # the latter alone would start JAX's devices


def _of_layer(stock: Function, self: Any, name: str, value: Any) -> Any:
    """Before a layer sets an attribute: variables of TensorFlow become Keras's."""
    leaves = keras.tree.flatten(value) if type(value) in (list, tuple, dict) else [value]
    if any(isinstance(one, tf.Variable) for one in leaves):
        value = keras.tree.map_structure(_variable, value)
    return stock(self, name, value)


def _variable(variable: Any) -> Any:
    if not isinstance(variable, tf.Variable):
        return variable
    mapped("tf.Variable in a layer", "keras.Variable")
    name = variable.name.split(":")[0].replace("/", "_")
    trains = bool(variable.trainable and variable.dtype.is_floating)
    # Its own handle: in a `build` that a traced call has reached, `numpy()` is refused.
    value = tf.raw_ops.ReadVariableOp(resource=vars(variable)["_handle"], dtype=variable.dtype).numpy()
    made = keras.Variable(lambda *_, **__: value, value.shape, variable.dtype.name, trainable=trains, name=name)
    made.constraint = variable.constraint if hasattr(variable, "constraint") else None
    return made


def _is_in_step() -> bool:
    return is_traced() and tf.executing_eagerly()


def _outside_of_steps(original: property) -> property:
    """Return the handle of a variable, which every use asks for; JAX would take the value once and for all."""
    get: Callable[[Any], Any] | None = original.fget
    assert get is not None, "a handle is read"

    def handle(self: Any) -> Any:
        if _is_in_step():
            raise variable_in_model(self)
        return get(self)

    return property(handle, doc=original.__doc__)


class _Handle:
    """The attribute of a variable that TensorFlow's C++ reads: an error there would be lost, so this is no handle."""

    def __get__(self, variable: Any, owner: type | None = None) -> Any:
        if variable is None:
            return self
        if _is_in_step():
            told(f"the tf.Variable {variable.name!r} in a model cannot run on JAX", f"write {OWN_VARIABLE}")
            return tf.constant("a variable that JAX cannot use")
        try:
            return vars(variable)["_handle"]
        except KeyError:
            raise AttributeError("_handle") from None

    def __set__(self, variable: Any, value: Any) -> None:
        vars(variable)["_handle"] = value


def install() -> None:
    """Let layers have variables that JAX trains, and steps none that it would not."""
    wrap({"keras.Operation._setattr_hook": _of_layer})
    replace({f"{BaseResourceVariable.__module__}.BaseResourceVariable.handle": _outside_of_steps})
    add(BaseResourceVariable, "_handle", _Handle())  # TensorFlow has one in each variable, and none in the class
