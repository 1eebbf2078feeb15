"""What takes the memory of a device, and what would take less."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from keras_tpu_ext._runtime.common.layouts import VariableLayout
from keras_tpu_ext.preflight._hlo.collectives import collective_in, is_collective, kind_of
from keras_tpu_ext.preflight._hlo.layer_resolver import Origin
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.peak_memory import LiveBuffer
from keras_tpu_ext.preflight.results import Purpose

_ROLES = {"weight": "weights", "optimizer": "optimizer", "accumulator": "accumulator"}
_LEAST_VOCABULARY = 4096


class Purposes:
    """Tells what buffers are for, by their shapes and by the layers that write them.

    Args:
        layouts: Where each variable of the model is.
        mesh: Size of each axis of the mesh, by its name; empty where the model is not sharded.
        devices: Number of devices.
    """

    def __init__(self, layouts: Sequence[VariableLayout], mesh: Mapping[str, int], devices: int) -> None:
        weights = [row for row in layouts if row.role == "weight" and len(row.shape) > 1]
        self._whole = {_dimensions(row.shape) for row in weights}
        self._parts = {_dimensions(_shape_of_part(row, mesh)) for row in weights}
        words = {row.shape[0] for row in weights if row.path.endswith("embeddings")}
        self._words = {size // part for size in words for part in range(1, devices + 1) if not size % part}

    def of(self, buffer: LiveBuffer, origin: Origin, module: Module) -> Purpose:
        """Return what a buffer is for."""
        shape = _dimensions(buffer.shape.dimensions)
        if origin.layer == "(optimizer)":
            return "update"
        if shape in self._whole | self._parts:
            if is_collective(buffer.instruction):
                gathers = kind_of(collective_in(buffer.instruction, module)) == "all-gather"
                return "gathered weight" if gathers else "gradient"
            return "gradient" if origin.backward else "gathered weight"
        if origin.layer == "(loss)" or any(size in self._words and size >= _LEAST_VOCABULARY for size in shape):
            return "logits"
        return "activation"


def bytes_by_role(
    layouts: Iterable[VariableLayout],
    arguments: int | None = None,
    temporaries: int | None = None,
    gradients: int = 0,
) -> dict[str, int]:
    """Return the bytes on a device by what they are for.

    Args:
        layouts: Where each variable of the model is.
        arguments: Bytes of the variables and the batch; `None` if the compiler does not say.
        temporaries: Bytes of what a step makes and lets go of; `None` if the compiler does not say.
        gradients: Bytes of gradients among them.
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
    return found


def cure_for(purpose: Purpose, mesh: Mapping[str, int], devices: int) -> str:
    """Return what makes a buffer smaller, in words that can be typed; empty if nothing simple does."""
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


def _shape_of_part(row: VariableLayout, mesh: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size // mesh.get(axis, 1) if axis else size for size, axis in zip(row.shape, row.spec, strict=True))


def _dimensions(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the dimensions in an order of their own: the compiler has its own."""
    return tuple(sorted(size for size in shape if size > 1))
