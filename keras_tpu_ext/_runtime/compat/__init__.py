"""The Keras that this process trains with, and objects to which Keras 2 and Keras 3 give different names.

Code that is the same on both except for names imports them from here.
"""

from __future__ import annotations

import importlib
from typing import Any

from keras_tpu_ext._runtime.common.protocols import KerasOps
from keras_tpu_ext._runtime.common.select import chosen

_KERAS = chosen().split("_")[0]
_names = importlib.import_module(f"{__name__}.{_KERAS}")

builtin_models: Any = _names.builtin_models
dtype_of: Any = _names.dtype_of
compiled_with: Any = _names.compiled_with
save_as: Any = _names.save_as
LossScaleOptimizer: Any = _names.LossScaleOptimizer
PyDataset: Any = _names.PyDataset
keras: Any = _names.keras
loss_tracker_of: Any = _names.loss_tracker_of
ops: KerasOps = importlib.import_module(f"{__name__}.{_KERAS}_ops")
tree: Any = _names.tree
add_counter: Any = _names.add_counter
mask_of: Any = _names.mask_of
new_variable: Any = _names.new_variable
path_of: Any = _names.path_of
saves_each_epoch: Any = _names.saves_each_epoch
with_mask: Any = _names.with_mask
