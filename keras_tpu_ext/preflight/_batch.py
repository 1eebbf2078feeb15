"""The shapes of a batch, and how fast a pipeline makes batches."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.preflight.targets import Target

_WRITE = "Write a batch as x, (x, y) or (x, y, sample_weight), of arrays with the examples first: (images, labels)."
_SECONDS = 2.0  # for which a pipeline is measured


@dataclasses.dataclass(frozen=True)
class Spec:
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: str


def shapes_of(batch: Any, target: Target, per_replica_batch: int | None) -> tuple[Any, Any, Any]:
    """Return the shapes of `x`, `y` and `sample_weight` of a batch of all replicas.

    Raises:
        ArgumentError: If it is no batch, or cannot be shared evenly.
    """
    if hasattr(batch, "element_spec") or hasattr(batch, "__next__"):
        raise ArgumentError(
            f"`batch` must be one batch of arrays; got a {type(batch).__name__}, which has many. "
            "Write preflight(model, next(iter(dataset)), pipeline=dataset)."
        )
    parts = batch if isinstance(batch, tuple) else (batch,)
    if not 1 <= len(parts) <= 3:
        raise ArgumentError(f"`batch` must have one to three parts; got a tuple of {len(parts)}. {_WRITE}")
    x, y, sample_weight = (_map(_spec, part) for part in (*parts, None, None)[:3])
    specs = _leaves((x, y, sample_weight))
    if not specs or any(not spec.shape for spec in specs):
        raise ArgumentError(f"`batch` holds single numbers where arrays were needed. {_WRITE}")
    sizes = sorted({spec.shape[0] for spec in specs}, key=str)
    if any(None in spec.shape[1:] for spec in specs):
        found = next(spec.shape for spec in specs if None in spec.shape[1:])
        raise ArgumentError(
            f"Every dimension of `batch` behind the examples must have a size; got {found}. A TPU compiles for one "
            "size: pad the data, or write the size that you will train with."
        )
    if per_replica_batch is not None:
        return with_examples((x, y, sample_weight), per_replica_batch * target.devices)
    if len(sizes) != 1 or not isinstance(sizes[0], int) or sizes[0] < 1:
        raise ArgumentError(
            f"The arrays of `batch` must all have the same number of examples, at least 1; got {sizes}. {_WRITE}"
        )
    if sizes[0] % target.devices:
        fitting = max(sizes[0] // target.devices, 1)
        raise ArgumentError(
            f"A batch of {sizes[0]} cannot be shared evenly by the {target.devices} replicas of {target.name}. "
            f"Write per_replica_batch={fitting}, which is a batch of {fitting * target.devices}."
        )
    return x, y, sample_weight


def with_examples(batch: tuple[Any, Any, Any], examples: int) -> tuple[Any, Any, Any]:
    """Return the shapes of a batch of so many examples."""
    x, y, sample_weight = (_map(lambda spec: Spec((examples, *spec.shape[1:]), spec.dtype), part) for part in batch)
    return x, y, sample_weight


def examples_of(batch: tuple[Any, Any, Any]) -> int:
    """Return the number of examples."""
    return int(_leaves(batch)[0].shape[0])


def batches_per_sec(pipeline: Any, examples: int) -> float:
    """Return how many batches of so many examples a pipeline makes in a second, after its first batch.

    Raises:
        ArgumentError: If it gives none.
    """
    iterator = iter(pipeline)
    rows = made = 0.0
    try:
        next(iterator)
        begun = time.perf_counter()
        while time.perf_counter() - begun < _SECONDS:
            item = next(iterator)
            made, rows = made + 1, rows + _rows(item)
    except StopIteration:
        pass
    if not made:
        raise ArgumentError("`pipeline` gave no two batches to measure. Write pipeline=dataset, with more examples.")
    return rows / examples / (time.perf_counter() - begun)


def _rows(item: Any) -> int:
    return int(np.shape(_runtime.tree.flatten(item)[0])[0])


def _spec(leaf: Any) -> Spec:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    dtype = "string" if getattr(leaf.dtype, "kind", "-") in "USO" else getattr(leaf.dtype, "name", str(leaf.dtype))
    return Spec(tuple(leaf.shape), dtype)


def _map(function: Any, structure: Any) -> Any:
    """Map over dicts, lists and tuples, and take a `Spec` for a leaf."""
    if structure is None or isinstance(structure, Spec):
        return structure if structure is None else function(structure)
    if isinstance(structure, dict):
        return {key: _map(function, value) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)) and not _is_numbers(structure):
        values = [_map(function, value) for value in structure]
        return type(structure)(*values) if hasattr(structure, "_fields") else type(structure)(values)
    return function(structure)


def _is_numbers(structure: Any) -> bool:
    return bool(structure) and all(isinstance(value, (int, float, bool)) for value in structure)


def _leaves(structure: Any) -> list[Spec]:
    if structure is None:
        return []
    if isinstance(structure, Spec):
        return [structure]
    values = structure.values() if isinstance(structure, dict) else structure
    return [leaf for value in values for leaf in _leaves(value)]
