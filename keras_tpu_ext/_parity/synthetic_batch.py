"""A batch made up for a model: random numbers of the shapes it takes, and targets that its losses accept."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError

# What each loss wants to be compared with, by its name in small letters without underscores.
_LABELS = ("sparsecategoricalcrossentropy",)
_ONE_HOT = ("categoricalcrossentropy", "categoricalfocalcrossentropy", "kldivergence", "categoricalhinge")
_ZERO_OR_ONE = ("binarycrossentropy", "binaryfocalcrossentropy", "hinge", "squaredhinge", "dice", "tversky")
_POSITIVE = (
    "meansquarederror",
    "meanabsoluteerror",
    "meanabsolutepercentageerror",
    "meansquaredlogarithmicerror",
    "cosinesimilarity",
    "huber",
    "logcosh",
    "poisson",
)


def synthetic_batch(model: Any, examples: int) -> tuple[Any, Any]:
    """Return `x` and `y` of `examples` random examples for a compiled `model`, always the same ones.

    Raises:
        ArgumentError: If shapes, dtypes or losses do not tell enough.
    """
    rng = np.random.default_rng(0)
    graph = _runtime.models.inputs_and_outputs(model)
    if graph is None:
        raise _cannot(f"the model {model.name!r} has no symbolic inputs that tell their shapes")
    inputs, outputs = graph
    embeddings = [
        one for one in _runtime.models.flatten_layers(model) if isinstance(one, _runtime.keras.layers.Embedding)
    ]
    tree = _runtime.tree
    x = tree.map_structure(lambda tensor: _input(tensor, examples, embeddings, rng), inputs)
    losses = _losses(model, outputs)
    flat = [_target(loss, tensor, examples, rng) for loss, tensor in zip(losses, tree.flatten(outputs), strict=True)]
    return x, (tree.pack_sequence_as(outputs, flat) if any(target is not None for target in flat) else None)


def _input(tensor: Any, examples: int, embeddings: list[Any], rng: Any) -> Any:
    shape, dtype = _shape(tensor, examples), getattr(tensor.dtype, "name", tensor.dtype)
    readers = [layer for layer in embeddings if _reads(layer, tensor)]
    if readers or (embeddings and dtype.startswith(("int", "uint"))):
        return rng.integers(0, min(layer.input_dim for layer in readers or embeddings), shape).astype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "uint8":
        return rng.integers(0, 256, shape).astype(dtype)
    if dtype.startswith(("float", "bfloat")):
        return rng.normal(size=shape).astype("float32")
    raise _cannot(f"the range of input {tensor.name!r}, of dtype {dtype}, is not known")


def _reads(layer: Any, tensor: Any) -> bool:
    try:
        return layer.input is tensor
    except (AttributeError, ValueError):  # it was called more than once, or not yet
        return False


def _losses(model: Any, outputs: Any) -> list[Any]:
    count, loss = len(_runtime.tree.flatten(outputs)), model.loss
    if isinstance(loss, dict):
        names = list(outputs) if isinstance(outputs, dict) else list(model.output_names)
        return [loss.get(name) for name in names]
    if isinstance(loss, (list, tuple)):
        return [*loss, *[None] * count][:count]
    return [loss] * count


def _target(loss: Any, tensor: Any, examples: int, rng: Any) -> Any:
    if loss is None:
        return None
    loss = _runtime.keras.losses.get(loss)
    name = getattr(loss, "__name__", type(loss).__name__).lower().replace("_", "")
    shape = _shape(tensor, examples)
    if name in _LABELS:
        return rng.integers(0, shape[-1], shape[:-1])
    if name in _ONE_HOT:
        return np.eye(shape[-1], dtype="float32")[rng.integers(0, shape[-1], shape[:-1])]
    if name in _ZERO_OR_ONE:
        return rng.integers(0, 2, shape).astype("float32")
    if name in _POSITIVE:
        return rng.uniform(size=shape).astype("float32")
    raise _cannot(f"the loss {getattr(loss, '__name__', type(loss).__name__)} does not tell what targets it takes")


def _shape(tensor: Any, examples: int) -> tuple[int, ...]:
    if None in tensor.shape[1:]:
        raise _cannot(f"{tensor.name!r} has the shape {tuple(tensor.shape)}, with a size that is not known")
    return (examples, *tensor.shape[1:])


def _cannot(why: str) -> ArgumentError:
    return ArgumentError(
        f"No batch can be made up for this model: {why}. Let the function return (model, batch), or name a function "
        "that returns one: --batch module:function."
    )
