"""The memory of TensorFlow's devices, or of the process, and the tensors in it."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
from collections import Counter
from pathlib import Path

import tensorflow as tf

from keras_tpu_ext._runtime.common.values import ArrayGroup, DeviceUse


def read_devices() -> list[DeviceUse]:
    """Return the memory of the GPUs and TPUs of this process; see `training/protocols.py`."""
    found = []
    for device in [*tf.config.list_logical_devices("GPU"), *tf.config.list_logical_devices("TPU")]:
        name = device.name.partition("device:")[2] or device.name
        with contextlib.suppress(ValueError, tf.errors.OpError):  # it tells nothing, as a TPU of another machine
            told = tf.config.experimental.get_memory_info(name)
            counted = "all that TensorFlow has allocated on the device"
            found.append(DeviceUse(name, told["current"], told["peak"], None, counted))
    return found


def read_process() -> list[DeviceUse]:
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


def tensors(own: Counter[tuple[str, tuple[int, ...], str]]) -> list[ArrayGroup]:
    """Return the variables of a model, and the tensors that Python's objects hold; see `training/protocols.py`."""
    kind, found = type(tf.constant(0)), own.copy()
    for one in gc.get_objects():
        if type(one) is kind and one.dtype not in (tf.resource, tf.variant):
            found[("other", tuple(one.shape), one.dtype.name)] += 1
    return [
        ArrayGroup(role, shape, dtype, count, count * math.prod(shape) * tf.as_dtype(dtype).size)
        for (role, shape, dtype), count in found.items()
    ]
