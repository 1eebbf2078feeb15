"""`LayoutReport`: along which axes of the mesh each variable of a model is sharded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from keras_tpu_ext._runtime.common.layouts import VariableLayout as VariableLayout
from keras_tpu_ext.output.display import memory_size, mesh_text
from keras_tpu_ext.output.report import Report

_ROLES = {
    "weight": "weights",
    "optimizer": "optimizer",
    "accumulator": "accumulator",
    "metric": "metrics",
    "other": "other",
}


@dataclasses.dataclass(frozen=True)
class LayoutReport(Report):
    """The layout of each variable of a model; returned by `Scope.layout`.

    Attributes:
        model: Name of the model.
        mesh: Size of each axis of the mesh, by its name.
        variables: The variables, weights first.
        complaints: Likely mistakes, in words: patterns that match nothing, large weights that are replicated on every
            device.
        has_slots: Whether the variables of its optimizer are there, which are made in the first `fit`.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte

        scope = kte.strategy_scope(require="cpu", shard="fsdp")
        with scope:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        report = scope.layout(model)
        print(report)
        print(report.bytes_per_device, "bytes on each device")
        ```
    """

    model: str
    mesh: dict[str, int]
    variables: tuple[VariableLayout, ...]
    complaints: tuple[str, ...] = ()
    has_slots: bool = True
    _derived = ("bytes_per_device",)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to complain about."""
        return not self.complaints

    @property
    def bytes_per_device(self) -> int:
        """Bytes of all variables on each device."""
        return sum(one.bytes_per_device for one in self.variables)

    def by_role(self) -> dict[str, tuple[int, int]]:
        """Return total bytes and bytes per device, by the role of variables: `"weights"`, `"optimizer"`, ..."""
        found: dict[str, tuple[int, int]] = {}
        for one in self.variables:
            whole, each = found.get(_ROLES[one.role], (0, 0))
            found[_ROLES[one.role]] = whole + one.bytes, each + one.bytes_per_device
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {**super().to_dict(), "by_role": {role: list(sizes) for role, sizes in self.by_role().items()}}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        size = memory_size(self.bytes_per_device)
        yield f"{self.model!r} on a mesh of {mesh_text(self.mesh)}: {size} on each device"
        for role, (whole, each) in self.by_role().items():
            part = f", 1/{whole / each:.3g}" if each else ""
            yield f"  {role:10s} {memory_size(whole):>10} in all, {memory_size(each):>10} on each device{part}"
        if not self.has_slots:
            yield "  optimizer  its variables are made in the first fit, and not counted here"
        for complaint in self.complaints:
            yield f"  ! {complaint}"
        rows = [
            (one.path, _tuple(one.shape), _tuple(one.spec), memory_size(one.bytes_per_device))
            for one in self.variables
            if one.role in ("weight", "other")
        ]
        rows.insert(0, ("weight", "shape", "sharded along", "a device"))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)]
            yield f"  {'  '.join(cells)}  {row[3]:>{widths[3]}}"


def _tuple(values: tuple[object, ...]) -> str:
    return f"({', '.join('-' if value is None else str(value) for value in values)})"
