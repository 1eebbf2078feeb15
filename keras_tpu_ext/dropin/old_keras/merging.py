"""Merging layers on masked inputs: Keras 2 merged all values, and kept what each mask keeps."""

from __future__ import annotations

import functools
from typing import Any

from keras import ops
from keras.src import backend

from keras_tpu_ext.dropin.patching import Function, wrap
from keras_tpu_ext.dropin.report import means_old

_WHAT, _THEN = "merging masked inputs", "all values, and what each mask keeps, as in Keras 2"


def install() -> None:
    """Merge as Keras 2 did."""
    merge = "keras.src.layers.merging.base_merge.Merge"
    wrap(
        {
            f"{merge}.compute_mask": _all_masks,
            f"{merge}._apply_merge_op_and_or_mask": _merged,
            "keras.layers.Multiply._merge_function": _product,
        }
    )


def _all_masks(stock: Function, self: Any, inputs: Any, mask: Any = None) -> Any:
    masks = [one for one in mask if one is not None] if isinstance(mask, (tuple, list)) else []
    if not masks or not means_old(_WHAT, _THEN):
        return stock(self, inputs, mask)
    return functools.reduce(ops.logical_and, masks)


def _merged(stock: Function, self: Any, op_fn: Function, inputs: Any) -> Any:
    return functools.reduce(op_fn, inputs) if _masked_as_then(inputs) else stock(self, op_fn, inputs)


def _product(stock: Function, self: Any, inputs: Any) -> Any:
    return functools.reduce(ops.multiply, inputs) if _masked_as_then(inputs) else stock(self, inputs)


def _masked_as_then(inputs: Any) -> bool:
    return any(backend.get_keras_mask(one) is not None for one in inputs) and means_old(_WHAT, _THEN)
