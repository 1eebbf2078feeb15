"""TensorFlow's GPUs, CPUs and workers, and the strategies over them: each created once per process."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.layouts import ModelLayout, Role, VariableLayout
from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.once import once_per_process
from keras_tpu_ext._runtime.common.types import Model, Variable
from keras_tpu_ext._runtime.common.values import ArrayGroup, ChooseMesh, DeviceUse, OpenedStrategy
from keras_tpu_ext._runtime.tensorflow.cluster import is_chief as is_chief
from keras_tpu_ext._runtime.tensorflow.cluster import num_workers as num_workers
from keras_tpu_ext._runtime.tensorflow.cluster import open_workers as open_workers
from keras_tpu_ext._runtime.tensorflow.memory import read_devices, read_process, tensors
from keras_tpu_ext._runtime.tensorflow.rehearsal import make_virtual_cpus, skip_replica_iterators
from keras_tpu_ext._runtime.tensorflow.scope import distribute as distribute
from keras_tpu_ext._runtime.tensorflow.scope import scope as scope
from keras_tpu_ext._runtime.tensorflow.tpu import open_tpu as open_tpu
from keras_tpu_ext.errors import RuntimeNotSupportedError

# Returns TensorFlow's default strategy, even inside the scope of another one.
_default_strategy: Any = private("tensorflow.python.distribute.distribute_lib:_get_default_strategy")

# CUDA compute capability of Ampere, the first with bfloat16 matrix units
MINIMUM_BFLOAT16_CAPABILITY = (8, 0)


def as_on_tpu() -> contextlib.AbstractContextManager[None]:
    """Raise an error: on TensorFlow nothing is traced differently for a TPU."""
    raise RuntimeNotSupportedError(
        "as_on_tpu is for Keras 3 on JAX, where Keras asks for the platform while it traces. On TensorFlow one graph "
        "is built for every device, and what a TPU makes of it only its compiler knows. Write "
        "kte.preflight(model, batch)."
    )


def compile_cache_dir() -> str | None:
    """Raise an error: TensorFlow has no cache of the programs of a TPU."""
    raise RuntimeNotSupportedError(
        "strategy_scope(compile_cache=...) is for Keras 3 on JAX; TensorFlow keeps no compiled program of a TPU. "
        'Write os.environ["KERAS_BACKEND"] = "jax" before the first import of keras, or leave `compile_cache` out.'
    )


def use_compile_cache(path: str, cache: Any) -> None:
    """Raise an error."""
    compile_cache_dir()


def abstract_strategy(devices: int) -> OpenedStrategy:
    """Return the number of devices; see `training/protocols.py`."""
    return OpenedStrategy(None, devices)


def shard(
    opened: OpenedStrategy, shard: Any, mesh: Sequence[tuple[str, int]] | None, choose: ChooseMesh | None = None
) -> OpenedStrategy:
    """Raise an error: TensorFlow's strategies replicate the whole model on every replica."""
    raise RuntimeNotSupportedError(
        f"shard={shard!r} is for Keras 3 on JAX; a tf.distribute.Strategy has all of a model on "
        'every replica. Write os.environ["KERAS_BACKEND"] = "jax" before the first import of keras, or leave `shard` '
        "out."
    )


def layout(model: Model) -> ModelLayout:
    """Return the layout of a built model: every variable is replicated."""
    optimizer = getattr(model, "optimizer", None)
    variables = getattr(optimizer, "variables", None) or []
    slots = variables() if callable(variables) else variables
    weights = [_whole(variable, "weight") for variable in model.weights]
    has_slots = optimizer is None or bool(getattr(optimizer, "built", slots))
    return ModelLayout({}, (*weights, *(_whole(slot, "optimizer") for slot in slots)), has_slots=has_slots)


def _whole(variable: Variable, role: Role) -> VariableLayout:
    shape, dtype = tuple(variable.shape), tf.as_dtype(variable.dtype)
    size = math.prod(shape) * dtype.size
    path = getattr(variable, "path", variable.name)
    return VariableLayout(path, role, shape, dtype.name, (None,) * len(shape), size, size)


def memory_reader(model: Model) -> Callable[[], list[DeviceUse]]:
    """Return a function that reads the memory of the devices that train `model`; see `training/protocols.py`."""
    return read_process if device_name(model) == "cpu" else read_devices


def live_arrays(model: Model) -> list[ArrayGroup]:
    """Return the variables of `model`, and the tensors of this process; see `training/protocols.py`."""
    return tensors(Counter((one.role, one.shape, one.dtype) for one in layout(model).variables))


def count_gpus() -> int:
    """Return the number of GPUs that TensorFlow sees, without initialising any."""
    return len(tf.config.list_physical_devices("GPU"))


@once_per_process
def open_gpus(count: int) -> OpenedStrategy:
    """Return the strategy over the first `count` GPUs: the default strategy for one, a mirrored one for more."""
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
    """Return the strategy over `replicas` CPU devices; if several, they are virtual ones for a rehearsal."""
    if replicas == 1:
        return OpenedStrategy(_default_strategy(), 1, "CPU")
    make_virtual_cpus(replicas)
    skip_replica_iterators()
    with _no_nccl_warning():
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(replicas)],
            # Not collectives, MirroredStrategy's default: with few cores they can wait for each other forever.
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
    return OpenedStrategy(strategy, replicas, "CPU")


@contextlib.contextmanager
def _no_nccl_warning() -> Iterator[None]:
    """Suppress TensorFlow's warning that replicas on CPUs do not use NCCL."""
    logger = tf.get_logger()

    def is_other(record: logging.LogRecord) -> bool:
        return "not using nccl allreduce" not in record.getMessage()

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def num_replicas(model: Model) -> int:
    """Return the number of replicas that train `model` synchronously."""
    return int(model.distribute_strategy.num_replicas_in_sync)


num_devices = num_replicas  # each replica has one


def device_name(model: Model) -> str:
    """Return `"TPU"`, whose generation TensorFlow does not report, a GPU's name, such as `"Tesla T4"`, or `"cpu"`."""
    strategy = model.distribute_strategy
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "TPU"
    gpus = tf.config.get_visible_devices("GPU")
    # The default strategy places each operation by itself.
    if not gpus or (strategy is not _default_strategy() and "CPU" in strategy.extended.worker_devices[0]):
        return "cpu"
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", ""))
