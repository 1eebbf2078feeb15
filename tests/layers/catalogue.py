"""The layers of the package, a row each: what the checks that are alike for all layers need to know of one."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras_tpu_ext as kte


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer as a test makes it, and what is expected of it.

    Attributes:
        layer: The class.
        options: Its arguments.
        shape: Of the inputs, with the batch.
        trainable: Number of trainable weights.
        non_trainable: Number of other weights.
        dtype: Of the inputs.
        output_shape: With the batch; `None` is `shape`.
        masks: Whether it supports masking.
        draws: Whether it draws random numbers when it trains, a `keras.random.SeedGenerator` of its own on Keras 3.
        call: More arguments of the call.
    """

    layer: type
    options: dict[str, Any]
    shape: tuple[int, ...]
    trainable: int = 0
    non_trainable: int = 0
    dtype: str = "float32"
    output_shape: tuple[int, ...] | None = None
    masks: bool = False
    draws: bool = False
    call: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in (self.options | self.call).items())
        return f"{self.layer.__name__}({options}) {self.shape}"


_NORM = kte.layers.BatchNormalization

LAYERS = [
    Row(_NORM, {}, (4, 3), trainable=2, non_trainable=2, masks=True),
    Row(_NORM, {}, (4, 3), trainable=2, non_trainable=2, masks=True, call={"training": True}),
    Row(
        _NORM,
        {"ghost_batch_size": 3, "center": False, "momentum": 0.8},
        (8, 5, 4),
        trainable=1,
        non_trainable=2,
        masks=True,
        call={"training": True},
    ),
    Row(
        _NORM,
        {"ghost_batch_size": 2, "axis": 1, "scale": False, "center": False, "epsilon": 0.01},
        (4, 3, 5, 5),
        non_trainable=2,
        masks=True,
    ),
]


def names(rows: list[Row]) -> list[str]:
    """Return the rows as what pytest shows of them."""
    return [str(row) for row in rows]
