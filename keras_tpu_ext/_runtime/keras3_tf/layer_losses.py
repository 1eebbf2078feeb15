"""The `add_loss` terms of a forward pass, each replica's its own.

A layer keeps its terms until its next call, and that may be another replica's: replicas take turns at every sum over
them, and a synchronised batch normalisation has one in the middle of the forward pass. So the terms are written down
when they are added.

Private names of Keras that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
`Layer._losses`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.tensorflow.batch import BATCH


@contextlib.contextmanager
def record_layer_losses(layers: Sequence[Any]) -> Iterator[None]:
    """Within the block this replica's terms are added to `BATCH.layer_losses`, with the layer that they are of."""
    BATCH.layer_losses = []
    with patched([(layer, "add_loss", _noting(layer)) for layer in layers]):
        yield


def set_layer_losses(layer_losses: Sequence[tuple[Any, Any]]) -> None:
    """Let layers have these terms, where `losses` is read next."""
    for layer, _ in layer_losses:
        layer._losses.clear()
    for layer, loss in layer_losses:
        layer._losses.append(loss)


def _noting(layer: Any) -> Any:
    def make(add_loss: Any) -> Any:
        def add_and_note(loss: Any) -> None:
            before = len(layer._losses)
            add_loss(loss)
            BATCH.layer_losses += [(layer, added) for added in layer._losses[before:]]

        return add_and_note

    return make
