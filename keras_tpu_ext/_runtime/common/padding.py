"""Batches that were filled up to a fixed size, and how the step knows which rows of them count.

A padded row has the sample weight *minus zero*. Its sign tells it from a real row of weight zero, and to whoever
does not look at signs it is a weight of zero: plain Keras gives such a row no part in a weighted sum either.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MARK = -0.0


class PaddedBatch(NamedTuple):
    """A batch for `fit`, which takes it as `(x, y, sample_weight)`.

    Attributes:
        x: Inputs; every leaf has the shape `(batch_size, ...)`.
        y: Targets, or `None`.
        sample_weight: Weights in float32, minus zero in padded rows.
    """

    x: Any
    y: Any
    sample_weight: Any


class UnweightedPaddedBatch(PaddedBatch):
    """A batch that had no weights of its own: one in real rows, minus zero in padded ones."""


def without_own_weights(data: Any) -> Any:
    """Return `data`, without weights that only say which rows are padded."""
    return PaddedBatch(data.x, data.y, None) if isinstance(data, UnweightedPaddedBatch) else data


class GivesPaddedBatches:
    """What a `PyDataset` inherits from whose items are `PaddedBatch`es."""


class PaddedOutputs(NamedTuple):
    """What the model predicts for a padded batch.

    Attributes:
        outputs: The model's outputs, padded rows included.
        real: For each row whether it is an example; shape `(batch_size,)`.
    """

    outputs: Any
    real: Any
