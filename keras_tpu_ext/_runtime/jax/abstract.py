"""Models whose variables have shapes and dtypes but no values, so that a model of any size can be built anywhere."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Tensor, Variable
from keras_tpu_ext._runtime.common.values import OpenedStrategy

_get_global: Any = private("keras.src.backend.common.global_state:get_global_attribute")
_set_global: Any = private("keras.src.backend.common.global_state:set_global_attribute")

_T = TypeVar("_T")


def call_abstractly(function: Callable[[], _T]) -> _T:
    """Call a function; variables of the models that it creates have no values. See `training/protocols.py`."""
    uids = dict(_get_global("object_name_uids") or {})
    try:
        with abstract_variables():
            return function()
    finally:  # what the user builds afterwards gets the same names
        found = _get_global("object_name_uids")
        if found is not None:
            found.clear()
            found.update(uids)


def abstract_strategy(devices: int) -> OpenedStrategy:
    """Return a distribution over devices that do not exist."""
    names = np.array([f"tpu:{i}" for i in range(devices)])
    mesh = keras.distribution.DeviceMesh((devices,), ["batch"], names)
    return OpenedStrategy(keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False), devices)


def is_abstract(model: keras.Model) -> bool:
    """Return whether the variables of a model have no values."""
    return any(variable._value is None for variable in model.variables)


@contextlib.contextmanager
def abstract_variables() -> Iterator[None]:
    """Within the block, a variable created from an initializer has a shape but no value, for good."""
    waiting = len(_get_global("uninitialized_variables") or ())
    try:
        with _NoValues(), patched([(keras.Variable, "keras.Variable.__init__", _with_value_if_given)]):
            yield
    finally:  # so that Keras never gives them values
        del (_get_global("uninitialized_variables") or [])[waiting:]


class _NoValues(keras.StatelessScope):
    """A scope in which variables without a value are not given one."""

    def __init__(self) -> None:
        super().__init__(initialize_variables=False)

    def add_update(self, update: tuple[Variable, Tensor]) -> None:
        if update[0]._value is not None:
            super().add_update(update)


def _with_value_if_given(original: Callable[..., None]) -> Callable[..., None]:
    """Let a variable created from a value have it, which Keras allows only outside stateless scopes."""

    @functools.wraps(original)
    def init(variable: Variable, initializer: object, *args: object, **kwargs: object) -> None:
        scope = _get_global("stateless_scope")
        if callable(initializer) or isinstance(initializer, str) or not isinstance(scope, _NoValues):
            original(variable, initializer, *args, **kwargs)
            return
        _set_global("stateless_scope", None)
        try:
            original(variable, initializer, *args, **kwargs)
        finally:
            _set_global("stateless_scope", scope)

    return init
