"""Batches that worker threads have read and nobody has taken."""

from __future__ import annotations

import queue

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.types import DataAdapter


def discard_what_is_left_over(adapter: DataAdapter) -> None:
    """Let each epoch of a `PyDataset` with workers begin without batches that were read before it.

    The workers read ahead when Keras looks at the first batch to build the model. What they have read then it would
    give first in the first epoch, which then has those batches twice and lacks others.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None or adapter.num_batches is None:
        return
    begin = adapter.on_epoch_begin

    def on_epoch_begin() -> None:
        if not enqueuer.is_running():
            override(enqueuer, "ready_queue", queue.Queue())
        begin()

    override(adapter, "on_epoch_begin", on_epoch_begin)
