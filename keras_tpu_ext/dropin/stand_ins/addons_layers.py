"""Layers of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin.stand_ins.addons_activations import gelu

_PARTS = ("initializer", "regularizer", "constraint")


class _Scaled(keras.layers.Layer):
    """A layer that has a gamma and a beta, with what initialises, regularises and constrains them."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        own = {f"{of}_{part}": kwargs.pop(f"{of}_{part}", None) for of in ("beta", "gamma") for part in _PARTS}
        super().__init__(**kwargs)
        self.supports_masking = True
        own["beta_initializer"] = own["beta_initializer"] or "zeros"
        own["gamma_initializer"] = own["gamma_initializer"] or "ones"
        for name, value in own.items():
            setattr(self, name, getattr(keras, f"{name.split('_')[1]}s").get(value))

    def _weight(self, name: str, shape: tuple[int, ...]) -> Any:
        arguments = {part: getattr(self, f"{name}_{part}") for part in _PARTS}
        return self.add_weight(shape=shape, name=name, **arguments)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        for name in (f"{of}_{part}" for of in ("beta", "gamma") for part in _PARTS):
            config[name] = getattr(keras, f"{name.split('_')[1]}s").serialize(getattr(self, name))
        return config


@keras.saving.register_keras_serializable(package="Addons")
class GroupNormalization(_Scaled):
    """Each example's channels are normalised in groups.

    Args:
        groups: How many groups there are; -1 for as many as channels.
        axis: The axis of the channels.
        epsilon: Added to the variance.
        center: Whether there is a beta.
        scale: Whether there is a gamma.
        kwargs: `beta_initializer`, `gamma_regularizer` and the like, and those of a layer.
    """

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        if axis == 0:
            raise ValueError("You are trying to normalize your batch axis; write keras.layers.BatchNormalization")
        self.groups, self.axis, self.epsilon, self.center, self.scale = groups, axis, epsilon, center, scale
        self.gamma: Any = None
        self.beta: Any = None

    def build(self, input_shape: Any) -> None:
        """Make the variables."""
        channels = input_shape[self.axis]
        if channels is None:
            raise ValueError(f"Axis {self.axis} of input tensor should have a defined dimension, not {input_shape}.")
        self.groups = channels if self.groups == -1 else self.groups
        if channels % self.groups:
            raise ValueError(f"The number of channels ({channels}) must be a multiple of groups ({self.groups}).")
        self.gamma = self._weight("gamma", (channels,)) if self.scale else None
        self.beta = self._weight("beta", (channels,)) if self.center else None

    def call(self, inputs: Any) -> Any:
        """Compute the outputs."""
        axis = self.axis % len(inputs.shape)
        channels = inputs.shape[axis]
        shape = ops.shape(inputs)
        grouped = ops.reshape(inputs, (*shape[:axis], self.groups, channels // self.groups, *shape[axis + 1 :]))
        axes = [i for i in range(1, len(grouped.shape)) if i != axis]
        mean, variance = ops.moments(grouped, axes, keepdims=True)
        outputs = ops.reshape((grouped - mean) * ops.rsqrt(variance + self.epsilon), shape)
        of_channels = [channels if i == axis else 1 for i in range(len(inputs.shape))]
        if self.gamma is not None:
            outputs = outputs * ops.reshape(ops.cast(self.gamma, outputs.dtype), of_channels)
        if self.beta is not None:
            outputs = outputs + ops.reshape(ops.cast(self.beta, outputs.dtype), of_channels)
        return outputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("groups", "axis", "epsilon", "center", "scale")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="Addons")
class InstanceNormalization(GroupNormalization):
    """Each channel of each example is normalised; see `GroupNormalization` for the arguments."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "groups": -1})


@keras.saving.register_keras_serializable(package="Addons")
class FilterResponseNormalization(_Scaled):
    """Each channel of each image is divided by the root of its mean square.

    Args:
        epsilon: Added to the mean square.
        axis: [1, 2].
        learned_epsilon: Whether what is added is learned.
        learned_epsilon_constraint: A constraint for it.
        kwargs: `beta_initializer`, `gamma_regularizer` and the like, and those of a layer.
    """

    def __init__(
        self,
        epsilon: float = 1e-6,
        axis: Any = (1, 2),
        learned_epsilon: bool = False,
        learned_epsilon_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        if list(axis) != [1, 2]:
            raise ValueError("FilterResponseNormalization operates on images: axis should be [1, 2].")
        self.epsilon, self.learned_epsilon = epsilon, learned_epsilon
        self.learned_epsilon_constraint = keras.constraints.get(learned_epsilon_constraint)

    def build(self, input_shape: Any) -> None:
        """Make the variables."""
        if self.learned_epsilon:
            self.eps_learned = self.add_weight(
                shape=(1,),
                name="learned_epsilon",
                initializer=keras.initializers.Constant(1e-4),
                constraint=self.learned_epsilon_constraint,
            )
        self.gamma = self._weight("gamma", (1, 1, 1, input_shape[-1]))
        self.beta = self._weight("beta", (1, 1, 1, input_shape[-1]))

    def call(self, inputs: Any) -> Any:
        """Compute the outputs."""
        epsilon = abs(self.epsilon)
        if self.learned_epsilon:
            epsilon = epsilon + ops.abs(self.eps_learned)
        square = ops.mean(ops.square(inputs), axis=(1, 2), keepdims=True)
        return self.gamma * (inputs * ops.rsqrt(square + epsilon)) + self.beta

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        own = {"epsilon": self.epsilon, "learned_epsilon": self.learned_epsilon}
        own["learned_epsilon_constraint"] = keras.constraints.serialize(self.learned_epsilon_constraint)
        return {**super().get_config(), **own}


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


@keras.saving.register_keras_serializable(package="Addons")
class Maxout(keras.layers.Layer):
    """The largest number of each group of features.

    Args:
        num_units: How many groups there are.
        axis: The axis of the features.
        kwargs: Those of a layer.
    """

    def __init__(self, num_units: int, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_units, self.axis = num_units, axis

    def call(self, inputs: Any) -> Any:
        """Compute the outputs."""
        axis, shape = self.axis % len(inputs.shape), ops.shape(inputs)
        features = inputs.shape[axis]
        if features % self.num_units:
            raise ValueError(f"number of features({features}) is not a multiple of num_units({self.num_units})")
        grouped = (*shape[:axis], features // self.num_units, self.num_units, *shape[axis + 1 :])
        return ops.max(ops.reshape(inputs, grouped), axis=axis)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        shape = list(input_shape)
        shape[self.axis] = self.num_units
        return tuple(shape)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "num_units": self.num_units, "axis": self.axis}


@keras.saving.register_keras_serializable(package="Addons")
class GELU(keras.layers.Layer):
    """The activation `gelu`, which Addons approximates by default."""

    def __init__(self, approximate: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.approximate, self.supports_masking = approximate, True

    def call(self, inputs: Any) -> Any:
        """Compute the outputs."""
        return gelu(inputs, approximate=self.approximate)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "approximate": self.approximate}


@keras.saving.register_keras_serializable(package="Addons")
class StochasticDepth(keras.layers.Layer):
    """[shortcut, residual] -> their sum, in training with the residual or without it, for the whole batch.

    Args:
        survival_probability: How often the residual is there.
        kwargs: Those of a layer.
    """

    def __init__(self, survival_probability: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.survival_probability = survival_probability
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, x: Any, training: Any = None) -> Any:
        """Compute the outputs."""
        if not isinstance(x, list | tuple) or len(x) != 2:
            raise ValueError("input must be a list of length 2.")
        shortcut, residual = x
        if not training:
            return shortcut + self.survival_probability * residual
        chance = keras.random.uniform((), seed=self.seed_generator)
        return shortcut + ops.cast(chance <= self.survival_probability, residual.dtype) * residual

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "survival_probability": self.survival_probability}
