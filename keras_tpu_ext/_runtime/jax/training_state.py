"""What a training on JAX has come to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from keras_tpu_ext._runtime.common.protocols import RunningFit, SavedVariable
from keras_tpu_ext._runtime.common.types import Model, Variable
from keras_tpu_ext._runtime.compat.keras3 import path_of
from keras_tpu_ext._runtime.jax.gather import has_shards_elsewhere
from keras_tpu_ext._runtime.jax.update import step_variables
from keras_tpu_ext._runtime.keras3.resumable_data import reading_batches as _reading_batches
from keras_tpu_ext._runtime.keras3.training_state import not_kept as not_kept
from keras_tpu_ext._runtime.keras3.training_state import variables_of
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext._runtime.training.training_state import check_same


def read(model: Model) -> list[SavedVariable]:
    """Return the value of each variable of `model` that training changes."""
    model.jax_state_sync()  # while `fit` runs, they are in its own state
    variables = _variables_of(model)
    with model._kte_process_group().reading_shards():
        for _, variable in variables:
            _start_copy(variable.value)
        return [SavedVariable(role, path_of(variable), _on_host(variable)) for role, variable in variables]


def assign(model: Model, saved: Sequence[SavedVariable]) -> None:
    """Give the variables of `model` values that `read` has returned."""
    with model._own_scope():
        model._kte_adapter.build_optimizer(model)
        model._build_accumulator()
        variables = _variables_of(model)
        check_same(saved, variables)
        for one, (_, variable) in zip(saved, variables, strict=True):
            variable.assign(one.value.sum(axis=0) if one.per_replica else one.value)


def all_gather_int(model: Model, number: int) -> list[int]:
    """Return the numbers that all processes which train `model` call this with, in the same order on each."""
    return list(model._kte_process_group().all_gather_int(number))


@contextlib.contextmanager
def reading_batches(call: RunningFit, first_epoch: int | None, seed: int | None) -> Iterator[ResumablePasses]:
    """Within the block `fit` reads its batches so that it can begin in the middle of them; it needs no seed."""
    spans_epochs = call.arguments.get("steps_per_epoch") is not None
    data = ResumablePasses(reads_ahead=False, spans_epochs=spans_epochs)
    with _reading_batches(call, data, first_epoch):
        yield data


def _variables_of(model: Model) -> list[tuple[str, Variable]]:
    state = step_state_of(model)
    return variables_of(model) + [("step", variable) for variable in ([] if state is None else step_variables(state))]


def _on_host(variable: Variable) -> np.ndarray:
    array = variable.value
    if has_shards_elsewhere(variable):
        return np.asarray(variable)
    # On a CPU it may be the memory that the next step is given.
    is_device_memory = any(device.platform == "cpu" for device in array.devices())
    return np.array(array) if is_device_memory else np.asarray(array)


def _start_copy(array: jax.Array) -> None:
    if array.is_fully_addressable:
        array.copy_to_host_async()
