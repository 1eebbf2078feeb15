"""Batches that are padded to a static size.

A padded row has the sample weight *minus zero*. The sign distinguishes it from a real row of weight zero; code that
ignores signs, such as plain Keras, sees a weight of zero, and so also leaves the row out of a weighted sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keras_tpu_ext._runtime.common.types import Dataset, Nest, Tensor

MARK = -0.0


class PaddedBatch(NamedTuple):
    """A batch for `fit`, which takes it as `(x, y, sample_weight)`."""

    x: Nest  # inputs; every leaf has the shape `(batch_size, ...)`
    y: Nest  # targets, or `None`
    sample_weight: Nest  # weights in float32, minus zero in padded rows


class UnweightedPaddedBatch(PaddedBatch):
    """A padded batch without its own sample weights: they are one in real rows, minus zero in padded ones."""


def without_own_weights(data: Nest) -> Any:
    """Return `data` without sample weights that only mark padded rows."""
    return PaddedBatch(data.x, data.y, None) if isinstance(data, UnweightedPaddedBatch) else data


class GivesPaddedBatches:
    """Mixin of a `PyDataset` whose items are `PaddedBatch`es."""

    dataset: Dataset  # the `PyDataset` whose batches they are


class PaddedOutputs(NamedTuple):
    """The predictions for a padded batch."""

    outputs: Nest  # the model's outputs, padded rows included
    real: Tensor  # boolean tensor of shape `(batch_size,)`; False in padded rows
