"""Functions of old Keras that Keras 3 has under no name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.report import told


def multi_gpu_model(model: Any, gpus: Any = None, **_: Any) -> Any:
    """Return the model: it trains on all devices of the strategy."""
    told("multi_gpu_model(model)", "model: it trains on all devices of the strategy")
    return model


def print_summary(model: Any, line_length: int | None = None, positions: Any = None, print_fn: Any = None) -> None:
    """Print `model.summary()`."""
    model.summary(line_length=line_length, positions=positions, print_fn=print_fn)


def LossScaleOptimizer(optimizer: Any, loss_scale: Any = "dynamic") -> Any:  # noqa: N802, it was a class
    """Return an optimizer that scales the loss, as `mixed_precision.experimental` had it."""
    return keras.mixed_precision.LossScaleOptimizer(optimizer, loss_scale=loss_scale)


def legacy_get_updates_support(function: Any) -> Any:
    """Say that `get_updates`, which wrote an optimizer's own updates, has no counterpart."""
    raise out_of_reach(
        what="Optimizer.get_updates",
        why="it makes a graph of TensorFlow 1",
        write="`update_step(self, gradient, variable, learning_rate)` in a subclass of keras.optimizers.Optimizer",
    )


def to_ordinal(y: Any, num_classes: int | None = None, dtype: str = "float32") -> Any:
    """Return classes as rows of `num_classes - 1` ones and zeros: as many ones as the class's number."""
    y = np.asarray(y, dtype="int64")
    if y.ndim > 1 and y.shape[-1] == 1:
        y = y[..., 0]
    classes = num_classes or int(y.max()) + 1
    return (np.arange(classes - 1) < y[..., None]).astype(dtype)


def shape_type_conversion(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that gets the shape of its input as a tuple, or several as a list of tuples."""

    def plain(shape: Any) -> Any:
        if isinstance(shape, dict):
            return {name: plain(one) for name, one in shape.items()}
        if isinstance(shape, list) and shape and isinstance(shape[0], (list, tuple)):
            return [plain(one) for one in shape]
        return None if shape is None else tuple(shape)

    @functools.wraps(function)
    def wrapper(self: Any, input_shape: Any) -> Any:
        return function(self, plain(input_shape))

    return wrapper


def conv_output_length(
    input_length: int | None, filter_size: int, padding: str, stride: int, dilation: int = 1
) -> int | None:
    """Return the size of a convolution's output along one axis."""
    if input_length is None:
        return None
    width = filter_size + (filter_size - 1) * (dilation - 1)
    more = {"same": 0, "causal": 0, "valid": 1 - width, "full": width - 1}[padding]
    return (input_length + more + stride - 1) // stride


def conv_input_length(output_length: int | None, filter_size: int, padding: str, stride: int) -> int | None:
    """Return the size of a convolution's input along one axis."""
    if output_length is None:
        return None
    pad = {"same": filter_size // 2, "valid": 0, "full": filter_size - 1}[padding]
    return (output_length - 1) * stride - 2 * pad + filter_size


def deconv_output_length(
    input_length: int | None,
    filter_size: int,
    padding: str,
    output_padding: int | None = None,
    stride: int = 0,
    dilation: int = 1,
) -> int | None:
    """Return the size of a transposed convolution's output along one axis."""
    if input_length is None:
        return None
    width = filter_size + (filter_size - 1) * (dilation - 1)
    if output_padding is None:
        extra = {"valid": max(width - stride, 0), "full": -(stride + width - 2), "same": 0}[padding]
        return input_length * stride + extra
    pad = {"same": width // 2, "valid": 0, "full": width - 1}[padding]
    return (input_length - 1) * stride + width - 2 * pad + output_padding
