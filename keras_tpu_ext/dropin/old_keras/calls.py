"""Calls of layers as Keras 2 took them: `call(self, x, training)`, flags by position, `model.build(shape)`."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from keras.src.layers import layer as layer_module
from keras.src.utils.python_utils import is_default

from keras_tpu_ext.dropin.errors import OutOfReachError
from keras_tpu_ext.dropin.old_keras.layers import is_shape
from keras_tpu_ext.dropin.old_keras.losses import is_of_keras
from keras_tpu_ext.dropin.patching import Function, wrap
from keras_tpu_ext.dropin.report import mapped
from keras_tpu_ext.dropin.tensors import Shape

_EMPTY = inspect.Parameter.empty


def install() -> None:
    """Make old calls work."""
    wrap(
        {
            "keras.src.layers.layer.CallSpec.__init__": _with_training,
            "keras.Operation.__call__": _each_argument_once,
            "keras.layers.Layer.__call__": _on_graph_tensors,
            "keras.layers.Layer.build": _building_a_model,
            "keras.layers.Layer.compute_output_spec": _as_called,
        }
    )


def _with_training(init: Function, self: Any, signature: inspect.Signature, *args: Any, **kwargs: Any) -> None:
    """Keras 2 gave a `call` its `training` and its `mask` also where they have no default."""
    *_, given, named = args
    names = list(signature.parameters)
    without = _without_default(signature)
    if without & set(names[len(given) :]) - named.keys():  # where another argument is missing, the call says so
        mapped("call(self, x, training)", "training=False is its default")
        signature = signature.replace(
            parameters=[
                one.replace(default=False if name == "training" else None) if name in without else one
                for name, one in signature.parameters.items()
            ]
        )
    init(self, signature, *args, **kwargs)


def _without_default(signature: inspect.Signature) -> set[str]:
    """Return the names of the arguments from `training` on that have no default."""
    after = itertools.dropwhile(lambda one: one.name != "training", signature.parameters.values())
    return {one.name for one in after if one.default is _EMPTY and one.kind is one.POSITIONAL_OR_KEYWORD}


def _on_graph_tensors(call: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Let a layer of the program's own without weights compute with TensorFlow in an input pipeline."""
    if not args or not isinstance(args[0], tf.Tensor) or hasattr(args[0], "numpy") or is_of_keras(type(self)):
        return call(self, *args, **kwargs)
    if not self.built:
        self.build(Shape(args[0].shape))
    if self.weights:
        return call(self, *args, **kwargs)
    mapped("a layer in an input pipeline", "its call, on TensorFlow")
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(self.call, autograph.control_status_ctx())(*args, **kwargs)


def _each_argument_once(call: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Keras 3 passes `training` and `mask` by name, also where the caller has given them by position."""
    names = getattr(self, "call_signature_parameters", ())[: len(args)]
    twice = [i for i, name in enumerate(names) if name in kwargs]
    if twice:
        mapped("layer(x, training, mask)", "layer(x, training=training, mask=mask)")
        kwargs = {**dict(zip(names[twice[0] :], args[twice[0] :], strict=True)), **kwargs}
        args = args[: twice[0]]
    return call(self, *args, **kwargs)


def _building_a_model(build: Function, self: Any, input_shape: Any) -> None:
    """Call a subclassed model on inputs without values, so that its layers get weights."""
    if isinstance(self, keras.Model) and input_shape is not None and layer_module.might_have_unbuilt_state(self):
        shape = tuple(input_shape) if is_shape(input_shape) else input_shape
        needs = inspect.signature(self.call).parameters.get("training")
        training = {"training": False} if needs is not None and needs.default is _EMPTY else {}
        inputs = tree.map_shape_structure(keras.KerasTensor, shape)
        backend.compute_output_spec(self.call, inputs, **training)
    build(self, input_shape)


def _as_called(compute_output_spec: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Keras 2 called a layer to know its outputs, whatever `compute_output_shape` said; random layers need that."""
    is_own = isinstance(self, keras.layers.Lambda) or type(self).__module__.split(".")[0] != "keras"
    if is_own and not is_default(self.compute_output_shape):
        try:
            return keras.Operation.compute_output_spec(self, *args, **kwargs)
        except OutOfReachError:
            raise
        except Exception:  # then what it says must do, as in Keras 3
            return compute_output_spec(self, *args, **kwargs)
    return compute_output_spec(self, *args, **kwargs)
