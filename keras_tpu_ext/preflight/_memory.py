"""What uses the memory of a device, and what would use less."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from keras_tpu_ext._runtime.common.layouts import VariableLayout
from keras_tpu_ext.preflight._hlo.collectives import collective_of, is_collective
from keras_tpu_ext.preflight._hlo.layer_resolver import Origin
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.peak_memory import LiveBuffer
from keras_tpu_ext.preflight.results import Purpose

_ROLES = {"weight": "weights", "optimizer": "optimizer", "accumulator": "accumulator"}
_LEAST_VOCABULARY = 4096


class Purposes:
    """Finds the purpose of buffers from their shapes and from the layers that write them."""

    def __init__(self, layouts: Sequence[VariableLayout], mesh: Mapping[str, int], devices: int) -> None:
        weights = [row for row in layouts if row.role == "weight" and len(row.shape) > 1]
        self._devices = devices
        self._is_sharded = any(size > 1 for size in mesh.values())
        self._weights = {_dimensions(shape) for row in weights for shape in _shapes(row, mesh)}
        words = {row.shape[0] for row in weights if row.path.endswith("embeddings")}
        parts = {math.prod(some) for count in range(3) for some in itertools.combinations(mesh.values(), count)}
        self._words = {size // part for size in words if size >= _LEAST_VOCABULARY for part in parts}

    def of(self, buffer: LiveBuffer, origin: Origin, module: Module) -> Purpose:
        """Return the purpose of a buffer."""
        shape = _dimensions(buffer.shape.dimensions)
        if origin.layer == "(optimizer)":
            return "update"
        if shape in self._weights:
            one = buffer.instruction
            collective = collective_of(one, module, self._devices).kind if is_collective(one) else ""
            if collective not in ("", "all-gather"):
                return "gradient"
            if self._is_sharded or origin.backward:
                return "gradient" if origin.backward and not collective else "gathered weight"
        if origin.layer == "(loss)" or self._words & set(shape):
            return "logits"
        return "activation"


def bytes_by_role(
    layouts: Iterable[VariableLayout],
    arguments: int | None = None,
    temporaries: int | None = None,
    gradients: int = 0,
    code: int = 0,
) -> dict[str, int]:
    """Return the bytes on a device by role.

    Args:
        layouts: Where each variable of the model is.
        arguments: Bytes of the variables and the batch; `None` if the compiler does not say.
        temporaries: Bytes that a step allocates and frees; `None` if the compiler does not say.
        gradients: Bytes of gradients among them.
        code: Bytes of the program itself.
    """
    found: dict[str, int] = {}
    for row in layouts:
        role = _ROLES.get(row.role, "batch and other")
        found[role] = found.get(role, 0) + row.bytes_per_device
    if not found:
        return {}
    if arguments is not None:
        found["batch and other"] = max(arguments - sum(found[role] for role in _ROLES.values() if role in found), 0)
    if temporaries is not None:
        found["gradients"] = min(gradients, temporaries)
        found["activations"] = temporaries - found["gradients"]
        found["program"] = code
    return found


def cure_for(purpose: Purpose, mesh: Mapping[str, int], devices: int) -> str:
    """Return what to write to make a buffer smaller; empty if nothing simple does."""
    if purpose == "logits":
        return "a smaller batch, or a loss that takes a part of the sequence at a time"
    if purpose == "activation":
        return "a smaller batch, or keras.RematScope around the lines that make the layers"
    if devices == 1:
        return ""
    if not mesh:
        return 'shard="fsdp"'
    if purpose == "gathered weight" and len([size for size in mesh.values() if size > 1]) < 2:
        return f'mesh=(("data", {devices // 2}), ("model", 2)), where no device needs all of a weight'
    return ""


def _shapes(row: VariableLayout, mesh: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Yield the shapes that a weight has on a device: its part, the whole, and gathered along only some axes."""
    choices = [(axis, None) if axis else (None,) for axis in row.spec]
    for spec in itertools.product(*choices):
        yield tuple(size // mesh.get(axis or "", 1) for size, axis in zip(row.shape, spec, strict=True))


def _dimensions(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the dimensions in a canonical order, since the compiler has its own."""
    return tuple(sorted(size for size in shape if size > 1))
