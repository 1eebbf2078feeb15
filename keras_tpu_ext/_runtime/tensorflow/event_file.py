"""Scalars for TensorBoard, written by TensorFlow itself."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from keras_tpu_ext._runtime.common.event_file import EventFile, EventFileClass


class TensorFlowEventFile(EventFile):
    """An event file that TensorFlow writes."""

    def __init__(self, folder: str) -> None:
        self._writer = tf.summary.create_file_writer(folder)
        # What `tf.summary.scalar` writes; that is part of TensorBoard, which new versions do not install.
        self._metadata = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
        self._metadata.plugin_data.plugin_name = "scalars"

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write `scalars`, by name, at `step`."""
        with self._writer.as_default(), tf.summary.record_if(True):
            for name, value in scalars.items():
                tf.summary.write(name, tf.constant(value, tf.float32), step, self._metadata)


def event_file_class() -> EventFileClass:
    """Return the class of TensorBoard's event files."""
    return TensorFlowEventFile
