"""TensorFlow's GPUs, CPUs and workers, and the strategies over them: each made once per process.

Private names of TensorFlow that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
`distribute.distribute_lib._get_default_strategy`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from keras_tpu_ext._runtime.common.once import once_per_process
from keras_tpu_ext._runtime.common.protocols import OpenedStrategy
from keras_tpu_ext._runtime.tensorflow.cluster import is_chief as is_chief
from keras_tpu_ext._runtime.tensorflow.cluster import num_workers as num_workers
from keras_tpu_ext._runtime.tensorflow.cluster import open_workers as open_workers
from keras_tpu_ext._runtime.tensorflow.rehearsal import make_virtual_cpus, read_without_hand_over
from keras_tpu_ext._runtime.tensorflow.scope import distribute as distribute
from keras_tpu_ext._runtime.tensorflow.scope import scope as scope
from keras_tpu_ext._runtime.tensorflow.tpu import open_tpu as open_tpu

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


@once_per_process
def open_cpu(replicas: int) -> OpenedStrategy:
    """Return the strategy over `replicas` CPU devices; more than one is a rehearsal on virtual ones.

    Raises:
        ScopeError: When TensorFlow's devices were started before the virtual ones could be made.
    """
    if replicas == 1:
        return OpenedStrategy(_default_strategy(), 1, "CPU")
    make_virtual_cpus(replicas)
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


def num_replicas(model: Any) -> int:
    """Return the number of replicas that train `model` in step."""
    return int(model.distribute_strategy.num_replicas_in_sync)


def device_name(model: Any) -> str:
    """Return `"TPU"` where `model` trains on one, whose generation TensorFlow does not know; else an empty text."""
    return "TPU" if isinstance(model.distribute_strategy, tf.distribute.TPUStrategy) else ""
