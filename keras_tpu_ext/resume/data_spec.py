"""What is known of the data of a training without reading them, so that others are not taken for them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.checks import schema

_BATCH_SIZE = 32  # of Keras, for arrays


class DataSpec(NamedTuple):
    """The data of a `fit`; what is unknown is `None`."""

    kind: str  # `"arrays"`, or the class of the data
    batches: int | None = None  # number of batches of a pass
    steps_per_epoch: int | None = None  # the argument of `fit`
    rows: int | None = None  # number of rows of a pass
    batch_size: int | None = None  # number of rows of a batch
    elements: Any = None  # the dtype and shape, without its first dimension, of each part of a batch
    first_batch: str | None = None  # digest of the first rows of arrays


_ELEMENT = schema.row(schema.text, schema.list_of(schema.optional(schema.integer())))
check_data_spec = schema.record(DataSpec, elements=schema.optional(schema.list_of(_ELEMENT)))
_WORDS = {
    "kind": "data of the kind {}",
    "batches": "{} batches",
    "steps_per_epoch": "steps_per_epoch={}",
    "rows": "{} rows",
    "batch_size": "batches of {} rows",
    "elements": "parts of a batch {}",
    "first_batch": "a first batch with the digest {}",
}


def data_spec(call: _runtime.FitCall) -> DataSpec:
    """Return what the arguments of a `fit` say of its data."""
    data: Any = call.arguments.get("x")
    steps = call.arguments.get("steps_per_epoch")
    if (batches := call.py_dataset) is not None:
        size = batches.num_batches if hasattr(batches, "num_batches") else len(batches)
        return DataSpec(type(batches).__name__, size, steps)
    if hasattr(data, "element_spec"):
        return _spec_of_dataset(data, steps)
    arrays = list(_leaves([call.arguments.get(name) for name in ("x", "y", "sample_weight")]))
    if not arrays or not all(len(one.shape) for one in arrays) or isinstance(data, Iterator):
        return DataSpec(type(data).__name__, steps_per_epoch=steps)
    return _spec_of_arrays(arrays, call, steps)


def _spec_of_dataset(data: Any, steps: int | None) -> DataSpec:
    leaves = list(_leaves(data.element_spec))
    count = getattr(data, "cardinality", None)
    batches = int(count()) if callable(count) else -1  # not of a distributed dataset, which is refused later
    sizes = {leaf.shape[0] for leaf in leaves if len(leaf.shape)}
    return DataSpec(
        "tf.data.Dataset",
        batches if batches >= 0 else None,
        steps,
        batch_size=sizes.pop() if len(sizes) == 1 else None,
        elements=_elements(leaves),
    )


def _spec_of_arrays(arrays: list[Any], call: _runtime.FitCall, steps: int | None) -> DataSpec:
    size = int(call.arguments.get("batch_size") or _BATCH_SIZE)
    split = float(call.arguments.get("validation_split") or 0.0)
    rows = math.floor(int(arrays[0].shape[0]) * (1 - split))
    first = _digest([one[: min(rows, size)] for one in arrays])
    return DataSpec("arrays", math.ceil(rows / size), steps, rows, size, _elements(arrays), first)


def differences(was: DataSpec, now: DataSpec) -> list[str]:
    """Return in words what differs between two specs, as far as both are known."""
    pairs = [(name, getattr(was, name), getattr(now, name)) for name in DataSpec._fields]
    return [
        f"{_WORDS[name].format(schema.shown(old))}, now {schema.shown(new)}"
        for name, old, new in pairs
        if old is not None and new is not None and not _fit(name, old, new)
    ]


def _fit(name: str, old: Any, new: Any) -> bool:
    if name != "elements":
        return bool(old == new)
    if len(old) != len(new):
        return False
    return all(
        one[0] == other[0] and len(one[1]) == len(other[1]) and all(map(_same_size, one[1], other[1]))
        for one, other in zip(old, new, strict=True)
    )


def _same_size(old: int | None, new: int | None) -> bool:
    return old is None or new is None or old == new


def _leaves(nest: Nest) -> Iterator[Any]:
    for leaf in _runtime.tree.flatten(nest):
        if leaf is not None and hasattr(leaf, "dtype") and getattr(leaf, "shape", None) is not None:
            yield leaf


def _elements(leaves: list[Any]) -> list[tuple[str, list[int | None]]]:
    names = [getattr(leaf.dtype, "name", str(leaf.dtype)) for leaf in leaves]
    shapes = [[None if size is None else int(size) for size in leaf.shape[1:]] for leaf in leaves]
    return list(zip(names, shapes, strict=True))


def _digest(arrays: list[Any]) -> str | None:
    digest = hashlib.sha256()
    try:
        for array in arrays:
            rows = np.ascontiguousarray(array)
            if rows.dtype.hasobject:  # a sparse matrix: its bytes are an address
                return None
            digest.update(rows.tobytes())
    except Exception:  # what only looks like an array
        return None
    return digest.hexdigest()[:16]
