"""Attributes and methods of layers and models that Keras 2 had."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import tree

from keras_tpu_ext.dropin.old_keras.arguments import rename
from keras_tpu_ext.dropin.patching import Function, add, replace, wrap
from keras_tpu_ext.dropin.report import mapped, means_old
from keras_tpu_ext.dropin.tensors import Shape
from keras_tpu_ext.tools.migrate.tables.old_arguments import METHOD_ARGUMENTS, ORDERS


class _Default:
    """An attribute of a class that instances may set to something else."""

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self._get = get

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._get(instance)


def install() -> None:
    """Add what layers lack."""
    layer = keras.layers.Layer
    add(layer, "input_shape", _Default(lambda self: _shapes(self.input)))
    add(layer, "output_shape", _Default(lambda self: _shapes(self.output)))
    add(layer, "uses_learning_phase", False)
    add(keras.Model, "input_names", property(lambda self: [tensor.name for tensor in self.inputs]))
    add(layer, "add_update", _add_update)
    add(keras.Model, "reset_states", _reset_states)  # before that of layers, which models have, too
    add(layer, "reset_states", lambda self: self.reset_state() if hasattr(self, "reset_state") else None)
    add(layer, "updates", _Default(lambda self: []))
    wrap(
        {
            "keras.layers.Layer.add_weight": _add_weight,
            "keras.layers.BatchNormalization.call": _with_variance_of_samples,
            "keras.layers.RNN._create_state_variables": _carried,
            "keras.Model.get_layer": _get_layer,
            "keras.src.layers.layer.get_shapes_dict": _build_shapes,
        }
    )
    replace(
        {
            "keras.layers.Layer.weights": _in_old_order,
            "keras.layers.InputLayer.input": lambda _: property(lambda self: self.output),
            "keras.layers.Layer.trainable_variables": functools.partial(_below_frozen, True, "variables"),
            "keras.layers.Layer.non_trainable_variables": functools.partial(_below_frozen, False, "variables"),
            "keras.layers.Layer.trainable_weights": functools.partial(_below_frozen, True, "weights"),
            "keras.layers.Layer.non_trainable_weights": functools.partial(_below_frozen, False, "weights"),
            "keras.Sequential.input": functools.partial(_of_own, lambda self: self.inputs),
            "keras.Sequential.output": functools.partial(_of_own, lambda self: self.outputs),
        }
    )


def _in_old_order(stock: property) -> property:
    """Let a layer's weights that train come first, and a model's own weights last."""

    def weights(self: Any) -> Any:
        found = stock.__get__(self)
        if isinstance(self, keras.Model):
            below = {id(one) for layer in self.layers for one in layer.weights}
            then = sorted(found, key=lambda one: id(one) not in below)
        else:
            then = sorted(found, key=lambda one: not one.trainable)
        changed = any(a is not b for a, b in zip(found, then, strict=True))
        return then if changed and means_old("the order of weights", "as in Keras 2") else found

    return property(weights)


def _below_frozen(trains: bool, of: str, stock: property) -> property:
    """Let what is below a frozen layer be frozen, however it is set itself; Keras 3 asks the variable alone."""

    def trainable(self: Any) -> Any:
        layers = [layer for layer in self._flatten_layers(include_self=False) if not layer.trainable]
        frozen = {id(one) for layer in layers for one in layer.variables if one.trainable} if self.trainable else ()
        if not frozen or not means_old("what is below a frozen layer", "frozen, as in Keras 2"):
            return stock.__get__(self)
        return [one for one in getattr(self, of) if (one.trainable and id(one) not in frozen) is trains]

    return property(trainable)


def _of_own(get: Function, stock: property) -> property:
    """Let a `Sequential` have the tensors that it was made with; Keras 3 gives those of its first call, or none."""

    def tensors(self: Any) -> Any:
        own = get(self)
        own = own[0] if len(own) == 1 else own
        called = stock.__get__(self) if self._inbound_nodes else own
        same = called is own or means_old(f"{self.name}.input and .output", "its own, as in Keras 2")
        return own if same else called

    return property(tensors)


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


def _add_weight(stock: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    if args and isinstance(args[0], str):
        mapped("add_weight(name, ...)", "add_weight(name=...)")
        kwargs.update(zip(ORDERS["add_weight"].split(), args, strict=False))
        args = ()
    rename(METHOD_ARGUMENTS["add_weight"], kwargs)
    if not isinstance(kwargs.get("aggregation", ""), str):
        kwargs.pop("aggregation")
    if kwargs.get("trainable", True) is None:
        kwargs["trainable"] = True
    if isinstance(kwargs.get("shape"), (int, np.integer)):
        mapped("add_weight(shape=n)", "add_weight(shape=(n,))")
        kwargs["shape"] = (int(kwargs["shape"]),)
    return stock(self, *args, **kwargs)


def _with_variance_of_samples(stock: Function, self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """Keep the variance over N - 1 of images, as TensorFlow's fused kernel did; Keras 3 keeps that over N."""
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


class _State:
    """A variable that a step is given and gives back, and that is no weight: Keras 3 has a seed's for such."""

    def __init__(self, state: Any) -> None:
        self.state = state


def _carried(stock: Function, self: Any, batch_size: Any) -> None:
    """Let steps carry the states of stateful layers, which on JAX they would not."""
    stock(self, batch_size)
    if means_old("stateful=True", "states that each step gives to the next"):
        self._seed_generators.extend(map(_State, tree.flatten(self.states)))


def _get_layer(stock: Function, self: Any, name: Any = None, index: Any = None) -> Any:
    return stock(self, name.replace("/", "_") if isinstance(name, str) else name, index)


def _build_shapes(stock: Function, call_spec: Any) -> dict[str, Any]:
    """Give the user's `build` shapes that have `as_list`."""
    shapes = stock(call_spec)
    return {k: Shape(v) if type(v) is tuple and is_shape(v) else v for k, v in shapes.items()}


def is_shape(value: Any) -> bool:
    """Return whether this is one shape, and no structure of shapes."""
    return not isinstance(value, dict) and all(size is None or isinstance(size, int) for size in value)
