"""Keras's operations, exact on the devices for which they are traced."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.jax.attention import attention_patches
from keras_tpu_ext._runtime.jax.sharded_operations import sharded_patches
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, traced_devices, tracing_devices


@contextlib.contextmanager
def exact_operations(devices: TracedDevices, *, replaces: bool = False) -> Iterator[None]:
    """Within the block, let Keras's operations be exact on `devices`.

    A model that is called within another one is a part of it, on the other's devices: of nested blocks the outermost
    with a mesh counts. The loop of a model, whose steps are its own, replaces what counts around it.
    """
    outer = traced_devices()
    if outer is not None and outer.is_abstract:
        yield
        return
    if outer is not None and outer.mesh is not None and not replaces:
        devices = dataclasses.replace(outer, exact_attention=outer.exact_attention or devices.exact_attention)
    attention = attention_patches() if devices.exact_attention else []
    with patched([*attention, *sharded_patches(devices)]), tracing_devices(devices):
        yield
