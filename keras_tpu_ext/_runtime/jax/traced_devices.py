"""The devices for which a thread traces a step."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

import keras

from keras_tpu_ext._runtime.compat.keras3_jax import Mesh, jax_mesh


@dataclasses.dataclass(frozen=True)
class TracedDevices:
    """The devices for which a step is traced."""

    mesh: Mesh | None = None  # their mesh, which may be abstract; `None` for one device
    # Its axis along which batches are sharded; heads of attention are sharded along the other axes.
    batch_axis: str = ""
    is_sharded: bool = False  # whether weights are sharded over the mesh too
    exact_attention: bool = True  # whether attention on a TPU is to match that on a CPU
    is_abstract: bool = False  # whether nothing of what is traced will run, on any device

    @classmethod
    def of(
        cls, distribution: keras.distribution.Distribution | None, *, exact_attention: bool = True
    ) -> TracedDevices:
        """Return the devices of a distribution; `None` is one device."""
        if distribution is None:
            return cls(exact_attention=exact_attention)
        is_sharded = isinstance(distribution, keras.distribution.ModelParallel)
        return cls(jax_mesh(distribution), distribution.batch_dim_name, is_sharded, exact_attention)


class _Context(threading.local):
    devices: TracedDevices | None = None


_CONTEXT = _Context()


def traced_devices() -> TracedDevices | None:
    """Return the devices for which this thread traces a step; `None` if it does not."""
    return _CONTEXT.devices


@contextlib.contextmanager
def tracing_devices(devices: TracedDevices) -> Iterator[None]:
    """Let this thread trace for `devices` within the block."""
    before, _CONTEXT.devices = _CONTEXT.devices, devices
    try:
        yield
    finally:
        _CONTEXT.devices = before
