"""The state of a training run on JAX."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_ext._runtime.common.types import Array, Model, Variable
from keras_tpu_ext._runtime.common.values import SavedVariable
from keras_tpu_ext._runtime.compat.keras3 import path_of
from keras_tpu_ext._runtime.jax.process_group import has_shards_elsewhere
from keras_tpu_ext._runtime.keras3.data_adapter import reading_batches as _reading_batches
from keras_tpu_ext._runtime.keras3.models import not_kept as not_kept
from keras_tpu_ext._runtime.keras3.models import variables_of
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext._runtime.training.training_state import check_same


def all_variables(model: Model) -> list[tuple[str, Variable]]:
    """Return each variable of `model` that training changes and its role; a watch's are those of one `fit`."""
    state = step_state_of(model)
    return variables_of(model) + [("step", variable) for variable in ([] if state is None else state.own_variables())]


def read(model: Model, *, on_host: bool) -> list[SavedVariable]:
    """Return the value of each variable of `model` that training changes; `on_host` copies them there at once."""
    model.jax_state_sync()  # while `fit` runs, the values are in its own state
    variables = all_variables(model)
    with model._kte.process_group().reading_shards():
        values = _values([variable for _, variable in variables], on_host=on_host)
    return [
        SavedVariable(role, path_of(variable), value)
        for (role, variable), value in zip(variables, values, strict=True)
    ]


def assign(model: Model, saved: Sequence[SavedVariable]) -> None:
    """Assign values that `read` returned to the variables of `model`."""
    with model._kte.own_scope():
        model._kte.build_optimizer()
        model._kte.build_accumulator()
        variables = all_variables(model)
        check_same(saved, variables)
        for one, (_, variable) in zip(saved, variables, strict=True):
            variable.assign(one.value.sum(axis=0) if one.per_replica else one.value)


def all_gather_int(model: Model, number: int) -> list[int]:
    """Return the numbers that all processes training `model` pass to this call, in the same order on each."""
    return list(model._kte.process_group().all_gather_int(number))


@contextlib.contextmanager
def reading_batches(call: FitCall, first_epoch: int | None, seed: int | None) -> Iterator[ResumablePasses]:
    """Within the block, `fit` reads its batches so that it can start in the middle of the data; it needs no seed."""
    spans_epochs = call.arguments.get("steps_per_epoch") is not None
    data = ResumablePasses(reads_ahead=False, spans_epochs=spans_epochs)
    with _reading_batches(call, data, first_epoch):
        yield data


def _values(variables: Sequence[Variable], *, on_host: bool) -> list[Array]:
    """Return copies of variables: on their devices if those have room, so that no step has to wait.

    The variables' memory is donated to the next step, so they have to be copied before it.
    """
    values: list[Any] = [variable.value for variable in variables]
    by_devices: dict[frozenset[jax.Device], list[int]] = {}
    for number, variable in enumerate(variables):
        array = values[number]
        if has_shards_elsewhere(variable):
            values[number] = np.asarray(variable)  # all processes read it together
            continue
        if array.is_fully_replicated and array.sharding.num_devices > 1:
            values[number] = array = array.addressable_data(0)
        by_devices.setdefault(frozenset(array.sharding.device_set), []).append(number)
    for devices, numbers in by_devices.items():
        arrays = [values[one] for one in numbers]
        copies = _copies_on_host(arrays) if on_host else _copies(arrays, devices)
        for number, copy in zip(numbers, copies, strict=True):
            values[number] = copy
    return values


def _copies(arrays: list[jax.Array], devices: frozenset[jax.Device]) -> Sequence[Array]:
    if _have_room(arrays, devices):
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # free memory is too fragmented
            return _copy(arrays)
    return _copies_on_host(arrays)


def _copies_on_host(arrays: list[jax.Array]) -> list[np.ndarray]:
    for array in arrays:
        array.copy_to_host_async()
    return [np.asarray(array) for array in arrays]


@jax.jit
def _copy(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]


def _have_room(arrays: Sequence[jax.Array], devices: frozenset[jax.Device]) -> bool:
    """Return whether copies take at most half of what their devices had free in all steps before the first copy."""
    shards = ((array.sharding.shard_shape(array.shape), array.dtype.itemsize) for array in arrays)
    needed = sum(math.prod(shape) * itemsize for shape, itemsize in shards)
    # A CPU reports no limit, and its copies are in the memory of the host anyway.
    limited = [memory for device in devices if "bytes_limit" in (memory := device.memory_stats() or {})]
    has_room = all(2 * needed <= memory["bytes_limit"] - memory["peak_bytes_in_use"] for memory in limited)
    if has_room:
        _had_room.add((devices, needed))
    return (devices, needed) in _had_room


# Devices, and the bytes of copies for which they had room: these are part of the peak from then on.
_had_room: set[tuple[frozenset[jax.Device], int]] = set()
