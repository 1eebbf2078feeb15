"""`keras.legacy.interfaces`, which optimizers that wrote their own updates imported."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext.dropin.errors import out_of_reach


def legacy_get_updates_support(function: Any) -> Any:
    """Say that `get_updates` has no counterpart."""
    raise out_of_reach(
        what="Optimizer.get_updates",
        why="it makes a graph of TensorFlow 1",
        write="`update_step(self, gradient, variable, learning_rate)` in a subclass of keras.optimizers.Optimizer",
    )
