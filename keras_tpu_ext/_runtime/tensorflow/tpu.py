"""TPUs under TensorFlow: opened once per process; every failure is explained with its cause and a fix."""

from __future__ import annotations

import re
import socket
import urllib.parse
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.once import once_per_process
from keras_tpu_ext._runtime.common.values import OpenedStrategy
from keras_tpu_ext.errors import TpuUnusableError

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
