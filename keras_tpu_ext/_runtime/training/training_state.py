"""Check that saved variables are those of a model."""

from __future__ import annotations

from collections.abc import Sequence

from keras_tpu_ext._runtime.common.protocols import SavedVariable
from keras_tpu_ext._runtime.common.types import Variable
from keras_tpu_ext._runtime.compat import path_of
from keras_tpu_ext.errors import CheckpointError

_ROLES = {
    "weight": "weights",
    "optimizer": "variables of its optimizer",
    "metric": "variables of its metrics",
    "step": "variables of its loss scale and of its accumulated gradients",
    "random": "random generators",
}


def check_same(saved: Sequence[SavedVariable], variables: Sequence[tuple[str, Variable]]) -> None:
    """Check that `saved` are values of `variables`, in their order.

    Args:
        saved: The values.
        variables: The role of each variable, and the variable.

    Raises:
        CheckpointError: If they are not; the message names the first difference.
    """
    for role, words in _ROLES.items():
        were = [one for one in saved if one.role == role]
        are = [variable for its_role, variable in variables if its_role == role]
        if len(were) != len(are):
            raise CheckpointError(f"it has {len(were)} {words}, and this model has {len(are)}")
        for one, variable in zip(were, are, strict=True):
            shape = one.value.shape[1:] if one.per_replica else one.value.shape
            if tuple(shape) != tuple(variable.shape):
                raise CheckpointError(
                    f"its {one.path} has the shape {tuple(shape)}, where this model has {path_of(variable)} of the "
                    f"shape {tuple(variable.shape)}"
                )
