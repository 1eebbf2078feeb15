"""What this thread traces a step for: the devices, and a TPU that need not be there, for which Keras asks JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras

from keras_tpu_ext._runtime.common.patches import Patch, patched, temporarily
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3_jax import Mesh, abstract_mesh, jax_mesh, mesh_sizes

_Devices = Sequence["jax.Device | _TpuStandIn"]
_Kernel = Callable[..., Nest]

# The modules that compute according to the answer; others, such as Keras's distribution_lib, want devices to use.
_ASKERS = (
    "keras.src.backend.jax.nn.",
    "keras.src.backend.jax.numpy.",
    "keras.src.backend.jax.ops.",  # where the previous two are from Keras 3.16 on
    "keras.src.backend.jax.rnn.",
    "keras.src.backend.jax.trainer.",
    "keras.src.ops.nn.",
    "keras_hub.",
)


@dataclasses.dataclass(frozen=True)
class TracedDevices:
    """The devices for which a step is traced."""

    mesh: Mesh | None = None  # their mesh, which may be abstract; `None` for one device
    batch_axis: str = ""  # its axis for batches; heads of attention are sharded along the other axes
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
        return cls(mesh_of(distribution), distribution.batch_dim_name, is_sharded, exact_attention)


class _Tracing(threading.local):
    """What this thread traces for."""

    devices: TracedDevices | None = None
    device_kind = ""  # of a TPU that need not be there
    interprets = False  # whether kernels are interpreted
    lowers = False  # whether what is traced is lowered for devices that need not be there


_TRACING = _Tracing()


def traced_devices() -> TracedDevices | None:
    """Return the devices for which this thread traces a step; `None` if it does not."""
    return _TRACING.devices


def tracing_devices(devices: TracedDevices) -> contextlib.AbstractContextManager[None]:
    """Return a context in which this thread traces for `devices`."""
    return temporarily(_TRACING, devices=devices)


def mesh_of(distribution: keras.distribution.Distribution) -> Mesh:
    """Return the mesh of a distribution, which is abstract within `lowering_for`."""
    if not _TRACING.lowers:
        return jax_mesh(distribution)
    return abstract_mesh(mesh_sizes(distribution))


@contextlib.contextmanager
def lowering_for(device_kind: str) -> Iterator[None]:
    """Let this thread trace for devices of a kind within the block, `"TPU v3"` say, that need not be there."""
    for_tpu = tracing_for_tpu(device_kind) if device_kind.startswith("TPU") else contextlib.nullcontext()
    with temporarily(_TRACING, lowers=True), for_tpu:
        yield


def traces_for_tpu() -> bool:
    """Return whether this thread traces for a TPU, whether it is there or not."""
    return bool(_TRACING.device_kind) or jax.default_backend() == "tpu"


def device_kind_of(mesh: Mesh | None) -> str:
    """Return JAX's name for the devices that are traced for, such as `"TPU v3"`: those of a mesh, or the first."""
    if _TRACING.device_kind:
        return _TRACING.device_kind
    device: jax.Device = mesh.devices.flat[0] if isinstance(mesh, jax.sharding.Mesh) else jax.devices()[0]
    return device.device_kind


@contextlib.contextmanager
def tracing_for_tpu(device_kind: str, *, interprets: bool = False) -> Iterator[None]:
    """Let Keras and this package take the code paths for a TPU in what this thread traces within the block."""
    patches = [*_platform_patches(), *(_kernel_patches() if interprets else ())]
    with patched(patches), temporarily(_TRACING, device_kind=device_kind, interprets=interprets):
        yield


def as_on_tpu() -> contextlib.AbstractContextManager[None]:
    """Return the context of `testing.as_on_tpu`; see `training/protocols.py`."""
    return tracing_for_tpu("TPU v5 lite", interprets=True)


class _TpuStandIn:
    """A device that says it is a TPU."""

    platform = "tpu"

    def __init__(self, device: jax.Device) -> None:
        self._device = device
        self.device_kind = _TRACING.device_kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def _platform_patches() -> list[Patch]:
    def devices(original: Callable[..., _Devices]) -> Callable[..., _Devices]:
        def answer(*args: object, **kwargs: object) -> _Devices:
            found = original(*args, **kwargs)
            return [_TpuStandIn(device) for device in found] if _is_asker(sys._getframe(2)) else found

        return answer

    def default_backend(original: Callable[[], str]) -> Callable[[], str]:
        return lambda: "tpu" if _is_asker(sys._getframe(2)) else original()

    return [(jax, "jax.devices", devices), (jax, "jax.default_backend", default_backend)]


def _is_asker(frame: types.FrameType) -> bool:
    """Return whether a frame, that of the dispatcher's caller, asks for the platform."""
    return bool(_TRACING.device_kind) and f"{frame.f_globals.get('__name__', '')}.".startswith(_ASKERS)


def _kernel_patches() -> list[Patch]:
    from jax.experimental import pallas

    def pallas_call(original: Callable[..., _Kernel]) -> Callable[..., _Kernel]:
        def call(*args: object, **kwargs: object) -> _Kernel:
            return original(*args, **({**kwargs, "interpret": True} if _TRACING.interprets else kwargs))

        return call

    return [(pallas, "jax.experimental.pallas.pallas_call", pallas_call)]
