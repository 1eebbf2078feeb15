"""FLOPs of a training step on Keras 2."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime import _tf_flops
from keras_tpu_ext._runtime._keras2_autograph import converting
from keras_tpu_ext._runtime.flops import FlopsCount


def count_flops(model: Any, batch: Any, batch_size: int) -> FlopsCount:
    """Return the FLOPs of a step of `model`; see `contract.py`."""
    return _tf_flops.count_flops(model, batch, batch_size, converting)
