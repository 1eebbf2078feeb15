"""Augmentation of a training batch in the exact step, before the model sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.errors import ArgumentError


class Augments:
    """A step that lets the user change its batch, on the device."""

    def augment(self, x: Nest, y: Nest) -> tuple[Any, Any]:
        """Return a training batch as the model should see it, here unchanged; override it to augment on the device.

        `train_step` calls it inside the compiled step; an override may, for example, call a `layers.MixUp` that is an
        attribute of the model, with `training=True`. `evaluate` and `predict` do not call it. With several replicas
        on TensorFlow it gets a replica's part of the batch.

        Args:
            x: The inputs.
            y: The targets.

        Returns:
            Inputs and targets, with the same number of rows.
        """
        return x, y

    def _augments(self) -> bool:
        """Return whether `augment` is overridden."""
        return type(self).augment is not Augments.augment

    def _pair(self, x: Nest, y: Nest) -> tuple[Any, Any]:
        """Augment a batch.

        Raises:
            ArgumentError: If the result is not a pair, or has a different number of rows.
        """
        pair: Any = self.augment(x, y)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            came = f"{len(pair)} things" if isinstance(pair, (tuple, list)) else type(pair).__name__
            raise ArgumentError(f"augment must return inputs and targets; it returned {came}. Write: return x, y")
        got, returned = set(_rows_of((x, y))), set(_rows_of(pair))
        if got and returned - got:
            raise ArgumentError(
                f"augment must return as many rows as it got, {min(got)}; it returned {min(returned - got)}. Write: "
                "dataset.map(...) before dataset.batch(...) for what makes more or fewer examples"
            )
        return pair[0], pair[1]


def _rows_of(data: Nest) -> Iterator[int]:
    """Yield the known sizes of the first dimensions of the tensors in nested data."""
    if isinstance(data, (dict, list, tuple)):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _rows_of(part)
    elif len(getattr(data, "shape", ())) and data.shape[0] is not None:
        yield int(data.shape[0])
