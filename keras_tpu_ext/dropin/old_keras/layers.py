"""Attributes and methods of layers and models that Keras 2 had."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import tree
from keras.src.layers import layer as layer_module

from keras_tpu_ext.dropin import patching
from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.old_keras import spellings
from keras_tpu_ext.dropin.report import mapped, means_old

Method = Callable[..., Any]

_ADD_WEIGHT = ("name", "shape", "dtype", "initializer", "regularizer", "trainable", "constraint")  # Keras 2's order


class BuildShape(tuple[Any, ...]):
    """A shape as `build` got it: a tuple with the methods of a `tf.TensorShape`."""

    def as_list(self) -> list[int | None]:
        """Return the sizes as a list."""
        mapped("input_shape.as_list()", "list(input_shape)")
        return list(self)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self)

    ndims = rank
    dims = property(as_list)


class _Default:
    """An attribute of a class that instances may set to something else."""

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self._get = get

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._get(instance)


def install() -> None:
    """Add what layers lack."""
    layer, model = keras.layers.Layer, keras.Model
    patching.add(layer, "input_shape", _Default(lambda self: _shapes(self.input)))
    patching.add(layer, "output_shape", _Default(lambda self: _shapes(self.output)))
    patching.add(layer, "uses_learning_phase", False)
    patching.add(layer, "add_update", _add_update)
    patching.add(model, "reset_states", _reset_states)  # before that of layers, which models have, too
    patching.add(layer, "reset_states", lambda self: self.reset_state() if hasattr(self, "reset_state") else None)
    patching.add(layer, "updates", _Default(lambda self: []))
    for target, name, make in (
        (layer, "keras.layers.Layer.add_weight", _add_weight),
        (layer, "keras.layers.Layer.add_metric", lambda _: _add_metric),
        (keras.layers.InputLayer, "keras.layers.InputLayer.input", lambda _: property(lambda self: self.output)),
        (keras.layers.BatchNormalization, "keras.layers.BatchNormalization.call", _with_variance_of_samples),
        (keras.layers.RNN, "keras.layers.RNN._create_state_variables", _carried),
        (model, "keras.Model.get_layer", _get_layer),
        (layer_module, "keras.src.layers.layer.get_shapes_dict", _build_shapes),
    ):
        spellings.replace(target, name, make)


def _shapes(tensors: Any) -> Any:
    return tree.map_structure(lambda tensor: tuple(tensor.shape), tensors)


def _add_update(self: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing: a variable is written where `assign` stands."""
    mapped("add_update", "nothing: `assign` writes at once")


def _reset_states(self: Any) -> None:
    """Reset the states of recurrent layers."""
    mapped("model.reset_states()", "reset_state() of each layer")
    for layer in self._flatten_layers(include_self=False):
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_state"):
            layer.reset_state()


def _add_weight(stock: Method) -> Method:
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str):
            mapped("add_weight(name, ...)", "add_weight(name=...)")
            kwargs.update(zip(_ADD_WEIGHT, args, strict=False))
            args = ()
        for name in ("use_resource", "synchronization", "partitioner", "getter", "collections"):
            if kwargs.pop(name, None) is not None:
                mapped(f"add_weight({name}=)", "nothing")
        if not isinstance(kwargs.get("aggregation", ""), str):
            kwargs.pop("aggregation")
        if "experimental_autocast" in kwargs:
            kwargs["autocast"] = kwargs.pop("experimental_autocast")
        if kwargs.get("trainable", True) is None:
            kwargs["trainable"] = True
        return stock(self, *args, **kwargs)

    return add_weight


def _add_metric(self: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse: a metric that a call makes has variables, which a step on JAX cannot make."""
    raise out_of_reach(
        what=f"{type(self).__name__}.add_metric",
        why="it makes a variable while the step is traced",
        write="compile(metrics=[...]), or let the value be one more output of the model, and its metric "
        "lambda y_true, y_pred: tf.reduce_mean(y_pred)",
    )


def _with_variance_of_samples(stock: Method) -> Method:
    """Keep the variance over N - 1 of images, as TensorFlow's fused kernel did; Keras 3 keeps that over N."""

    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        fused = vars(self).get("_kte_fused", True) and len(inputs.shape) == 4 and self.axis in (-1, 1, 3)
        count = math.prod(size or 0 for size in inputs.shape) // (inputs.shape[self.axis] or 1) if fused else 0
        if not (training and self.trainable and count > 1) or self.renorm or mask is not None:
            return stock(self, inputs, training=training, mask=mask)
        if not means_old("BatchNormalization of images", "a moving variance over N - 1, as in Keras 2"):
            return stock(self, inputs, training=training)
        kept = keras.ops.multiply(self.moving_variance, self.momentum)
        outputs = stock(self, inputs, training=training)
        self.moving_variance.assign(kept + (self.moving_variance - kept) * (count / (count - 1)))
        return outputs

    return call


class _State:
    """A variable that a step is given and gives back, and that is no weight: Keras 3 has a seed's for such."""

    def __init__(self, state: Any) -> None:
        self.state = state


def _carried(stock: Method) -> Method:
    """Let steps carry the states of stateful layers, which on JAX they would not."""

    def create_state_variables(self: Any, batch_size: Any) -> None:
        stock(self, batch_size)
        if means_old("stateful=True", "states that each step gives to the next"):
            self._seed_generators.extend(map(_State, tree.flatten(self.states)))

    return create_state_variables


def _get_layer(stock: Method) -> Method:
    def get_layer(self: Any, name: Any = None, index: Any = None) -> Any:
        return stock(self, name.replace("/", "_") if isinstance(name, str) else name, index)

    return get_layer


def _build_shapes(stock: Method) -> Method:
    """Give the user's `build` shapes that have `as_list`."""

    def get_shapes_dict(call_spec: Any) -> dict[str, Any]:
        shapes = stock(call_spec)
        return {k: BuildShape(v) if type(v) is tuple and _is_shape(v) else v for k, v in shapes.items()}

    return get_shapes_dict


def _is_shape(value: tuple[Any, ...]) -> bool:
    return all(size is None or isinstance(size, int) for size in value)
