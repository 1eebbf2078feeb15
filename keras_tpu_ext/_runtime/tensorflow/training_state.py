"""The state of a training run under `tf.distribute`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from keras_tpu_ext._runtime.common.types import Model, Variable
from keras_tpu_ext._runtime.common.values import SavedVariable
from keras_tpu_ext._runtime.compat import path_of
from keras_tpu_ext._runtime.tensorflow.replicas import (
    assign_to_replicas,
    is_per_replica,
    native,
    values_of_replicas,
    zeros_of_replicas,
)
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext._runtime.training.training_state import check_same
from keras_tpu_ext.errors import CheckpointError

Named: TypeAlias = "Sequence[tuple[str, Variable]]"


def read_variables(variables: Named) -> list[SavedVariable]:
    """Return the values of variables, each given with its role."""
    return [_read(role, variable) for role, variable in variables]


def assign_variables(variables: Named, saved: Sequence[SavedVariable]) -> None:
    """Assign values that `read_variables` returned to variables."""
    check_same(saved, variables)
    _check_replicas(saved, variables)
    for one, (_, variable) in zip(saved, variables, strict=True):
        value = np.asarray(one.value).astype(native(variable).dtype.as_numpy_dtype)
        of_replicas = value if one.per_replica else value[np.newaxis]
        if one.role == "random" or is_per_replica(variable):
            assign_to_replicas(variable, of_replicas)
        else:
            native(variable).assign(value.sum(axis=0) if one.per_replica else value)


def _check_replicas(saved: Sequence[SavedVariable], variables: Named) -> None:
    for one, (role, variable) in zip(saved, variables, strict=True):
        were, are = len(one.value) if one.per_replica else 1, len(zeros_of_replicas(variable))
        if role == "random" and were != are:
            raise CheckpointError(
                f"its layers drew random numbers on {were} replicas, each its own, and here are {are}. Go on with "
                f"strategy_scope(replicas={were})"
            )


def all_gather_int(model: Model, number: int) -> list[int]:
    """Return the number alone: one process trains."""
    return [number]


def variables_of_step(model: Model) -> list[tuple[str, Variable]]:
    """Return the variables of the loss scale and the accumulated gradients, with their role."""
    state = step_state_of(model)
    return [] if state is None else [("step", variable) for variable in state.own_variables()]


def _read(role: str, variable: Variable) -> SavedVariable:
    if role == "random" or is_per_replica(variable):  # replicas draw from Keras 2's generators independently
        return SavedVariable(role, path_of(variable), values_of_replicas(variable), True)
    value: Variable = native(variable)
    return SavedVariable(role, path_of(variable), np.array(value.numpy()))
