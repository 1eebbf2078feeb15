"""Layers of old Keras that Keras 3 has no more, with the weights that they had."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin.errors import out_of_reach

_register = keras.saving.register_keras_serializable("keras_tpu_ext.dropin")


@_register
class ThresholdedReLU(keras.layers.Layer):
    """The input where it is more than `theta`, and zero elsewhere."""

    def __init__(self, theta: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if theta is None or theta < 0:
            raise ValueError(f"theta needs to be a number that is not negative; this is {theta!r}.")
        self.theta = float(theta)
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """Return the activation."""
        return inputs * ops.cast(inputs > self.theta, inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the input's shape."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "theta": self.theta}


class _LocallyConnected(keras.layers.Layer):
    """A convolution that has a kernel of its own at each place; channels come last."""

    rank: int

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        implementation: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        data_format = data_format or keras.config.image_data_format()
        if padding != "valid" or data_format != "channels_last" or implementation != 1:
            raise out_of_reach(
                what=f"{type(self).__name__}(padding={padding!r}, data_format={data_format!r}, "
                f"implementation={implementation!r})",
                why="only valid padding, channels last and implementation 1 have been written",
                write=f"{type(self).__name__}(filters, kernel_size) on an input that is padded before",
            )
        self.filters, self.use_bias = filters, use_bias
        self.kernel_size, self.strides = self._tuple(kernel_size), self._tuple(strides)
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def _tuple(self, value: Any) -> tuple[int, ...]:
        return (value,) * self.rank if isinstance(value, int) else tuple(value)

    def _places(self, input_shape: Any) -> tuple[int, ...]:
        sizes = zip(input_shape[1:-1], self.kernel_size, self.strides, strict=True)
        return tuple((size - kernel) // stride + 1 for size, kernel, stride in sizes)

    def build(self, input_shape: Any) -> None:
        """Make a kernel and a bias for each place."""
        places = self._places(input_shape)
        self.kernel = self.add_weight(
            (math.prod(places), input_shape[-1] * math.prod(self.kernel_size), self.filters),
            self.kernel_initializer,
            name="kernel",
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                (*places, self.filters),
                self.bias_initializer,
                name="bias",
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def call(self, inputs: Any) -> Any:
        """Return the output, (batch, *places, filters)."""
        places = self._places(inputs.shape)
        images = inputs if self.rank == 2 else inputs[:, :, None, :]  # a line is an image that is one pixel wide
        size, strides = (*self.kernel_size, 1)[:2], (*self.strides, 1)[:2]
        patches = ops.image.extract_patches(images, size, strides=strides, padding="valid")
        patches = ops.reshape(patches, (-1, self.kernel.shape[0], self.kernel.shape[1]))
        outputs = ops.reshape(ops.einsum("bpk,pkf->bpf", patches, self.kernel), (-1, *places, self.filters))
        return self.activation(outputs if self.bias is None else outputs + self.bias)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return the output's shape."""
        return (input_shape[0], *self._places(input_shape), self.filters)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        plain = ("filters", "kernel_size", "strides", "use_bias")
        parts = [f"{of}_{what}" for of in ("kernel", "bias") for what in ("initializer", "regularizer", "constraint")]
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in plain},
            **{name: keras.saving.serialize_keras_object(getattr(self, name)) for name in ("activation", *parts)},
        }


@_register
class LocallyConnected1D(_LocallyConnected):
    """A 1-D convolution that has a kernel of its own at each place."""

    rank = 1


@_register
class LocallyConnected2D(_LocallyConnected):
    """A 2-D convolution that has a kernel of its own at each place."""

    rank = 2
