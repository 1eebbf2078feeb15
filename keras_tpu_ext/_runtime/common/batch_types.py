"""The shapes and dtypes of a batch, by argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_tpu_ext._runtime.common.types import Nest

_ARGUMENTS = ("x", "y", "sample_weight")


class ArrayType(NamedTuple):
    """What a step is compiled for."""

    shape: tuple[int | None, ...]  # `None` where it may differ
    dtype: str


def types_of(batch: Nest) -> dict[str, ArrayType]:
    """Return the type of each array of a batch, or of its specs, by a name such as `x["image"]`."""
    found: dict[str, ArrayType] = {}
    parts = batch if isinstance(batch, (tuple, list)) else (batch,)
    for name, part in zip(_ARGUMENTS, parts, strict=False):
        _add(found, name, part)
    return found


def _add(found: dict[str, ArrayType], name: str, part: Any) -> None:
    if isinstance(part, Mapping):
        for key, value in part.items():
            _add(found, f'{name}["{key}"]', value)
    elif isinstance(part, (tuple, list)):
        for i, value in enumerate(part):
            _add(found, f"{name}[{i}]", value)
    elif part is not None:
        specs = getattr(part, "_value_specs", (part,))  # one for each replica
        shapes = [tuple(spec.shape) for spec in specs]
        rows = [shape[0] for shape in shapes if shape]
        together = (None if None in rows else sum(rows), *shapes[0][1:]) if rows else ()
        found[name] = ArrayType(together, getattr(specs[0].dtype, "name", str(specs[0].dtype)))
