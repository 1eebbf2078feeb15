"""The processes that train a model under `tf.distribute`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from keras_tpu_ext._runtime.tensorflow.cluster import is_chief, num_workers
from keras_tpu_ext._runtime.tensorflow.replicas import gather_everywhere
from keras_tpu_ext._runtime.training.process_group import ProcessGroup
from keras_tpu_ext.errors import ClusterError

_LOST = (
    "of the cluster has ended or cannot be reached, so this process cannot go on. What to do: look at the output of "
    "that one for its own error, then start all of them again; with keras.callbacks.BackupAndRestore(folder) in "
    "`fit`, where all of them see the folder, they go on from the last epoch."
)
_NOT_ALIKE = (
    "The processes of the cluster do not do the same things in the same order, so they cannot go on. What to do: let "
    "all of them run the same program, with the same data, callbacks and number of epochs; what only one may do, it "
    "must do without the model."
)


class TensorFlowProcessGroup(ProcessGroup):
    """The processes that `TF_CONFIG` names."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy

    def size(self) -> int:
        """Return the number of processes."""
        return num_workers()

    def is_chief(self) -> bool:
        """Return whether this process writes and prints."""
        return is_chief()

    def all_gather_int(self, number: int) -> list[int]:
        """Return the numbers that all processes pass to this call, in the same order on each."""
        strategy = self._strategy
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return [number]
        here = len(strategy.extended.worker_devices)
        numbers = strategy.experimental_distribute_values_from_function(lambda _: tf.constant([number], tf.int64))
        return [int(one) for one in gather_everywhere(strategy, numbers)][::here]

    @contextlib.contextmanager
    def explain_peer_failure(self) -> Iterator[None]:
        """Turn TensorFlow's errors from collectives into a `ClusterError` that names the process at fault."""
        try:
            yield
        except tf.errors.OpError as error:
            text = str(error)
            reason = text.split("Collective ops is aborted by:")[-1].split("\n\t [[")[0].strip()
            if re.search("collective (instance|group)", text, re.IGNORECASE):
                raise ClusterError(f"{_NOT_ALIKE} TensorFlow says: {reason}") from error
            if "Collective ops is aborted by" in text or "oordination service" in text:
                raise ClusterError(f"{_names_in(reason)} {_LOST} TensorFlow says: {reason}") from error
            raise


def _names_in(reason: str) -> str:
    """Return the names of the processes in a text, which names none if the chief does not answer."""
    found = sorted(set(re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", reason)))
    return " and ".join(f"{job.capitalize()} {index}" for job, index in found) or "The chief"
