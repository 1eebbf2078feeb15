"""Merging layers on masked inputs: Keras 2 merged all values, and kept what each mask keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops
from keras.src.layers.merging import base_merge

from keras_tpu_ext.dropin.old_keras import spellings

Method = Callable[..., Any]


def install() -> None:
    """Merge as Keras 2 did."""
    merge = "keras.src.layers.merging.base_merge.Merge"
    for target, name, make in (
        (base_merge.Merge, f"{merge}.compute_mask", _all_masks),
        (base_merge.Merge, f"{merge}._apply_merge_op_and_or_mask", lambda _: _merged),
        (keras.layers.Multiply, "keras.layers.Multiply._merge_function", lambda _: _product),
    ):
        spellings.replace(target, name, make)


def _all_masks(stock: Method) -> Method:
    def compute_mask(self: Any, inputs: Any, mask: Any = None) -> Any:
        if not isinstance(mask, (tuple, list)):
            return stock(self, inputs, mask)
        masks = [one for one in mask if one is not None]
        return functools.reduce(ops.logical_and, masks) if masks else None

    return compute_mask


def _merged(self: Any, op_fn: Method, inputs: Any) -> Any:
    return functools.reduce(op_fn, inputs)


def _product(self: Any, inputs: Any) -> Any:
    return functools.reduce(ops.multiply, inputs)
