"""Applying gradients that are already summed over replicas with a stock Keras 3 optimizer.

Private names of Keras that this module leans on (tests/_runtime/test_private_names.py watches them):
`TFOptimizer._all_reduce_sum_gradients`, and `LossScaleOptimizer.inner_optimizer` as an instance attribute.
"""

from __future__ import annotations

import functools
from typing import Any

import keras


def without_all_reduce(optimizer: Any) -> Any:
    """Return a second face of `optimizer` that takes gradients which are already summed over replicas.

    Keras's optimizers sum over replicas inside `apply`. The face shares every bit of state with the user's
    optimizer, which itself stays as it is; only that one method does nothing. This ends when Keras lets
    `apply` be told that its gradients are reduced, as Keras 2 does (`skip_gradients_aggregation`).
    """
    optimizer_class: Any = type(optimizer)
    face: Any = object.__new__(_face_class(optimizer_class))
    object.__setattr__(face, "__dict__", optimizer.__dict__)
    return face


@functools.cache
def _face_class(optimizer_class: Any) -> Any:
    def already_summed(self: Any, grads_and_vars: Any) -> Any:
        return grads_and_vars

    def inner_optimizer(self: Any) -> Any:
        return without_all_reduce(self.__dict__["inner_optimizer"])

    members: dict[str, Any] = {"_all_reduce_sum_gradients": already_summed}
    if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):
        members["inner_optimizer"] = property(inner_optimizer)
    return type(optimizer_class.__name__, (optimizer_class,), members)
