"""The mask that Keras keeps beside a tensor.

Private names of Keras that this module leans on (tests/_runtime/test_private_names.py watches them):
`backend.get_keras_mask` and `set_keras_mask`.
"""

from __future__ import annotations

from typing import Any

from keras.src.backend import get_keras_mask, set_keras_mask


def mask_of(tensor: Any) -> Any:
    """Return the mask of `tensor`, or `None`."""
    return get_keras_mask(tensor)


def with_mask(tensor: Any, mask: Any) -> Any:
    """Return `tensor`, with a mask unless that is `None`."""
    if mask is not None:
        set_keras_mask(tensor, mask)
    return tensor
