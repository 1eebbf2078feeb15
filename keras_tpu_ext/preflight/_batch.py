"""Shapes and dtypes of a batch, and the rate of an input pipeline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError

_WRITE = "x, (x, y) or (x, y, sample_weight), of arrays with the examples first: (images, labels)"
_MEASURE_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: str


def batch_spec(batch: Any, target: str, replicas: int, per_replica_batch: int | None) -> Any:
    """Return the specs of the global batch as `fit` gives it to a step, which packs `x` with the function used here.

    A tuple is a batch of a dataset, and stays what it is.
    """
    if hasattr(batch, "element_spec") or hasattr(batch, "__next__"):
        write = "preflight(model, next(iter(dataset)), pipeline=dataset)"
        raise _refusal("one batch of arrays", f"a {type(batch).__name__}, which has many", write)
    parts = batch if isinstance(batch, tuple) else (batch,)
    if not 1 <= len(parts) <= 3:
        raise _refusal("of one to three parts", f"a tuple of {len(parts)}")
    spec: Any = tuple(_map(_spec, part) for part in parts)
    if len(parts) > 1 or not isinstance(batch, tuple):
        spec = _runtime.keras.utils.pack_x_y_sample_weight(*spec)
    specs = _leaves(spec)
    if not specs or any(not spec.shape for spec in specs):
        raise _refusal("of arrays", "single numbers")
    sizes = sorted({spec.shape[0] for spec in specs}, key=str)
    if any(None in spec.shape[1:] for spec in specs):
        found = next(spec.shape for spec in specs if None in spec.shape[1:])
        needed = "of arrays with a size in every dimension behind the examples, as a TPU compiles for one"
        raise _refusal(needed, str(found), "padded data, or the size that you will train with")
    if per_replica_batch is not None:
        return with_batch_size(spec, per_replica_batch * replicas)
    if len(sizes) != 1 or not isinstance(sizes[0], int) or sizes[0] < 1:
        raise _refusal("of arrays with the same number of examples, at least 1", str(sizes))
    if sizes[0] % replicas:
        fitting = max(sizes[0] // replicas, 1)
        raise ArgumentError(
            f"A batch of {sizes[0]} cannot be shared evenly by the {replicas} replicas of {target}. "
            f"Write per_replica_batch={fitting}, which is a batch of {fitting * replicas}."
        )
    return spec


def _refusal(needed: str, got: str, write: str = _WRITE) -> ArgumentError:
    return check.argument_error("preflight", "batch", needed, got, write)


def with_batch_size(spec: Any, examples: int) -> Any:
    """Return the spec of a batch with another number of examples."""
    return _map(lambda leaf: ArraySpec((examples, *leaf.shape[1:]), leaf.dtype), spec)


def batch_size(spec: Any) -> int:
    """Return the number of examples."""
    return int(_leaves(spec)[0].shape[0])


def sequence_length(spec: Any) -> int | None:
    """Return the number of tokens in an example; `None` if no input is a sequence of integers."""
    x, _, _ = _runtime.keras.utils.unpack_x_y_sample_weight(spec)
    found = [leaf.shape[1] for leaf in _leaves(x) if len(leaf.shape) == 2 and leaf.dtype.startswith("int")]
    return max(found, default=None)


def batches_per_sec(pipeline: Any, examples: int) -> float:
    """Measure the rate of an input pipeline, in batches of `examples` examples."""
    rate = measured_rate(pipeline)
    if rate is None:
        needed, write = "an input pipeline of at least two batches", "pipeline=dataset, with more examples"
        raise check.argument_error("preflight", "pipeline", needed, "fewer", write)
    return rate.examples / examples / rate.seconds


class Rate(NamedTuple):
    """How fast this machine makes batches while nothing waits for a step."""

    seconds: float  # for a batch
    cores: float  # how many cores it kept busy meanwhile
    examples: float = 0.0  # in a batch, on average


def measured_rate(pipeline: Iterable[Any]) -> Rate | None:
    """Measure a pipeline after its first batch, for two seconds and one batch at least; `None` if it has no other."""
    batches, sizes = iter(pipeline), list[int]()
    next(batches, None)
    start, busy = time.perf_counter(), time.process_time()
    for batch in batches:
        sizes.append(rows_of(batch))
        if time.perf_counter() - start >= _MEASURE_SECONDS:
            break
    seconds, busy, count = time.perf_counter() - start, time.process_time() - busy, len(sizes)
    return Rate(seconds / count, busy / max(seconds, 1e-9), sum(sizes) / count) if count else None


def rows_of(batch: Any) -> int:
    """Return the number of examples in a batch."""
    return int(np.shape(_runtime.tree.flatten(batch)[0])[0])


def _spec(leaf: Any) -> ArraySpec:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    dtype = "string" if getattr(leaf.dtype, "kind", "-") in "USO" else getattr(leaf.dtype, "name", str(leaf.dtype))
    return ArraySpec(tuple(leaf.shape), dtype)


def _map(function: Any, structure: Any) -> Any:
    """Map over the leaves of dicts, lists and tuples; lists of numbers are leaves."""
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {key: _map(function, value) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)) and not _is_numbers(structure):
        values = [_map(function, value) for value in structure]
        return type(structure)(*values) if hasattr(structure, "_fields") else type(structure)(values)
    return function(structure)


def _is_numbers(structure: Sequence[object]) -> bool:
    return bool(structure) and all(isinstance(value, (int, float, bool)) for value in structure)


def _leaves(structure: Any) -> list[ArraySpec]:
    return [leaf for leaf in _runtime.tree.flatten(structure) if leaf is not None]
