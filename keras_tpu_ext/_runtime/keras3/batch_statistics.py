"""Where layers of Keras 3 learn from a batch as a whole, and what stands there when not all of its rows count.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches it):
`BatchNormalization._moments`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

Place = tuple[Any, str, Callable[[Any], Any]]


def moments_patches(layers: Sequence[Any], moments: Callable[..., Any]) -> list[Place]:
    """Return the places of batch normalisations, for `patched`.

    Args:
        layers: Any layers.
        moments: Takes the layer, Keras's own method, inputs and mask, and returns mean and variance.
    """

    def of(layer: Any) -> Callable[[Any], Any]:
        return lambda stock: lambda inputs, mask: moments(layer, stock, inputs, mask)

    normalisations = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    return [(layer, "_moments", of(layer)) for layer in normalisations]


def regularizer_patches(layers: Sequence[Any], regulariser: Callable[[Any], Any]) -> list[Place]:
    """Return the places of activity regularisers, for `patched`.

    Args:
        layers: Any layers.
        regulariser: Returns what stands in for a regulariser.
    """
    regularised = [layer for layer in layers if layer.activity_regularizer is not None]
    return [(layer, "activity_regularizer", regulariser) for layer in regularised]
