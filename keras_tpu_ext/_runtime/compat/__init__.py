"""The Keras that this process trains with, and objects to which Keras 2 and Keras 3 give different names.

Code that is the same on both except for names imports them from here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.protocols import KerasOps
from keras_tpu_ext._runtime.common.select import chosen
from keras_tpu_ext._runtime.common.types import Layer, Metric, Model, Tensor, Variable

_KERAS = chosen().split("_")[0]
_names = importlib.import_module(f"{__name__}.{_KERAS}")

keras: Any = _names.keras
tree: Any = _names.tree
ops: KerasOps = importlib.import_module(f"{__name__}.{_KERAS}_ops")
LossScaleOptimizer: Any = _names.LossScaleOptimizer
PyDataset: Any = _names.PyDataset
saves_each_epoch: tuple[type, ...] = _names.saves_each_epoch

add_counter: Callable[[Layer, str], Variable] = _names.add_counter
builtin_models: Callable[[], tuple[type, ...]] = _names.builtin_models
compiled_with: Callable[[Model], dict[str, Any] | None] = _names.compiled_with
dtype_of: Callable[[Variable], str] = _names.dtype_of
loss_tracker_of: Callable[[Model], Metric | None] = _names.loss_tracker_of
mask_of: Callable[[Tensor], Tensor | None] = _names.mask_of
new_variable: Callable[..., Variable] = _names.new_variable
path_of: Callable[[Variable], str] = _names.path_of
save_as: Callable[[type, type], None] = _names.save_as
with_mask: Callable[[Tensor, Tensor | None], Tensor] = _names.with_mask
