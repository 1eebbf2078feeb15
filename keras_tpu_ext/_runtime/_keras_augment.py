"""What the exact step does to a training batch before the model sees it."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext.errors import ArgumentError


class Augments:
    """A step that lets the user change its batch, on the device."""

    def augment(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return a training batch as the model is to see it; here as it came. Override it to augment on the device.

        `train_step` calls it inside the compiled step, for example to call a `layers.MixUp` that is an attribute of
        the model, with `training=True`. `evaluate` and `predict` do not call it. With several replicas on TensorFlow
        it gets a replica's part of the batch.

        Args:
            x: The inputs.
            y: The targets.

        Returns:
            Inputs and targets, with as many rows.
        """
        return x, y

    def _augments(self) -> bool:
        """Return whether anything is done to a batch."""
        return type(self).augment is not Augments.augment

    def _pair(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return what `augment` does.

        Raises:
            ArgumentError: If that is no pair.
        """
        pair: Any = self.augment(x, y)
        if isinstance(pair, (tuple, list)) and len(pair) == 2:
            return pair[0], pair[1]
        came = f"{len(pair)} things" if isinstance(pair, (tuple, list)) else type(pair).__name__
        raise ArgumentError(f"augment must return inputs and targets; it returned {came}. Write: return x, y")
