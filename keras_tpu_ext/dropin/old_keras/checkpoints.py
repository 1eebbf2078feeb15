"""Checkpoints that TensorFlow wrote for a Keras 2 model: their values, by the names that variables had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.report import told

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def read(model: Any, path: str) -> None:
    """Set a model's variables to the values of a checkpoint; nothing in the file is looked up but their names.

    Raises:
        OutOfReachError: If the checkpoint lacks a variable, or has it in another shape.
    """
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    named = dict(_named(model, ""))
    missing = [v.path for v in model.variables if not _is_random_state(v) and not any(v is n for n in named.values())]
    missing += [name for name, v in named.items() if tuple(shapes.get(name + _VALUE, (-1,))) != tuple(v.shape)]
    if missing:
        raise out_of_reach(
            what=f"load_weights({path!r})",
            why=f"the checkpoint, which TensorFlow wrote, has no value for {missing[0]} ({len(missing)} are missing)",
            write="the weights in a .h5 file: model.save_weights('weights.h5') with TensorFlow 2.15",
        )
    told("load_weights(a checkpoint of TensorFlow)", "its values, by the names of variables")
    for name, variable in named.items():
        variable.assign(reader.get_tensor(name + _VALUE))


def _is_random_state(variable: Any) -> bool:
    return "seed_generator" in variable.path


def _named(owner: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a layer or model under Keras 2's names: attributes, and numbers of a model's layers."""
    if isinstance(owner, (keras.Sequential, keras.src.models.functional.Functional)):
        with_weights = [layer for layer in owner.layers if layer.weights]
        for i, layer in enumerate(with_weights):
            yield from _named(layer, f"{prefix}layer_with_weights-{i}/")
        return
    for attribute, value in vars(owner).items():
        name = attribute.lstrip("_")
        if isinstance(value, keras.Variable):
            yield f"{prefix}{name}", value
        elif isinstance(value, keras.layers.Layer):
            yield from _named(value, f"{prefix}{name}/")
