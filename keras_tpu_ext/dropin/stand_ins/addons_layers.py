"""Layers of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.backend import in_stateless_scope

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
    in a step of JAX, a call cannot change what is trained. With `data_init` these are those in which Addons has the
    first kernel and bias, which are not needed after it.
    """

    def __init__(self, layer: Any, data_init: bool = True, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.data_init = data_init

    def build(self, input_shape: Any) -> None:
        """Make the variables."""
        if not self.layer.built:
            self.layer.build(input_shape)
        kernel = getattr(self.layer, "_kernel", getattr(self.layer, "kernel", None))
        if kernel is None:
            raise ValueError(f"WeightNormalization needs a layer with a `kernel`, and {self.layer.name} has none.")
        self.g = self.add_weight(name="g", shape=kernel.shape[-1:], initializer="ones")
        self.v: Any = kernel
        self._bias = getattr(self.layer, "bias", None)
        # 1 if Addons, or a file of it, has set `g` and the bias themselves; 2 if a first batch was seen here.
        self.initialized = self.add_weight(name="initialized", shape=(), initializer="zeros", trainable=False)
        first = [one for one in (kernel, self._bias) if one is not None] if self.data_init else [self.g]
        self._first = [self.add_weight(name="first", shape=one.shape, trainable=False) for one in first]
        for one, then in zip(self._first, first, strict=True):
            one.assign(ops.copy(then))
        self.built = True

    def call(self, inputs: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        self._begin(inputs)
        g, bias = self.g + self._added(0), self._bias
        values = {id(self.v): self.v * ops.rsqrt(ops.maximum(self._square(), 1e-12)) * g}
        if bias is not None:
            values[id(bias)] = bias + self._added(1) if self.data_init else bias.value
        return self._called_with(values, inputs, **kwargs)

    def _added(self, place: int) -> Any:
        """Return what the first batch says: of `g`, the last row of an array of equal rows, or of the bias."""
        first = self._first[place]
        return ops.where(ops.equal(self.initialized, 2), first[(-1,) * (len(first.shape) - 1)], 0.0)

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
        found = [ops.sqrt(self._square()) - self.g]
        if self.data_init:
            scale, bias = self._scale_and_bias(inputs)
            found = [self.g * (scale - 1), bias - self._bias if self._bias is not None else None]
        is_first = ops.equal(self.initialized, 0)
        if not in_stateless_scope():  # outside of a step, a call can change what is trained, as in Addons
            for variable, added in zip((self.g, self._bias), found, strict=False):
                if added is not None:
                    variable.assign_add(ops.where(is_first, added, 0.0))
            self.initialized.assign(ops.where(is_first, 1.0, self.initialized.value))
            return
        for variable, added in zip(self._first, found, strict=False):
            variable.assign(ops.stop_gradient(ops.where(is_first, added, variable.value)))
        self.initialized.assign(ops.where(is_first, 2.0, self.initialized.value))

    def _scale_and_bias(self, inputs: Any) -> tuple[Any, Any]:
        """Return by what the layer's outputs would be normalised, without its activation."""
        activation = getattr(self.layer, "activation", None)
        if activation is not None:
            self.layer.activation = keras.activations.linear
        try:
            first = zip((self.v, self._bias), self._first, strict=False)
            outputs = self._called_with({id(of): one.value for of, one in first}, inputs)
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
