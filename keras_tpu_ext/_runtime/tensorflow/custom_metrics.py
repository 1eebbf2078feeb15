"""Metrics that code of the user's own updates, on rows that are no examples."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.tensorflow.batch import BATCH, select_valid_rows
from keras_tpu_ext._runtime.tensorflow.empty_replicas import no_row_if_empty


def mask_metrics(metrics: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context in which `metrics` count neither a row that stands in for no example nor a padded one.

    A value without rows, a loss say, is the same on every replica and counts on each of them, so that every batch
    has the same weight.
    """
    if BATCH.has_any is None and BATCH.real is None:
        return contextlib.nullcontext()
    return patched([(metric, "update_state", _making(metric)) for metric in metrics])


def _making(metric: Any) -> Any:
    knows_padding = getattr(metric, "knows_padding", False)

    def make(update_state: Any) -> Any:
        def update_with_examples(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _of_examples((args, kwargs), knows_padding)
            return update_state(*args, **kwargs)

        return update_with_examples

    return make


def _of_examples(data: Any, knows_padding: bool) -> Any:
    """Return `data` with the rows of examples alone in its tensors; what has no rows stays."""
    leaves = tf.nest.flatten(data)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0]
    with_rows = no_row_if_empty([leaves[i] for i in places], BATCH.has_any)
    for place, leaf in zip(places, with_rows, strict=True):
        leaves[place] = leaf if knows_padding else select_valid_rows(leaf)
    return tf.nest.pack_sequence_as(data, leaves)
