"""The variables that training changes, on Keras 3."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.types import Model, Variable
from keras_tpu_ext._runtime.keras3.models import optimizers_of

get_global_attribute: Any = private("keras.src.backend.common.global_state:get_global_attribute")


def variables_of(model: Model) -> list[tuple[str, Variable]]:
    """Return each variable that training changes and its role, without those of the step; each of them once."""
    # What layers without their own seed draw from, in a step that is not compiled.
    shared = get_global_attribute("global_seed_generator")
    named = [("weight", variable) for variable in model.variables]
    named += [("optimizer", variable) for optimizer in optimizers_of(model) for variable in optimizer.variables]
    named += [("metric", variable) for variable in model.metrics_variables]
    named += [] if shared is None else [("random", shared.state)]
    return list({id(variable): (role, variable) for role, variable in reversed(named)}.values())[::-1]


def not_kept(model: Model) -> str:
    """Return an empty string: all random numbers of Keras 3's layers come from variables."""
    return ""
