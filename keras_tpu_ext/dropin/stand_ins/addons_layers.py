"""Layers of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

_register = keras.saving.register_keras_serializable(package="Addons")


@_register
class GroupNormalization(keras.layers.GroupNormalization):
    """Keras's layer, which is that of Addons; halves are normalised in float32, unlike there."""


@_register
class InstanceNormalization(GroupNormalization):
    """`GroupNormalization` with a group for each channel, as in Addons."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "groups": -1})


@_register
class WeightNormalization(keras.layers.Wrapper):
    """A layer whose kernel is `v`, divided by its length, times `g`; unlike in Addons, not around an RNN.

    What the first batch says of `g` and of the bias is kept beside them, in weights that are not trained, and added:
    in a step of JAX, a call cannot change what is trained.
    """

    def __init__(self, layer: Any, data_init: bool = True, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.data_init = data_init

    def build(self, input_shape: Any) -> None:
        """Make the variables."""
        if not self.layer.built:
            self.layer.build(input_shape)
        self.v: Any = getattr(self.layer, "_kernel", getattr(self.layer, "kernel", None))
        if self.v is None:
            raise ValueError(f"WeightNormalization needs a layer with a `kernel`, and {self.layer.name} has none.")
        self._bias = getattr(self.layer, "bias", None)
        depth = (self.v.shape[-1],)
        self.g = self.add_weight(name="g", shape=depth, initializer="ones")
        shapes = {"added_g": depth, "added_bias": () if self._bias is None else self._bias.shape, "initialized": ()}
        self._added_g, self._added_bias, self.initialized = (
            self.add_weight(name=name, shape=shape, initializer="zeros", trainable=False)
            for name, shape in shapes.items()
        )
        self.built = True

    def call(self, inputs: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        self._begin(inputs)
        kernel = self.v * ops.rsqrt(ops.maximum(self._square(), 1e-12)) * (self.g + self._added_g)
        values = {id(self.v): kernel}
        if self._bias is not None:
            values[id(self._bias)] = self._bias + self._added_bias
        return self._called_with(values, inputs, **kwargs)

    def _square(self) -> Any:
        return ops.sum(ops.square(self.v), axis=tuple(range(len(self.v.shape) - 1)))

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
        added = ops.sqrt(self._square()) - self.g
        if self.data_init:
            scale, bias = self._scale_and_bias(inputs)
            added = self.g * (scale - 1)
            if self._bias is not None:
                self._added_bias.assign(ops.where(is_first, bias - self._bias, self._added_bias.value))
        self._added_g.assign(ops.stop_gradient(ops.where(is_first, added, self._added_g.value)))
        self.initialized.assign(1.0)

    def _scale_and_bias(self, inputs: Any) -> tuple[Any, Any]:
        """Return by what the layer's outputs would be normalised, without its activation."""
        activation = getattr(self.layer, "activation", None)
        if activation is not None:
            self.layer.activation = keras.activations.linear
        try:
            outputs = self._called_with({}, inputs)
        finally:
            if activation is not None:
                self.layer.activation = activation
        mean, variance = ops.moments(outputs, tuple(range(len(outputs.shape) - 1)))
        scale = 1 / ops.sqrt(variance + 1e-10)
        times = self.g.shape[0] // scale.shape[0]
        return ops.stop_gradient(ops.tile(scale, [times])), ops.stop_gradient(-mean * scale)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return self.layer.compute_output_shape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "data_init": self.data_init}
