"""Augmentation of a training batch in the exact step, before the model sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.errors import ArgumentError


def augmented(augment: Callable[..., Any], x: Nest, y: Nest) -> tuple[Any, Any]:
    """Return what a user's `augment` makes of a batch."""
    pair: Any = augment(x, y)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        came = f"{len(pair)} things" if isinstance(pair, (tuple, list)) else type(pair).__name__
        raise ArgumentError(f"augment must return inputs and targets; it returned {came}. Write: return x, y")
    got, returned = set(_rows_of((x, y))), set(_rows_of(pair))
    if got and returned - got:
        raise ArgumentError(
            f"augment must return as many rows as it got, {min(got)}; it returned {min(returned - got)}. Write: "
            "dataset.map(...) before dataset.batch(...) for what makes more or fewer examples"
        )
    return pair[0], pair[1]


def _rows_of(data: Nest) -> Iterator[int]:
    """Yield the known sizes of the first dimensions of the tensors in nested data."""
    if isinstance(data, (dict, list, tuple)):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _rows_of(part)
    elif len(getattr(data, "shape", ())) and data.shape[0] is not None:
        yield int(data.shape[0])
