"""What the exact step does to a training batch before the model sees it."""

from __future__ import annotations

from typing import Any


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
