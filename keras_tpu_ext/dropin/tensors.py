"""What old programs do with tensors, on JAX arrays, tracers and `KerasTensor`s."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax._src.array import ArrayImpl  # what arrays are, without making one: that would start JAX's devices
from keras import tree

from keras_tpu_ext.dropin.errors import out_of_reach, variable_in_model
from keras_tpu_ext.dropin.functions import TABLE
from keras_tpu_ext.dropin.patching import Function, add, replace, wrap
from keras_tpu_ext.dropin.report import mapped
from keras_tpu_ext.dropin.sizes import ON_SIZES, OpenSize, Sizes, is_size, sizes_of, value_of

_JAX_VALUES = (jax.Array, keras.KerasTensor, keras.Variable)  # a tracer is a jax.Array, too
# The keys under which a saved model keeps the formula of an OpenSize, and a slice that has one.
_OPEN_SIZE, _SLICE = "keras_tpu_ext.open_size", "keras_tpu_ext.slice"
_GET_ITEM = "__operators__.getitem"


def has_jax_value(values: Any) -> bool:
    """Return whether a structure has a JAX array, a tracer, Keras's `Variable` or `KerasTensor`, or an open size."""
    if isinstance(values, _JAX_VALUES) or is_size(values):
        return True
    if isinstance(values, dict):
        return any(map(has_jax_value, values.values()))
    if isinstance(values, slice):
        return has_jax_value((values.start, values.stop, values.step))
    return isinstance(values, (list, tuple)) and any(map(has_jax_value, values))


def call(name: str, args: Any, kwargs: Any) -> Any:
    """Run TensorFlow's function of this name on JAX.

    Args:
        name: Its canonical name without `tf.`.
        args: What it is called with; at least one argument is, or has, a JAX value.
        kwargs: The same, by name.

    Raises:
        OutOfReachError: If there is no counterpart.
    """
    function = TABLE.get(name)
    on_sizes = ON_SIZES.get(name)
    if on_sizes is not None and not any(isinstance(one, _JAX_VALUES) for one in _leaves((args, kwargs))):
        found = on_sizes(*args, **kwargs)
        if found is not NotImplemented:
            return found
    if name in ("shape", "rank"):
        sizes = sizes_of(*args[:1], *(kwargs[key] for key in ("input",) if key in kwargs))
        return sizes if name == "shape" else len(sizes)
    if function is None:
        raise out_of_reach(
            what=f"tf.{name} on a tensor of a model",
            why="the drop-in has no entry for it",
            write="the same with keras.ops",
        )
    mapped(f"tf.{name}", "the same on JAX")
    args, kwargs = _static(args), _static(kwargs)
    if any(isinstance(one, keras.KerasTensor) for one in _leaves((args, kwargs))):
        return TensorFlowFunction(name)(*args, **kwargs)
    return function(*args, **kwargs)


def _leaves(values: Any) -> Iterator[Any]:
    children: Iterable[Any] = ()
    if isinstance(values, dict):
        children = values.values()
    elif isinstance(values, (list, tuple)):
        children = values
    else:
        yield values
    for one in children:
        yield from _leaves(one)


def _static(value: Any) -> Any:
    """Return an argument without TensorFlow's objects: constants as NumPy arrays, data types as names."""
    if isinstance(value, tf.Variable):
        raise variable_in_model(value)
    if isinstance(value, tf.Tensor):
        return value.numpy()
    if isinstance(value, tf.DType):
        return value.name
    if isinstance(value, tf.TensorShape):
        return tuple(value.as_list())
    if isinstance(value, OpenSize):
        return {_OPEN_SIZE: value.formula}
    if isinstance(value, slice):
        return {_SLICE: [_static(value.start), _static(value.stop), _static(value.step)]}
    if isinstance(value, dict):
        return {key: _static(one) for key, one in value.items()}
    if isinstance(value, (Sizes, list)):
        return [_static(one) for one in value]
    if type(value) is tuple:
        return tuple(_static(one) for one in value)
    return value


def _with_sizes(value: Any) -> Any:
    """Return an argument with the sizes that its formulas say."""
    if isinstance(value, dict):
        if value.keys() == {_OPEN_SIZE}:
            return value_of(value[_OPEN_SIZE])
        if value.keys() == {_SLICE}:
            return slice(*map(_with_sizes, value[_SLICE]))
        return {key: _with_sizes(one) for key, one in value.items()}
    return type(value)(map(_with_sizes, value)) if isinstance(value, (list, tuple)) else value


@keras.saving.register_keras_serializable("keras_tpu_ext.dropin")
class TensorFlowFunction(keras.Operation):  # type: ignore[misc, unused-ignore]
    """A TensorFlow function in a functional model.

    Args:
        function: Its canonical name without `tf.`, a key of the drop-in's table.
        name: The operation's name.

    Raises:
        ValueError: If the table does not have this function.
    """

    def __init__(self, function: str, name: str | None = None) -> None:
        super().__init__(name=name)
        found = operator.getitem if function == _GET_ITEM else TABLE.get(function)
        if found is None:
            raise ValueError(f"the drop-in knows no TensorFlow function {function!r}")
        self.function, self._compute = function, found

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on arrays."""
        return self._compute(*_with_sizes(args), **_with_sizes(kwargs))

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return `KerasTensor`s like the outputs. Only tensors are traced: all other arguments are static."""
        leaves = tree.flatten((args, kwargs))
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, keras.KerasTensor)]

        def on_tensors(*tensors: Any) -> Any:
            values = list(leaves)
            for i, tensor in zip(at, tensors, strict=True):
                values[i] = tensor
            new_args, new_kwargs = tree.pack_sequence_as((args, kwargs), values)
            return self.call(*new_args, **new_kwargs)

        # Keras takes the product of a tensor and a number for a sparse one; at a call it is dense.
        dense = (keras.KerasTensor(leaves[i].shape, leaves[i].dtype) for i in at)
        return keras.src.backend.compute_output_spec(on_tensors, *dense)

    def get_config(self) -> dict[str, Any]:
        """Return what this operation is made of again."""
        return {"function": self.function, "name": self.name}


class Shape(tuple[Any, ...]):
    """The shape of a tensor with what `tf.TensorShape` has besides."""

    def as_list(self) -> list[Any]:
        """Return the shape as a list."""
        return list(self)

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise TensorFlow's error if the other shape does not fit; an open size fits every size."""
        ours, theirs = ([n if isinstance(n, int) else None for n in shape] for shape in (self, other))
        tf.TensorShape(ours).assert_is_compatible_with(theirs)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    ndims = rank
    dims = property(as_list)


def _with_shape(prop: property) -> property:
    get: Callable[[Any], Any] | None = prop.fget
    assert get is not None, "a shape is read"
    return property(lambda tensor: Shape(get(tensor)), doc=prop.__doc__)


def _jax_array_of(tensor: Any) -> jax.Array:
    """Return TensorFlow's tensor as JAX's, for an operator between the two.

    Raises:
        OutOfReachError: If it is one of a graph.
    """
    if not hasattr(tensor, "numpy"):
        raise out_of_reach(
            what="a model, a layer or an array of JAX in a @tf.function of the program's own, or in tf.data's map,",
            why="TensorFlow traces it with tensors that have no values",
            write="model.fit(...) and model.predict(...), or the function without @tf.function; for an own step, a "
            "keras_tpu_ext.TPUModel with its train_step",
        )
    return jax.numpy.asarray(tensor.numpy())


def _with_open_sizes(stock: Function, tensor: Any, key: Any) -> Any:
    if any(isinstance(one, OpenSize) for one in _leaves(_ends(key))):
        return TensorFlowFunction(_GET_ITEM)(tensor, _static(key))
    return stock(tensor, (None, ...) if key is None else key)


def _ends(key: Any) -> Any:
    """Return what slices have in them, and what else is in a key."""
    if isinstance(key, slice):
        return [key.start, key.stop, key.step]
    return [_ends(one) for one in key] if isinstance(key, tuple) else key


def _serializing_constants(stock: Function, value: Any) -> Any:
    return stock(value.numpy() if isinstance(value, tf.Tensor) else value)


def install() -> None:
    """Give tensors the attributes that old programs read."""
    add(tf.Tensor, "__jax_array__", _jax_array_of)
    for kind in (ArrayImpl, jax.core.Tracer, keras.KerasTensor, keras.Variable):
        add(kind, "get_shape", lambda tensor: Shape(tensor.shape))
        add(kind, "set_shape", lambda tensor, shape: tensor.get_shape().assert_is_compatible_with(shape))
    add(ArrayImpl, "numpy", lambda array: np.asarray(array))
    shaped = ("keras.KerasTensor", "keras.Variable", "jax.core.Tracer")
    replace({f"{kind}.shape": _with_shape for kind in shaped})
    replace({"jax.Array.shape": _with_shape}, ArrayImpl)
    wrap(
        {
            "keras.KerasTensor.__getitem__": _with_open_sizes,
            "keras.src.saving.serialization_lib.serialize_keras_object": _serializing_constants,
        }
    )
