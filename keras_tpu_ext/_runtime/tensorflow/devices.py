"""TensorFlow's devices, what is in their memory, and the strategies over them: each created once per process.

Every failure to open a TPU is explained with its cause and a fix.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import re
import socket
import sys
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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
from keras_tpu_ext._runtime.tensorflow.rehearsal import make_virtual_cpus, skip_replica_iterators
from keras_tpu_ext._runtime.tensorflow.scope import distribute as distribute
from keras_tpu_ext._runtime.tensorflow.scope import scope as scope
from keras_tpu_ext.errors import RuntimeNotSupportedError, TpuUnusableError

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
    return _read_process if device_name(model) == "cpu" else _read_devices


def _read_devices() -> list[DeviceUse]:
    """Return the memory of the GPUs and TPUs of this process; see `training/protocols.py`."""
    found = []
    for device in [*tf.config.list_logical_devices("GPU"), *tf.config.list_logical_devices("TPU")]:
        name = device.name.partition("device:")[2] or device.name
        with contextlib.suppress(ValueError, tf.errors.OpError):  # it tells nothing, as a TPU of another machine
            told = tf.config.experimental.get_memory_info(name)
            counted = "all that TensorFlow has allocated on the device"
            found.append(DeviceUse(name, told["current"], told["peak"], None, counted))
    return found


def _read_process() -> list[DeviceUse]:
    """Return the resident memory of this process: TensorFlow does not say what it has on a CPU."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    page = resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    status = Path("/proc/self/statm")
    in_use = int(status.read_text(encoding="ascii").split()[1]) * page if status.exists() else peak
    # The system counts the peak now and then only.
    return [
        DeviceUse(
            "CPU", in_use, max(in_use, peak), None, "the resident memory of this process, Python and data included"
        )
    ]


def live_arrays(model: Model) -> list[ArrayGroup]:
    """Return the variables of `model`, and the tensors of this process; see `training/protocols.py`."""
    kind = type(tf.constant(0))
    found = Counter((str(one.role), one.shape, one.dtype) for one in layout(model).variables)
    for one in gc.get_objects():
        if type(one) is kind and one.dtype not in (tf.resource, tf.variant):
            found[("other", tuple(one.shape), one.dtype.name)] += 1
    return [
        ArrayGroup(role, shape, dtype, count, count * math.prod(shape) * tf.as_dtype(dtype).size)
        for (role, shape, dtype), count in found.items()
    ]


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


_get_registered_kernels_for_op: Any = private("tensorflow.python.framework.kernels:get_registered_kernels_for_op")

CONNECT_SECONDS = 10.0


@once_per_process
def open_tpu(address: str) -> OpenedStrategy:
    """Return the strategy for the TPU at `address`; a second call never initialises it again."""
    if address == "local" and not has_tpu_kernels():
        # Trying would start TensorFlow's devices, after which a rehearsal is impossible.
        raise TpuUnusableError(_message(*_NO_KERNELS, address))
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if address != "local":  # on a TPU VM this process is the worker and has nothing to connect to
            _check_answers(address)
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # TensorFlow may raise anything here
        raise TpuUnusableError(explain_tpu_failure(address, error)) from error
    return OpenedStrategy(strategy, int(strategy.num_replicas_in_sync), "TPU", supports_bfloat16=True)


def _check_answers(address: str) -> None:
    """Raise `ConnectionError` if nothing listens at a `grpc://` address.

    TensorFlow would wait for it: at an address that refuses connections, it had reported nothing after 15 minutes.
    """
    for one in address.split(","):
        parts = urllib.parse.urlsplit(one)
        if parts.scheme == "grpc" and parts.hostname and parts.port:
            try:
                socket.create_connection((parts.hostname, parts.port), timeout=CONNECT_SECONDS).close()
            except OSError as error:
                raise ConnectionError(f"failed to connect to {one}: {error}") from error


def has_tpu_kernels() -> bool:
    """Return True if this TensorFlow was built to run on a TPU of its own machine; this starts nothing."""
    return bool(_get_registered_kernels_for_op("_ConfigureDistributedTPU").kernel)


def explain_tpu_failure(address: str, error: BaseException) -> str:
    """Return one sentence that explains why a TPU cannot be used, and another that says what to do about it."""
    text = f"{type(error).__name__}: {error}".strip()
    for pattern, cause, cure in _KNOWN_FAILURES:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return _message(cause, cure, address)
    return _message(
        f"TensorFlow could not initialise the TPU: {text.splitlines()[0]}.",
        "check that the TPU is up and that TPU_NAME or tpu= names it, or go on without it with "
        "strategy_scope(tpu=False).",
        address,
    )


def _message(cause: str, cure: str, address: str) -> str:
    return f"{cause} What to do: {cure} (TPU address {address!r}, TensorFlow {tf.__version__}.)"


_NO_KERNELS = (
    "This TensorFlow was built without TPU kernels (the plain `tensorflow` and `tensorflow-cpu` wheels are).",
    "install a pair that fits, pip install tensorflow-tpu 'libtpu<=0.0.31', in a fresh environment.",
)
_KNOWN_FAILURES = (
    (r"no registered .*kernels|no OpKernel was registered|_DoWork not available", *_NO_KERNELS),
    (
        r"already in use|in use by|lockfile|Device or resource busy",
        "Another process holds the TPU chip; only one process and one framework can.",
        "end that process (another notebook, or JAX in this one), then run again.",
    ),
    (
        r"google-api-python-client|googleapiclient|metadata|could not find TPU|could not lookup|URLError",
        "The TPU's name could not be looked up from this machine.",
        "on a TPU VM write strategy_scope(tpu='local'); else give its address, tpu='grpc://HOST:8470'.",
    ),
    (
        r"failed to connect|unavailable|deadline|connection refused|DNS|timed? ?out",
        "The TPU's address does not answer.",
        "check that the TPU is running and that the address is reachable from here.",
    ),
)
