"""Merging layers on masked inputs: Keras 2 merged all values, and kept what each mask keeps."""

from __future__ import annotations

import functools
from typing import Any

from keras import ops

from keras_tpu_ext.dropin.patching import Function, wrap


def install() -> None:
    """Merge as Keras 2 did."""
    merge = "keras.src.layers.merging.base_merge.Merge"
    wrap(
        {
            f"{merge}.compute_mask": _all_masks,
            f"{merge}._apply_merge_op_and_or_mask": lambda _, self, op_fn, inputs: functools.reduce(op_fn, inputs),
            "keras.layers.Multiply._merge_function": lambda _, self, inputs: functools.reduce(ops.multiply, inputs),
        }
    )


def _all_masks(stock: Function, self: Any, inputs: Any, mask: Any = None) -> Any:
    if not isinstance(mask, (tuple, list)):
        return stock(self, inputs, mask)
    masks = [one for one in mask if one is not None]
    return functools.reduce(ops.logical_and, masks) if masks else None
