"""FLOPs of a training step on Keras 2."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.keras2.autograph import converting
from keras_tpu_ext._runtime.tensorflow import flops as _tf_flops


def count_flops(model: Any, batch: Any, batch_size: int) -> FlopsCount:
    """Return the FLOPs of a step of `model`; see `common/protocols.py`."""
    return _tf_flops.count_flops(model, batch, batch_size, converting)
