"""The layer that an operation comes from, by the name stack that the framework gave it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

_TOKENS = re.compile(r"[^/()]+|[()]")
_NUMBER = re.compile(r"_\d+$")
_FUNCTIONS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
OTHER = "(other)"


class Origin(NamedTuple):
    """The part of a train step that an operation comes from."""

    layer: str  # path of the layer, such as `"block/conv1"`; or `"(loss)"`, `"(optimizer)"`, `"(other)"`
    backward: bool = False  # whether it is in the backward pass


class LayerNames:
    """Finds layers in the names of operations."""

    def __init__(
        self, layers: tuple[str, ...], roles: Mapping[str, str], arguments: Mapping[str, str] | None = None
    ) -> None:
        """Take what a `LoweredStep` knows: the names of layers, of other parts, and of the program's arguments."""
        self._layers = frozenset(layers)
        self._roles = dict(roles)
        self._arguments = arguments or {}

    def resolve_name(self, op_name: str) -> Origin:
        """Return the origin of operations with this `op_name`."""
        tokens = _TOKENS.findall(self._arguments.get(op_name, op_name))
        scopes = [token for i, token in enumerate(tokens) if not _is_function(tokens, i)]
        # The last token is an operation, such as `add`, which may be the name of a layer too.
        is_operation = len(tokens) > 1 and tokens[-1] != ")"
        names = [self._layer_name(scope) for scope in (scopes[:-1] if is_operation else scopes)]
        path = [name for i, name in enumerate(names) if name and name not in names[:i]]
        parts = (scope if scope in self._roles else _NUMBER.sub("", scope) for scope in scopes)
        role = next((self._roles[part] for part in parts if part in self._roles), OTHER)
        return Origin("/".join(path) or role, _is_backward(tokens))

    def _layer_name(self, scope: str) -> str:
        """Return the layer of a scope, `"dense"` for TensorFlow's second scope `"dense_1"`; empty if it is none."""
        if scope in self._layers:
            return scope
        shorter = _NUMBER.sub("", scope)
        return shorter if shorter in self._layers else ""


def _is_function(tokens: list[str], i: int) -> bool:
    """Return whether a token is a JAX transformation, or the name of a function under `jit`."""
    return tokens[i + 1 : i + 2] == ["("] or (tokens[i - 1] == "(" and tokens[i - 2] in _FUNCTIONS)


def _is_backward(tokens: list[str]) -> bool:
    """Return whether JAX or TensorFlow marks the backward pass; `transpose` is also an operation."""
    transposes = any(pair == ("transpose", "(") for pair in itertools.pairwise(tokens))
    return transposes or "gradient_tape" in tokens
