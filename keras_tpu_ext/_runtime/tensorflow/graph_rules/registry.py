"""The rules for where the batch axis goes, by the type of TensorFlow's operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from keras_tpu_ext._runtime.common.batch_axis import Value
from keras_tpu_ext._runtime.tensorflow.graph_axis import Step

Result = Value | Sequence[Value]
RULES: dict[str, Callable[[Step], Result]] = {}

_Rule = TypeVar("_Rule", bound=Callable[[Step], Result])


def rule(*kinds: str) -> Callable[[_Rule], _Rule]:
    """Register a function as the rule of some types of operations."""

    def keep(function: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return keep
