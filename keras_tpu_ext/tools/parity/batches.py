"""Batches as structures of arrays: checked, indexed, or synthetic for a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError

Batch = tuple[Any, Any, Any]  # x, y and sample_weight

_WRITE = "a batch as x, (x, y) or (x, y, sample_weight), of arrays with the examples first: (images, labels)"
# The targets of each loss, by its name in lower case without underscores.
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


def parse_batch(batch: Any) -> Batch:
    """Return `batch` as `x`, `y` and `sample_weight`, structures of NumPy arrays with one leading dimension."""
    if hasattr(batch, "element_spec") or hasattr(batch, "__next__"):
        got = f"a {type(batch).__name__}, which has many"
        write = "check_parity(build_model, next(iter(dataset)))"
        raise check.argument_error("check_parity", "batch", "one batch of arrays", got, write)
    parts = batch if isinstance(batch, tuple) else (batch,)
    if not 1 <= len(parts) <= 3:
        raise check.argument_error("check_parity", "batch", "one to three parts", f"a tuple of {len(parts)}", _WRITE)
    arrays = _map(np.asarray, (*parts, None, None)[:3])
    leaves = [leaf for leaf in _runtime.tree.flatten(arrays) if leaf is not None]
    if any(leaf.ndim == 0 for leaf in leaves):
        raise check.argument_error("check_parity", "batch", "arrays", "single numbers", _WRITE)
    sizes = sorted({len(leaf) for leaf in leaves})
    if len(sizes) != 1 or sizes[0] == 0:
        needed = "arrays with the same number of examples, at least 1"
        raise check.argument_error("check_parity", "batch", needed, repr(sizes), _WRITE)
    x, y, sample_weight = arrays
    return x, y, sample_weight


def num_examples(batch: Batch) -> int:
    """Return the number of examples."""
    return len(next(leaf for leaf in _runtime.tree.flatten(batch) if leaf is not None))


def take(batch: Batch, indices: np.ndarray) -> Batch:
    """Return the examples at `indices`, in that order."""
    x, y, sample_weight = _map(lambda leaf: leaf[indices], batch)
    return x, y, sample_weight


def uneven_epoch(examples: int, replicas: int, *, reverse: bool = False) -> tuple[np.ndarray, int]:
    """Return the indices of an epoch of two batches, the last uneven on `replicas`, and the size of the first."""
    tail = examples % replicas or max(replicas - 1, 1)
    first = (examples - tail) // replicas * replicas if examples - tail >= replicas else replicas
    indices = np.arange(first + tail) % examples
    if reverse:
        indices = np.concatenate([indices[:first][::-1], indices[first:][::-1]])
    return indices, first


def with_infinity(batch: Batch, replicas: int) -> tuple[Batch, Batch]:
    """Return the batch with weights, and the same with an infinite weight on the second replica's first example."""
    examples = max(num_examples(batch), 2)
    x, y, sample_weight = take(batch, np.arange(examples) % num_examples(batch))
    position = -(-examples // replicas) if replicas > 1 else 0
    weights = _map(lambda leaf: np.asarray(leaf, "float32"), sample_weight)
    if weights is None:
        weights = np.ones(examples, "float32")

    def infinite(leaf: Any) -> Any:
        leaf = leaf.copy()
        leaf[min(position, examples - 1)] = np.inf
        return leaf

    return (x, y, weights), (x, y, _map(infinite, weights))


def _map(function: Any, structure: Any) -> Any:
    return _runtime.tree.map_structure(lambda leaf: leaf if leaf is None else function(leaf), structure)


def synthetic_batch(model: Any, examples: int) -> tuple[Any, Any]:
    """Return `x` and `y` of `examples` random examples for a compiled `model`, always the same ones."""
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
    shape, dtype = _batch_shape(tensor, examples), getattr(tensor.dtype, "name", tensor.dtype)
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
    shape = _batch_shape(tensor, examples)
    if name in _LABELS:
        return rng.integers(0, shape[-1], shape[:-1])
    if name in _ONE_HOT:
        return np.eye(shape[-1], dtype="float32")[rng.integers(0, shape[-1], shape[:-1])]
    if name in _ZERO_OR_ONE:
        return rng.integers(0, 2, shape).astype("float32")
    if name in _POSITIVE:
        return rng.uniform(size=shape).astype("float32")
    raise _cannot(f"the loss {getattr(loss, '__name__', type(loss).__name__)} does not tell what targets it takes")


def _batch_shape(tensor: Any, examples: int) -> tuple[int, ...]:
    if None in tensor.shape[1:]:
        raise _cannot(f"{tensor.name!r} has the shape {tuple(tensor.shape)}, with a size that is not known")
    return (examples, *tensor.shape[1:])


def _cannot(why: str) -> ArgumentError:
    return ArgumentError(
        f"No batch can be made up for this model: {why}. Let the function return (model, batch), or give a batch: "
        "batch=(x, y)."
    )
