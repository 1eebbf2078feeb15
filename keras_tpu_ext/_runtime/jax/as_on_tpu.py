"""Take the code paths for a TPU where there is none: Keras asks JAX for the platform while it traces."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from keras_tpu_ext._runtime.common.patches import Patch, patched
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3_jax import Mesh

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


class _Tracing(threading.local):
    """The kind of absent TPU that this thread traces for, and whether it interprets kernels."""

    device_kind = ""
    interprets = False


_TRACING = _Tracing()


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
    before = _TRACING.device_kind, _TRACING.interprets
    with patched([*_platform_patches(), *(_kernel_patches() if interprets else ())]):
        _TRACING.device_kind, _TRACING.interprets = device_kind, interprets
        try:
            yield
        finally:
            _TRACING.device_kind, _TRACING.interprets = before


def as_on_tpu() -> contextlib.AbstractContextManager[None]:
    """Return the context of `testing.as_on_tpu`; see `common/protocols.py`."""
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
