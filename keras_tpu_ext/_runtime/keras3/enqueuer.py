"""Batches that worker threads have read and nothing has consumed."""

from __future__ import annotations

import queue

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.types import DataAdapter


def discard_what_is_left_over(adapter: DataAdapter) -> None:
    """Make each epoch of a `PyDataset` with workers begin without batches that were read before it.

    The workers read ahead when Keras takes the first batch to build the model. The first epoch would begin with what
    they have read then, and so have those batches twice and lack others.
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
