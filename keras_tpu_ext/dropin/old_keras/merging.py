"""Merging layers on masked inputs: Keras 2 merged all values, and kept what each mask keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops
from keras.src import backend
from keras.src.layers.merging import base_merge

from keras_tpu_ext.dropin.old_keras import spellings
from keras_tpu_ext.dropin.report import means_old

Method = Callable[..., Any]

_WHAT, _THEN = "merging masked inputs", "all values, and what each mask keeps, as in Keras 2"


def install() -> None:
    """Merge as Keras 2 did."""
    merge = "keras.src.layers.merging.base_merge.Merge"
    for target, name, make in (
        (base_merge.Merge, f"{merge}.compute_mask", _all_masks),
        (base_merge.Merge, f"{merge}._apply_merge_op_and_or_mask", _merged),
        (keras.layers.Multiply, "keras.layers.Multiply._merge_function", _product),
    ):
        spellings.replace(target, name, make)


def _all_masks(stock: Method) -> Method:
    def compute_mask(self: Any, inputs: Any, mask: Any = None) -> Any:
        masks = [one for one in mask if one is not None] if isinstance(mask, (tuple, list)) else []
        if not masks or not means_old(_WHAT, _THEN):
            return stock(self, inputs, mask)
        return functools.reduce(ops.logical_and, masks)

    return compute_mask


def _merged(stock: Method) -> Method:
    def merged(self: Any, op_fn: Method, inputs: Any) -> Any:
        return functools.reduce(op_fn, inputs) if _masked_as_then(inputs) else stock(self, op_fn, inputs)

    return merged


def _product(stock: Method) -> Method:
    def product(self: Any, inputs: Any) -> Any:
        return functools.reduce(ops.multiply, inputs) if _masked_as_then(inputs) else stock(self, inputs)

    return product


def _masked_as_then(inputs: Any) -> bool:
    return any(backend.get_keras_mask(one) is not None for one in inputs) and means_old(_WHAT, _THEN)
