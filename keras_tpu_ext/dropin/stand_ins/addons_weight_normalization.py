"""WeightNormalization of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="Addons")
class WeightNormalization(keras.layers.Wrapper):
    """A layer whose kernel is `v`, divided by its length, times `g`.

    What the first batch says of `g` and of the bias is kept beside them, in weights that are not trained, and added:
    in a step of JAX, a call cannot change what is trained.

    Args:
        layer: A layer with a kernel.
        data_init: Whether the first batch's outputs are normalised; else `g` begins as the length of `v`.
        kwargs: Those of a layer.
    """

    def __init__(self, layer: Any, data_init: bool = True, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.data_init = data_init
        self.is_rnn = isinstance(layer, keras.layers.RNN)

    def build(self, input_shape: Any) -> None:
        """Make the variables."""
        if not self.layer.built:
            self.layer.build(input_shape)
        of = self.layer.cell if self.is_rnn else self.layer
        self.v: Any = of.recurrent_kernel if self.is_rnn else getattr(of, "_kernel", getattr(of, "kernel", None))
        if self.v is None:
            raise ValueError("`WeightNormalization` must wrap a layer that contains a `kernel` for weights")
        self._bias = None if self.is_rnn else getattr(self.layer, "bias", None)
        depth = self.v.shape[-1]
        self.g = self.add_weight(name="g", shape=(depth,), initializer="ones")
        self._added_g = self.add_weight(name="added_g", shape=(depth,), initializer="zeros", trainable=False)
        if self._bias is not None:
            self._added_bias = self.add_weight(
                name="added_bias", shape=self._bias.shape, initializer="zeros", trainable=False
            )
        self.initialized = self.add_weight(name="initialized", shape=(), initializer="zeros", trainable=False)
        self.built = True

    def call(self, inputs: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        self._begin(inputs)
        values = {id(self.v): self._kernel_of(self.g + self._added_g)}
        if self._bias is not None:
            values[id(self._bias)] = self._bias + self._added_bias
        return self._called_with(values, inputs, **kwargs)

    def _kernel_of(self, g: Any) -> Any:
        square = ops.sum(ops.square(self.v), axis=tuple(range(len(self.v.shape) - 1)), keepdims=True)
        return self.v * ops.rsqrt(ops.maximum(square, 1e-12)) * g

    def _called_with(self, values: dict[int, Any], inputs: Any, **kwargs: Any) -> Any:
        """Call the layer with other values of some of its variables."""
        pairs = [(variable, values.get(id(variable), variable.value)) for variable in self.layer.variables]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            outputs = self.layer(inputs, **kwargs)
        for variable in self.layer.non_trainable_variables:
            value = scope.get_current_value(variable)
            if value is not None:
                variable.assign(value)
        return outputs

    def _begin(self, inputs: Any) -> None:
        """In the first call, find what is added to `g` and the bias."""
        is_first = ops.equal(self.initialized, 0)
        if self.data_init:
            scale, bias = self._scale_and_bias(inputs)
            added = self.g * (scale - 1)
            if self._bias is not None:
                self._added_bias.assign(ops.where(is_first, bias - self._bias, self._added_bias.value))
        else:
            length = ops.sqrt(ops.sum(ops.square(self.v), axis=tuple(range(len(self.v.shape) - 1))))
            added = length - self.g
        self._added_g.assign(ops.stop_gradient(ops.where(is_first, added, self._added_g.value)))
        self.initialized.assign(1.0)

    def _scale_and_bias(self, inputs: Any) -> tuple[Any, Any]:
        """Return by what the layer's outputs would be normalised, without its activation."""
        activation = getattr(self.layer, "activation", None)
        if activation is not None and not self.is_rnn:
            self.layer.activation = keras.activations.linear
        try:
            outputs = self._called_with({}, inputs)
        finally:
            if activation is not None and not self.is_rnn:
                self.layer.activation = activation
        mean, variance = ops.moments(outputs, tuple(range(len(outputs.shape) - 1)))
        scale = 1 / ops.sqrt(variance + 1e-10)
        bias = ops.stop_gradient(-mean * scale)
        times = self.g.shape[0] // scale.shape[0]
        return ops.stop_gradient(ops.tile(scale, [times]) if times > 1 else scale), bias

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return self.layer.compute_output_shape(input_shape)

    def remove(self) -> Any:
        """Give the layer the kernel and the bias that it is called with, and return it."""
        self.v.assign(self._kernel_of(self.g + self._added_g))
        if self._bias is not None:
            self._bias.assign(self._bias + self._added_bias)
        return self.layer

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "data_init": self.data_init}
