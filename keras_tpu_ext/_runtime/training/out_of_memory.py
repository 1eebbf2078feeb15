"""Explain in one text that a device has too little memory for a model in a scope, and what to write next."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from keras_tpu_ext._runtime.common.layouts import ModelLayout
from keras_tpu_ext._runtime.common.out_of_memory import OutOfMemory, read_out_of_memory
from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext._runtime.common.values import DeviceUse
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.protocols import Devices
from keras_tpu_ext.errors import DeviceMemoryError
from keras_tpu_ext.output.display import memory_size

_LARGEST = 3
_PLURAL = {"weight": "weights", "optimizer": "optimizer state", "accumulator": "accumulated gradients"}


@contextlib.contextmanager
def explained_out_of_memory(call: FitCall, model: Model, devices: Devices, *, can_shard: bool) -> Iterator[None]:
    """Say what filled the memory, if the block fails for lack of it.

    Raises:
        DeviceMemoryError: In place of the error, whose class it has, too: `except` clauses for that still work.
    """
    try:
        yield
    except Exception as error:
        explained = None
        found = None if isinstance(error, DeviceMemoryError) else read_out_of_memory(str(error))
        if found is not None and found.is_certain:
            with contextlib.suppress(Exception):  # the explanation must not hide the error
                text = _text(found, call, devices.layout(model), devices.memory_reader(model)(), can_shard=can_shard)
                explained = _in_the_class_of(error, text)
        if explained is None:
            raise
        raise explained from error


def _in_the_class_of(error: Exception, text: str) -> Exception:
    kind = type(error)
    methods: dict[str, Any] = {"__init__": Exception.__init__, "__str__": Exception.__str__, "__module__": __name__}
    lines = [line.strip() for line in str(error).splitlines() if re.search("RESOURCE_EXHAUSTED|memory|OOM", line)]
    text = f"{text}\nThe error was {kind.__name__}: {lines[0][:300]}"
    both: Exception = type("DeviceMemoryError", (DeviceMemoryError, kind), methods)(text)
    both.__dict__.update(error.__dict__)  # such as the `op` of TensorFlow's errors
    return both


def _text(
    found: OutOfMemory, call: FitCall, layout: ModelLayout, uses: Sequence[DeviceUse], *, can_shard: bool
) -> str:
    limit = found.limit or min((use.limit for use in uses if use.limit), default=None)
    there = "" if found.free is None else f", and {memory_size(found.free)} were free"
    asked = found.shape or "more"
    if found.asked is not None:
        asked = f"{memory_size(found.asked)}{' for the whole program' if found.is_program else ' for one buffer'}"
    limit_text = "it does not say how much it has" if limit is None else f"it has {memory_size(limit)}"
    lines = [f"{call.method} ran out of memory on a device: it needed {asked}, and {limit_text}{there}."]
    if found.code:
        lines[0] += f" OpenXLA's {found.code}: https://openxla.org/xla/errors/error_{found.code[1:]}"
    fills = _by_role(layout)
    lines += ["What fills it, on each device: " + ", ".join(f"{name} {memory_size(size)}" for name, size in fills)]
    rest = found.parts.get("arguments", 0) - sum(size for _, size in fills)
    if found.parts:
        parts = [("batch and other arguments", rest)] if rest > 0 else []
        parts += [("temporaries and program", found.parts["program"])] if "program" in found.parts else []
        lines[-1] += ", " + ", ".join(f"{name} {memory_size(size)}" for name, size in parts)
    else:
        lines[-1] += "; the rest is the batch and temporaries, which this error does not tell"
    lines += ["The largest: " + ", ".join(_largest(found, layout))]
    return "\n".join([*lines, "Write next: " + _cures(call, fills, limit, can_shard=can_shard)])


def _by_role(layout: ModelLayout) -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for one in layout.variables:
        name = _PLURAL.get(one.role, "metrics and other state")
        found[name] = found.get(name, 0) + one.bytes_per_device
    return list(found.items())


def _largest(found: OutOfMemory, layout: ModelLayout) -> list[str]:
    """Return the largest buffers that the compiler lists, else the largest variables."""
    if found.buffers:
        return [f"{name or 'a buffer'} {memory_size(size)}" for size, name in found.buffers[:_LARGEST]]
    ordered = sorted(layout.variables, key=lambda one: -one.bytes_per_device)
    return [f"{one.path} {one.shape} {memory_size(one.bytes_per_device)}" for one in ordered[:_LARGEST]]


def _cures(call: FitCall, fills: Sequence[tuple[str, int]], limit: float | None, *, can_shard: bool) -> str:
    batch = call.arguments.get("batch_size")
    half = f"batch_size={max(1, batch // 2)} in place of {batch}" if isinstance(batch, int) else "half the batch size"
    if call.method != "fit":
        return half
    cures = [f"{half}, and compile(..., gradient_accumulation_steps=2) for the same steps"]
    if can_shard:
        cures += ['kte.layers.remat(model, policy="nothing_saveable") before compile']
        shard = 'kte.strategy_scope(shard="fsdp"), where each of several devices has a part of the weights'
        is_mostly_model = limit is not None and sum(size for _, size in fills) > limit / 2
        cures = [shard, *cures] if is_mostly_model else [*cures, shard]
    cures += ["kte.preflight(model, batch), which tells each layer's memory without a device"]
    return "; or ".join(cures)
