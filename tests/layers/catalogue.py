"""The layers of the package, a row each: what the checks that are alike for all layers need to know of one."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import pytest

import keras_tpu_ext as kte
from kind_of_keras import IS_KERAS2


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
        keeps_dtype: Whether the outputs have the dtype of the inputs under every policy.
        call: More arguments of the call.
        saved_as: The class of Keras that a file has; `None` for the class itself.
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
    keeps_dtype: bool = False
    call: dict[str, Any] = dataclasses.field(default_factory=dict)
    saved_as: type | None = None

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in (self.options | self.call).items())
        return f"{self.layer.__name__}({options}) {self.shape}"


_L = kte.layers
_NORM = _L.BatchNormalization

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
    Row(
        _L.OneHotEmbedding,
        {"input_dim": 7, "output_dim": 3},
        (4, 5),
        trainable=1,
        dtype="int32",
        output_shape=(4, 5, 3),
    ),
    Row(_L.DeviceNormalization, {"mean": [0.5, 1.0, 2.0], "variance": [1.0, 4.0, 9.0]}, (4, 5, 5, 3), masks=True),
    Row(_L.RandomFlipCrop, {"padding": 1, "seed": 1}, (4, 6, 6, 3), non_trainable=1, keeps_dtype=True),
    Row(
        _L.RandomFlipCrop,
        {"height": 4, "seed": 1},
        (4, 6, 6, 3),
        non_trainable=1,
        keeps_dtype=True,
        output_shape=(4, 4, 6, 3),
    ),
    Row(_L.RandomAffine, {"seed": 1}, (4, 6, 5, 3), non_trainable=1, keeps_dtype=True, call={"training": True}),
    Row(_L.RandomErasing, {"seed": 1}, (4, 6, 6, 3), non_trainable=1, keeps_dtype=True, call={"training": True}),
]

if not IS_KERAS2:
    of_keras = keras.layers.Dropout
    LAYERS.append(Row(_L.Dropout, {"rate": 0.5, "seed": 1}, (4, 6), masks=True, draws=True, saved_as=of_keras))

# They take and return pairs of images and labels, which no such check does: their own tests do what it would.
OF_PAIRS = {_L.MixUp, _L.CutMix}


def one_of_each(others: pytest.MarkDecorator, but: tuple[type, ...] = ()) -> list[Any]:
    """Return the rows as parameters; `others` marks all but the first of each layer, and those of `but`."""
    classes = [row.layer for row in LAYERS]
    return [
        row if classes.index(row.layer) == number and row.layer not in but else pytest.param(row, marks=others)
        for number, row in enumerate(LAYERS)
    ]


def names(rows: list[Row]) -> list[str]:
    """Return the rows as what pytest shows of them."""
    return [str(row) for row in rows]
