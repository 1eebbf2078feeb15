"""What TensorFlow's functions are given, as JAX wants it: by the names of TensorFlow's parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf

from keras_tpu_ext.dropin.errors import out_of_reach

_IGNORED = ("name", "validate_indices", "validate_args", "layout", "alg", "dtype_hint")
# What no function here can do, wherever it is among the parameters.
_UNSUPPORTED = ("preserve_aspect_ratio", "a_is_sparse", "b_is_sparse", "grad_a", "grad_b", "unique")
# Names of parameters in TensorFlow 1, which Keras uses too.
_OLD = {
    "filter": "filters",
    "dim": "axis",
    "keep_dims": "keepdims",
    "reduction_indices": "axis",
    "dilation_rate": "dilations",
}


def bind(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with the signature that TensorFlow's function `name` has.

    `function` gets the parameters in their order, a seed first, and none that is ignored. It may take fewer, if those
    at the end are rare: they must have TensorFlow's defaults.
    """
    code = getattr(function, "__code__", None)
    count = None if code is None or code.co_flags & inspect.CO_VARARGS else code.co_argcount

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = _bound(name, args, kwargs)
        values: list[Any] = []
        options: dict[str, Any] = {}
        for parameter in bound.signature.parameters.values():
            value = bound.arguments[parameter.name]
            if parameter.kind is parameter.VAR_KEYWORD:
                options = {key: option for key, option in value.items() if key not in _IGNORED}
            elif parameter.kind is parameter.VAR_POSITIONAL:
                values += value
            elif parameter.name == "seed":
                values.insert(0, value)
            elif parameter.name not in _IGNORED:
                is_taken = parameter.name not in _UNSUPPORTED and (count is None or len(values) < count)
                if is_taken:
                    values.append(value)
                elif not (value is parameter.default or value == parameter.default):
                    raise out_of_reach(
                        what=f"tf.{name}({parameter.name}={value!r})",
                        why="the drop-in has it without this argument",
                        write="the same with keras.ops, or the call in the tf.data pipeline",
                    )
        return function(*values, **options)

    call.__name__ = call.__qualname__ = name
    return call


@functools.cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(functools.reduce(getattr, name.split("."), tf))


def _bound(name: str, args: Any, kwargs: Any) -> inspect.BoundArguments:
    """Return all arguments, converted."""
    signature = _signature(name)
    known = {_OLD[key] if _OLD.get(key) in signature.parameters else key: value for key, value in kwargs.items()}
    bound = signature.bind(*args, **known)
    bound.apply_defaults()
    plain = {key: _plain(value) for key, value in bound.arguments.items()}
    floats = (one.dtype for one in jax.tree.leaves(plain) if isinstance(one, jax.Array) and _is_float(one))
    to = next(floats, None)
    for key, value in plain.items():
        convert = _CONVERTED.get(key)
        bound.arguments[key] = value if value is None or convert is None else convert(value, to)
    return bound


def _is_float(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic)) and jnp.issubdtype(value.dtype, jnp.floating)


def _plain(value: Any) -> Any:
    """Return an argument with the values of Keras's variables."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        raise out_of_reach(
            what=f"a tf.{type(value).__name__} in a model",
            why="its size depends on its data",
            write=".to_tensor() or tf.sparse.to_dense(...) in the tf.data pipeline",
        )
    return value.value if isinstance(value, keras.Variable) else value


def _tensor(value: Any, to: Any) -> Any:
    """Return an array; numbers stay what they are, as JAX then keeps the dtype, and floats of NumPy become `to`."""
    is_plain = isinstance(value, (bool, int, float, complex, str)) and not isinstance(value, np.generic)
    if value is None or isinstance(value, jax.Array) or is_plain:
        return value
    array = jnp.asarray(value)
    return array.astype(to) if to is not None and _is_float(array) else array


def _tensors(values: Any, to: Any) -> Any:
    return [_tensor(one, to) for one in values] if isinstance(values, (list, tuple)) else _tensor(values, to)


def dtype(value: Any) -> Any:
    """Return a dtype of TensorFlow, NumPy or a name as one that JAX has: int64 is int32, float64 is float32."""
    of_numpy = tf.as_dtype(value).as_numpy_dtype
    if of_numpy is object:
        raise out_of_reach(
            what="tf.string in a model",
            why="JAX has no strings",
            write="the lookup in the tf.data pipeline, and numbers to the model",
        )
    return jax.dtypes.canonicalize_dtype(of_numpy)


def number(value: Any) -> Any:
    """Return a size, index or axis as an int; the open size of a KerasTensor stays what it is."""
    if isinstance(value, (jax.core.Tracer, list, tuple)):
        raise out_of_reach(
            what="a shape, size or axis that is computed from data, or several of them for one,",
            why="a program is compiled for shapes that are known",
            write="a Python number, or a size of a tensor: tf.shape(x)[1]",
        )
    return int(value) if isinstance(value, (np.generic, np.ndarray, jax.Array)) else value


def numbers(value: Any) -> tuple[Any, ...]:
    """Return a shape, or what has a number for each axis, as a tuple."""
    if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
        value = list(np.asarray(value).reshape(-1))
    return tuple(number(item) for item in value) if isinstance(value, (list, tuple)) else (number(value),)


def _axes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_axes, value))
    return numbers(value) if np.ndim(value) else number(value)


# The parameters of TensorFlow's functions, by what they are. All others stay as they are given.
_TENSORS = """x y a b t input input_ input_tensor tensor features logits labels value params ids indices updates
    condition data segment_ids targets predictions weights lengths image images img1 img2 boxes box_indices matrix
    rhs diagonal filters filter depthwise_filter pointwise_filter mean variance offset scale bias label_length
    logit_length real imag per_example_loss sample_weight sorted_sequence seq_lengths signal signals scalar
    pos_weight clip_value_min clip_value_max clip_norm on_value off_value"""
_LISTS = "values inputs args t_list"
_AXES = "axis axes perm"
_DTYPES = "dtype out_type output_type index_type"
_NUMBERS = """shape dims size multiples sizes strides stride rates ksize fft_length output_shape noise_shape dilations
    crop_size batch_shape"""
_NUMBER = """depth k num num_classes num_segments batch_dims maxlen num_rows num_columns num_cols block_size
    frame_length frame_step target_height target_width num_samples depth_radius filter_size seq_axis batch_axis"""

_CONVERTED: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_TENSORS.split(), _tensor),
    **dict.fromkeys(_LISTS.split(), _tensors),
    **dict.fromkeys(_AXES.split(), lambda value, to: _axes(value)),
    **dict.fromkeys(_DTYPES.split(), lambda value, to: dtype(value)),
    **dict.fromkeys(_NUMBERS.split(), lambda value, to: numbers(value)),
    **dict.fromkeys(_NUMBER.split(), lambda value, to: number(value)),
}
