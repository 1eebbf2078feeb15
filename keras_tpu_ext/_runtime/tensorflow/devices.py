"""TensorFlow's GPUs, CPUs and workers, and the strategies over them: each made once per process.

Private names of TensorFlow that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
`distribute.distribute_lib._get_default_strategy`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from keras_tpu_ext._runtime.common.once import once_per_process
from keras_tpu_ext._runtime.common.protocols import OpenedStrategy
from keras_tpu_ext._runtime.tensorflow.rehearsal import read_without_hand_over
from keras_tpu_ext.errors import ArgumentError, ScopeError

# CUDA compute capability of Ampere, the first with bfloat16 matrix units
MINIMUM_BFLOAT16_CAPABILITY = (8, 0)


def count_gpus() -> int:
    """Return how many GPUs TensorFlow sees; starts none."""
    return len(tf.config.list_physical_devices("GPU"))


@once_per_process
def open_gpus(count: int) -> OpenedStrategy:
    """Return the strategy over the first `count` GPUs: TensorFlow's default one for one, mirrored for more."""
    gpus = tf.config.list_physical_devices("GPU")[:count]
    details = tf.config.experimental.get_device_details(gpus[0])
    capability = details.get("compute_capability")
    if count == 1:
        strategy = _default_strategy()
    else:
        strategy = tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(count)])
    return OpenedStrategy(
        strategy,
        count,
        str(details.get("device_name", "GPU")),
        supports_bfloat16=None if capability is None else tuple(capability) >= MINIMUM_BFLOAT16_CAPABILITY,
    )


def num_workers() -> int:
    """Return how many processes train together: what `TF_CONFIG` says, else 1.

    Raises:
        ArgumentError: If `TF_CONFIG` cannot be read.
    """
    cluster = cluster_of_tf_config()[0]
    return sum(len(cluster.get(job, ())) for job in ("chief", "worker")) or 1


def is_chief() -> bool:
    """Return whether this process writes and prints: one does for all that train together, and one alone does.

    Raises:
        ArgumentError: If `TF_CONFIG` cannot be read.
    """
    cluster, job, index = cluster_of_tf_config()
    if job != "worker" or num_workers() == 1:
        return True
    return index == 0 and not cluster.get("chief")


def cluster_of_tf_config() -> tuple[dict[str, Any], str | None, int | None]:
    """Return the addresses of each job, and the job and index of this process; nothing where there is no cluster."""
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


@once_per_process
def open_cpu(replicas: int) -> OpenedStrategy:
    """Return the strategy over `replicas` CPU devices; more than one is a rehearsal on virtual ones.

    Raises:
        ScopeError: When TensorFlow's devices were started before the virtual ones could be made.
    """
    if replicas == 1:
        return OpenedStrategy(_default_strategy(), 1, "CPU")
    _make_virtual_cpus(replicas)
    read_without_hand_over()
    with _without_the_nccl_warning():
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(replicas)],
            # Not collectives, which MirroredStrategy would take: on few cores they can wait for each other forever.
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
    return OpenedStrategy(strategy, replicas, "CPU")


@contextlib.contextmanager
def _without_the_nccl_warning() -> Iterator[None]:
    """Keep TensorFlow from warning that a rehearsal on CPUs does without the GPUs' NCCL."""
    logger = tf.get_logger()

    def other_than_nccl(record: logging.LogRecord) -> bool:
        return "not using nccl allreduce" not in record.getMessage()

    logger.addFilter(other_than_nccl)
    try:
        yield
    finally:
        logger.removeFilter(other_than_nccl)


def _default_strategy() -> Any:
    """TensorFlow's own, also when this is called inside another strategy's scope."""
    return distribute_lib._get_default_strategy()


def _make_virtual_cpus(count: int) -> None:
    """Make at least `count` logical CPU devices; leave them alone where there are enough."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or []
    if len(configured) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        there = max(1, len(configured))
        raise ScopeError(
            f"strategy_scope(replicas={count}) needs {count} virtual CPU devices, but TensorFlow has already "
            f"started its devices with {there} of them; they cannot be added afterwards. "
            f"An earlier call came too early{early_calls()}. "
            f"What to do: write `with strategy_scope(replicas={count}) as scope:` before the first line that "
            "makes a tensor, a model or a dataset; "
            "in a notebook, restart the kernel first."
        ) from error


def early_calls() -> str:
    """Name what is alive and must have been made by the call that started the devices, for the error."""
    alive: dict[str, str] = {}
    for thing in gc.get_objects():
        for kind, label in ((tf.Variable, "variable"), (tf.data.Dataset, "dataset"), (tf.Tensor, "tensor")):
            if issubclass(type(thing), kind):
                alive.setdefault(label, getattr(thing, "name", "") if kind is tf.Variable else "")
    if not alive:
        return " (one that made a tensor or listed the logical devices, say)"
    return ": it made " + " and ".join(f"a {label} {name}".strip() for label, name in sorted(alive.items()))
