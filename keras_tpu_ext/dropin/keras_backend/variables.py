"""`K.variable` and what old programs do with variables, and the learning phase."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax import numpy as jnp
from keras import ops
from keras.src.backend.common import global_state

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.report import told
from keras_tpu_ext.dropin.tf_variables import is_traced


class BackendVariable(keras.Variable):  # type: ignore[misc, unused-ignore]
    """A variable that a compiled step need not have among its state, as one that a loss reads.

    A step has its value as a constant, until `K.set_value` changes it: then it is compiled again, and asks the host.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.is_constant_in_step = False
        self.on_host: np.ndarray[Any, Any] | None = None
        super().__init__(*args, **kwargs)

    @property
    def value(self) -> Any:
        """The value; in a step that is traced for `fit`, what it will be when the step runs."""
        if self._is_state() or not is_traced() or keras.src.backend.in_symbolic_scope():
            return keras.Variable.value.fget(self)
        if self.on_host is None:
            self.is_constant_in_step = True
            return keras.Variable.value.fget(self)
        kind = jax.ShapeDtypeStruct(self.on_host.shape, self.on_host.dtype)
        return jax.experimental.io_callback(lambda: self.on_host, kind)

    def _is_state(self) -> bool:
        scope = keras.src.backend.get_stateless_scope()
        return scope is not None and scope.get_current_value(self) is not None

    def set(self, value: Any) -> None:
        """Assign outside of a step; the next step sees the new value."""
        self.assign(value)
        if self.is_constant_in_step and self.on_host is None:
            told("K.set_value of a variable that a compiled step has read", "the step is compiled once more")
            _forget_steps()
        if self.is_constant_in_step:
            self.on_host = np.asarray(keras.Variable.value.fget(self))


def _forget_steps() -> None:
    """Let all models trace their steps again."""
    for model in [one for one in gc.get_objects() if issubclass(type(one), keras.Model)]:
        for kind in ("train", "test", "predict"):
            if getattr(model, f"{kind}_function", None) is not None:
                getattr(model, f"make_{kind}_function")(force=True)


def _dtype(dtype: Any) -> str:
    return keras.config.floatx() if dtype is None else keras.backend.standardize_dtype(getattr(dtype, "name", dtype))


def variable(value: Any, dtype: Any = None, name: str | None = None, constraint: Any = None) -> Any:
    """Make a variable; where JAX traces a tensor, which is all that it can be there."""
    if isinstance(value, (tf.Tensor, tf.Variable)):
        value = value.numpy()
    if is_traced():
        return ops.cast(value, _dtype(dtype))
    named = {} if name is None else {"name": name.replace("/", "_")}
    made = BackendVariable(ops.cast(value, _dtype(dtype)), dtype=_dtype(dtype), **named)
    made.constraint = constraint
    return made


def get_value(x: Any) -> Any:
    """Return a value as NumPy has it; a number for no axes."""
    if isinstance(x, keras.KerasTensor):
        raise out_of_reach(
            what="K.get_value or K.eval of a tensor of a functional model",
            why="it has no value without inputs",
            write="keras.Model(model.input, tensor).predict(x)",
        )
    if isinstance(x, (jax.Array, keras.Variable)):
        return np.asarray(x)[()]
    return x.numpy() if hasattr(x, "numpy") else x


def set_value(x: Any, value: Any) -> None:
    """Assign to a variable."""
    if isinstance(x, BackendVariable):
        x.set(value)
    elif hasattr(x, "assign"):
        x.assign(np.asarray(value, dtype=getattr(x.dtype, "name", x.dtype)))
    else:
        raise out_of_reach(
            what=f"K.set_value({x!r}, {value!r})",
            why="it needs a variable, and this is a number: in Keras 3 the momentum of an optimizer is one, for good",
            write="nothing, or the value where the optimizer or the attribute is made",
        )


def _batch_set_value(tuples: Any) -> None:
    for one, value in tuples:
        set_value(one, value)


_PHASE = [0]


def learning_phase() -> int:
    """Return 1 inside a call that trains, else what `K.set_learning_phase` said, at first 0."""
    context = global_state.get_global_attribute("current_call_ctx")
    training = None if context is None else context.get_value("training")
    return _PHASE[0] if training is None else int(bool(training))


def set_learning_phase(value: int) -> None:
    """Say what `K.learning_phase()` is outside of calls of a model; `fit` and `predict` say it themselves."""
    told(f"K.set_learning_phase({int(value)})", "model(x, training=...); fit trains, evaluate and predict do not")
    _PHASE[0] = int(value)


def in_train_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """Choose `x` in training, else `alt`; either may be a function."""
    training = learning_phase() if training is None else training
    if keras.src.backend.in_symbolic_scope() and callable(x) and not training:
        x()  # so that a random function in it gives its layer a generator, see functions/random.py
    chosen = x if training else alt
    return chosen() if callable(chosen) else chosen


# These are not chosen by argument: TensorFlow's own in its graphs, as inside of tf.data, and these elsewhere.
VARIABLES: dict[str, Callable[..., Any]] = {
    "batch_get_value": lambda tensors: list(map(get_value, tensors)),
    "batch_set_value": _batch_set_value,
    "eye": lambda size, dtype=None, name=None: variable(jnp.eye(size), dtype, name),
    "get_value": get_value,
    "ones": lambda shape, dtype=None, name=None: variable(jnp.ones(tuple(shape)), dtype, name),
    "random_normal_variable": lambda shape, mean, scale, dtype=None, name=None, seed=None: variable(
        keras.random.normal(tuple(shape), mean, scale, seed=seed), dtype, name
    ),
    "random_uniform_variable": lambda shape, low, high, dtype=None, name=None, seed=None: variable(
        keras.random.uniform(tuple(shape), low, high, seed=seed), dtype, name
    ),
    "set_value": set_value,
    "variable": variable,
    "zeros": lambda shape, dtype=None, name=None: variable(jnp.zeros(tuple(shape)), dtype, name),
}
