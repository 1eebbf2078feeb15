"""TPUs under JAX: opened once per process; every failure is explained with its cause and a fix."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

import jax

from keras_tpu_ext._runtime.common.once import once_per_process
from keras_tpu_ext._runtime.common.protocols import OpenedStrategy
from keras_tpu_ext._runtime.jax.hide_accelerators import hide_accelerators
from keras_tpu_ext._runtime.jax.sharding import data_parallel
from keras_tpu_ext.errors import TpuUnusableError


@once_per_process
def open_tpu(address: str) -> OpenedStrategy:
    """Return the distribution over all cores of the TPU, of every process that JAX has joined."""
    if "://" in address:
        raise TpuUnusableError(_message(*_REMOTE, address))
    if importlib.util.find_spec("libtpu") is None:
        # Trying would start JAX's devices, after which a rehearsal is impossible.
        raise TpuUnusableError(_message(*_NO_LIBTPU, address))
    hide_accelerators()
    try:
        devices = jax.devices("tpu")
    except Exception as error:  # JAX may raise anything here
        raise TpuUnusableError(explain_tpu_failure(address, error)) from error
    return OpenedStrategy(data_parallel(devices), len(devices), devices[0].device_kind, supports_bfloat16=True)


def explain_tpu_failure(address: str, error: BaseException) -> str:
    """Return one sentence that explains why a TPU cannot be used, and another that says what to do about it."""
    text = f"{type(error).__name__}: {error}".strip()
    for pattern, cause, cure in _KNOWN_FAILURES:
        match = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
        if match:
            holder = re.search(r"pid\D{0,3}(\d+)", text)
            by = f" It is the process {holder[1]}." if holder and cause is _HELD else ""
            return _message(cause + by, cure, address)
    return _message(
        f"JAX could not start the TPU: {text.splitlines()[0]}.",
        "check that this is a TPU machine and that libtpu fits JAX, pip install 'jax[tpu]', or go on without it with "
        "strategy_scope(tpu=False).",
        address,
    )


def _message(cause: str, cure: str, address: str) -> str:
    return f"{cause} What to do: {cure} (TPU address {address!r}, JAX {jax.__version__}, libtpu {_libtpu()}.)"


def _libtpu() -> str:
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


_REMOTE = (
    "Keras runs on JAX here, and JAX cannot reach a TPU over the network.",
    "run on the TPU machine itself and write strategy_scope(tpu='local'), or use TensorFlow: before the first import "
    "of keras, os.environ['KERAS_BACKEND'] = 'tensorflow'.",
)
_NO_LIBTPU = (
    "This JAX was installed without libtpu, which drives the TPU.",
    "pip install 'jax[tpu]', then run again.",
)
_HELD = "Another process holds the TPU chip; only one process and one framework can."
_KNOWN_FAILURES = (
    (
        r"already in use|in use by|lockfile|Device or resource busy|Failed to get TPU.*held",
        _HELD,
        "end that process (another notebook, or TensorFlow in this one), then run again. After a crash the file "
        "/tmp/libtpu_lockfile may be left behind: delete it.",
    ),
    (
        r"No jellyfish device|no TPU|Unable to initialize backend 'tpu'.*(not found|NOT_FOUND)|Failed to find .*TPU",
        "libtpu finds no TPU on this machine.",
        "check that the notebook's accelerator is a TPU and that the machine was restarted since it was chosen.",
    ),
    (
        r"unknown backend|not in the list of known backends|JAX_PLATFORMS",
        "JAX was told not to use TPUs.",
        "unset the environment variable JAX_PLATFORMS, or write JAX_PLATFORMS=tpu,cpu, before JAX is imported.",
    ),
)
