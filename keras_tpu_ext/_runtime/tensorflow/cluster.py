"""Several processes, named by `TF_CONFIG`, that train together: how they connect, and how a lost one is reported.

`MultiWorkerMirroredStrategy` skips its own health check (every 30 s, three tries of 10 s) in favour of TensorFlow's
coordination service, in which every process sends heartbeats to the chief. By default, the chief waits an hour for
a process that never starts, and so does every other process for the chief.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.once import once_per_process
from keras_tpu_ext._runtime.common.values import OpenedStrategy
from keras_tpu_ext._runtime.compat.tensorflow import CoordinatedJob
from keras_tpu_ext._runtime.tensorflow.rehearsal import early_calls
from keras_tpu_ext._runtime.tensorflow.replicas import gather_everywhere
from keras_tpu_ext._runtime.training.process_group import ProcessGroup
from keras_tpu_ext.errors import ArgumentError, ClusterError, ScopeError

_context: Any = private("tensorflow.python.eager.context:context")
_global_seed: Any = private("tensorflow.python.eager.context:global_seed")

# Longer than TensorFlow's 10 s: ending a training because of a process that was only slow costs more than waiting
# for one that is lost.
HEARTBEAT_SECONDS = 20
START_SECONDS = 300
_START_VARIABLE = "KTE_START_TIMEOUT"


@once_per_process
def open_workers() -> OpenedStrategy:
    """Return the strategy over all GPUs (else one CPU) of every process that `TF_CONFIG` names."""
    seconds = _start_seconds()
    cluster, job, index = cluster_of_tf_config()
    _configure_coordination(cluster, seconds)
    if is_chief():
        _wait_for(_others(cluster, job, index), seconds)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        job = "chief" if cluster.get("chief") else "worker"
        raise ClusterError(
            f"The chief, {job} 0 at {cluster[job][0]}, was not ready within {seconds} seconds: it did not start, or "
            f"it waits for another process that did not; then its own message names that one. {_WHAT_TO_DO}"
        ) from error
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise ScopeError(
            "Several processes can only train together from the start of TensorFlow, and its devices have been "
            f"started already. An earlier call came too early{early_calls()}. What to do: write "
            "`with strategy_scope() as scope:` before the first line that makes a tensor, a model or a dataset."
        ) from error
    _agree_on_seed(strategy)
    return OpenedStrategy(strategy, int(strategy.num_replicas_in_sync), configured_by="TF_CONFIG")


def _configure_coordination(cluster: dict[str, Any], seconds: int) -> None:
    """Configure TensorFlow's coordination service as the strategy would, but with timeouts."""
    if _context().coordination_service is not None:  # the user's own settings
        return
    jobs = [job for job in ("chief", "worker") if cluster.get(job)]
    _context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0]}/task:0",
        cluster_register_timeout_in_ms=seconds * 1000,
        heartbeat_timeout_in_ms=HEARTBEAT_SECONDS * 1000,
        coordinated_jobs=[CoordinatedJob(name=job, num_tasks=len(cluster[job])) for job in jobs],
    )


def _others(cluster: dict[str, Any], job: str | None, index: int | None) -> dict[str, str]:
    """Return the addresses of the other training processes, by name."""
    return {
        f"{other} {number}": address
        for other in ("chief", "worker")
        for number, address in enumerate(cluster.get(other, ()))
        if (other, number) != (job, index)
    }


def _wait_for(others: dict[str, str], seconds: int) -> None:
    """Wait until every other process listens, which it does before it contacts the chief."""
    end, missing = time.monotonic() + seconds, others
    while missing := {name: address for name, address in missing.items() if not _listens(address)}:
        if time.monotonic() > end:
            names = " and ".join(f"{name} at {address}" for name, address in missing.items())
            raise ClusterError(
                f"{len(missing)} of the {len(others) + 1} processes that TF_CONFIG names did not start within "
                f"{seconds} seconds: no one answers for {names}. {_WHAT_TO_DO}"
            )
        time.sleep(0.2)


_WHAT_TO_DO = (
    "What to do: start the same program once for every address in TF_CONFIG, each with its own task index, check "
    f"that they reach each other, or, if they only need longer, set the environment variable {_START_VARIABLE} to "
    "more seconds; to train in this process alone, unset TF_CONFIG."
)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return True
    except OSError:
        return False


def _start_seconds() -> int:
    value = os.environ.get(_START_VARIABLE, "").strip() or str(START_SECONDS)
    if not value.isdigit() or not int(value):
        raise ArgumentError(
            f"The environment variable {_START_VARIABLE} must be a whole number of seconds; got {value!r}. "
            f"Write {_START_VARIABLE}={START_SECONDS}, say, or unset it."
        )
    return int(value)


def _agree_on_seed(strategy: tf.distribute.Strategy) -> None:
    """Let all processes draw the same random order: each shuffles all data, and then takes its part."""
    own = _global_seed()
    seed = secrets.randbits(31) if own is None else int(own)

    def of_first(replica: Any) -> tf.Tensor:
        return tf.constant(seed if replica.replica_id_in_sync_group == 0 else 0, tf.int64)

    values = strategy.experimental_distribute_values_from_function(of_first)
    agreed = int(strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None))
    if own != agreed:
        tf.random.set_seed(agreed)


def num_workers() -> int:
    """Return the number of processes that train together, by `TF_CONFIG`; 1 without it."""
    cluster = cluster_of_tf_config()[0]
    return sum(len(cluster.get(job, ())) for job in ("chief", "worker")) or 1


def is_chief() -> bool:
    """Return whether this process writes and prints: one of the processes that train together does."""
    cluster, job, index = cluster_of_tf_config()
    if job != "worker" or num_workers() == 1:
        return True
    return index == 0 and not cluster.get("chief")


def cluster_of_tf_config() -> tuple[dict[str, Any], str | None, int | None]:
    """Return the addresses of each job, and the job and index of this process; nothing if there is no cluster."""
    config = os.environ.get("TF_CONFIG", "")
    if not config.strip():
        return {}, None, None
    try:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        return resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id
    except (AttributeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"The environment variable TF_CONFIG must be JSON that names a cluster; got {config!r}. Unset it to "
            'train in one process, or write {"cluster": {"worker": ["HOST1:2222", "HOST2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}.'
        ) from error


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

    size = staticmethod(num_workers)
    is_chief = staticmethod(is_chief)

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy

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
