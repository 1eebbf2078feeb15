"""TensorFlow's devices and the strategies over them: each made once per process.

Private names of TensorFlow that this module leans on (tests/_runtime/test_private_names.py watches them):
`framework.kernels.get_registered_kernels_for_op` and `distribute.distribute_lib._get_default_strategy`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import re
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.framework import kernels

from keras_tpu_ext._runtime.contract import OpenedStrategy
from keras_tpu_ext.errors import ArgumentError, ScopeError, TpuUnusableError

MINIMUM_BFLOAT16_CAPABILITY = (
    8,
    0,
)  # CUDA compute capability of Ampere, the first with bfloat16 matrix units


_Opener = Callable[..., OpenedStrategy]
_OPENING = threading.Lock()


def _once(function: _Opener) -> _Opener:
    """Cache what `function` returns; two threads at once get one TPU initialisation and not two."""
    cached = functools.cache(function)

    @functools.wraps(function)
    def locked(*arguments: Any) -> OpenedStrategy:
        with _OPENING:
            return cached(*arguments)

    locked.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return locked


CONNECT_SECONDS = 10.0


def count_gpus() -> int:
    """Return how many GPUs TensorFlow sees; starts none."""
    return len(tf.config.list_physical_devices("GPU"))


@_once
def open_tpu(address: str) -> OpenedStrategy:
    """Return the strategy for the TPU at `address`; a second call never initialises it again.

    Args:
        address: `"local"` on a TPU VM, a TPU's name, or `grpc://host:port`.

    Raises:
        TpuUnusableError: When TensorFlow cannot use it, with the cause and the cure.
    """
    if address == "local" and not has_tpu_kernels():
        # Told by looking. Trying would start TensorFlow's devices, and a rehearsal could not follow.
        raise TpuUnusableError(_in_words(*_NO_KERNELS, address))
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if address != "local":  # on a TPU VM this process is the worker, there is no one to connect to
            _check_answers(address)
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # TensorFlow raises anything here: each of its errors is a cause to be told
        raise TpuUnusableError(explain_tpu_failure(address, error)) from error
    return OpenedStrategy(strategy, int(strategy.num_replicas_in_sync), "TPU", supports_bfloat16=True)


def _check_answers(address: str) -> None:
    """Raise `ConnectionError` where no one listens at a `grpc://` address.

    TensorFlow would wait for it: at an address that refuses, it had said nothing after 15 minutes.
    """
    for one in address.split(","):
        parts = urllib.parse.urlsplit(one)
        if parts.scheme == "grpc" and parts.hostname and parts.port:
            try:
                socket.create_connection((parts.hostname, parts.port), timeout=CONNECT_SECONDS).close()
            except OSError as error:
                raise ConnectionError(f"failed to connect to {one}: {error}") from error


def has_tpu_kernels() -> bool:
    """Return whether this TensorFlow was built to run on a TPU of its own machine; starts nothing."""
    return bool(kernels.get_registered_kernels_for_op("ConfigureDistributedTPU").kernel)


def explain_tpu_failure(address: str, error: BaseException) -> str:
    """Return one plain sentence on why a TPU cannot be used, and one on what to do about it."""
    text = f"{type(error).__name__}: {error}".strip()
    for pattern, cause, cure in _KNOWN_FAILURES:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return _in_words(cause, cure, address)
    return _in_words(
        f"TensorFlow could not initialise the TPU: {text.splitlines()[0]}.",
        "check that the TPU is up and that TPU_NAME or tpu= names it, or go on without it with "
        "strategy_scope(tpu=False).",
        address,
    )


def _in_words(cause: str, cure: str, address: str) -> str:
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


@_once
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
    config = os.environ.get("TF_CONFIG", "")
    if not config.strip():
        return 1
    try:
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    except (AttributeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"The environment variable TF_CONFIG must be JSON that names a cluster; got {config!r}. Unset it to "
            'train in one process, or write {"cluster": {"worker": ["HOST1:2222", "HOST2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}.'
        ) from error
    return sum(cluster.num_tasks(job) for job in cluster.jobs if job in ("chief", "worker")) or 1


@_once
def open_workers() -> OpenedStrategy:
    """Return the strategy over all GPUs (else one CPU) of every process that `TF_CONFIG` names."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return OpenedStrategy(strategy, int(strategy.num_replicas_in_sync))


@_once
def open_cpu(replicas: int) -> OpenedStrategy:
    """Return the strategy over `replicas` CPU devices; more than one is a rehearsal on virtual ones.

    Raises:
        ScopeError: When TensorFlow's devices were started before the virtual ones could be made.
    """
    if replicas == 1:
        return OpenedStrategy(_default_strategy(), 1, "CPU")
    _make_virtual_cpus(replicas)
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
            f"An earlier call came too early{_early_calls()}. "
            f"What to do: write `with strategy_scope(replicas={count}) as scope:` before the first line that "
            "makes a tensor, a model or a dataset; "
            "in a notebook, restart the kernel first."
        ) from error


def _early_calls() -> str:
    """Name what is alive and must have been made by the call that started the devices, for the error."""
    alive: dict[str, str] = {}
    for thing in gc.get_objects():
        for kind, label in ((tf.Variable, "variable"), (tf.data.Dataset, "dataset"), (tf.Tensor, "tensor")):
            if issubclass(type(thing), kind):
                alive.setdefault(label, getattr(thing, "name", "") if kind is tf.Variable else "")
    if not alive:
        return " (one that made a tensor or listed the logical devices, say)"
    return ": it made " + " and ".join(f"a {label} {name}".strip() for label, name in sorted(alive.items()))
