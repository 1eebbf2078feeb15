"""From the names that a framework gives to operations back to the layers of a model."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from keras_tpu_ext.preflight._hlo.module import Instruction, Module

_WORDS = re.compile(r"[^/()]+|[()]")
_NUMBER = re.compile(r"_\d+$")
_FUNCTIONS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
OTHER = "(other)"


class Origin(NamedTuple):
    """Where an operation comes from.

    Attributes:
        layer: The names of the layer and of those around it, with `/` between; or `"(loss)"`, `"(optimizer)"`,
            `"(other)"`.
        backward: Whether it is of the backward pass.
    """

    layer: str
    backward: bool = False


class Origins:
    """Finds the layer of an operation.

    Args:
        layers: The names of the model's layers.
        roles: What other names stand for, such as `{"sgd": "(optimizer)"}`.
        arguments: What the arguments hold, by the names that they have in a module.
    """

    def __init__(self, layers: tuple[str, ...], roles: Mapping[str, str], arguments: Mapping[str, str]) -> None:
        self._layers = frozenset(layers)
        self._roles = dict(roles)
        self._arguments = arguments

    def of(self, instruction: Instruction, module: Module) -> Origin:
        """Return where an instruction comes from; a fusion without a name belongs where most in it does."""
        if instruction.op_name:
            origin = self.of_name(instruction.op_name)
            if origin.layer != OTHER:
                return origin
        inner = Counter(self.of_name(one.op_name) for one in module.inside(instruction) if one.op_name)
        known = [origin for origin, _ in inner.most_common() if origin.layer != OTHER]
        if known:
            return known[0]
        # A copy has no name; it belongs where what it copies does.
        read = [module.entry.by_name[name] for name in instruction.operands if name in module.entry.by_name]
        return next((self.of_name(one.op_name) for one in read if one.op_name), Origin(OTHER))

    def of_name(self, op_name: str) -> Origin:
        """Return where an operation of this name comes from."""
        words = _WORDS.findall(self._arguments.get(op_name, op_name))
        scopes = [word for i, word in enumerate(words) if not _is_function(words, i)]
        # The last word is what is done there, such as `add`, which may be the name of a layer too.
        is_operation = len(words) > 1 and words[-1] != ")"
        names = [self._layer(scope) for scope in (scopes[:-1] if is_operation else scopes)]
        found = [name for i, name in enumerate(names) if name and name not in names[:i]]
        role = next((self._roles[scope] for scope in scopes if scope in self._roles), OTHER)
        return Origin("/".join(found) or role, _is_backward(words))

    def _layer(self, scope: str) -> str:
        """Return the layer that a scope stands for, `dense_1` being TensorFlow's second `dense`; empty for none."""
        if scope in self._layers:
            return scope
        shorter = _NUMBER.sub("", scope)
        return shorter if shorter in self._layers else ""


def _is_function(words: list[str], i: int) -> bool:
    """Return whether a word is what JAX does to a function, or the name of a function that it compiles."""
    return words[i + 1 : i + 2] == ["("] or (words[i - 1] == "(" and words[i - 2] in _FUNCTIONS)


def _is_backward(words: list[str]) -> bool:
    """Return whether JAX or TensorFlow says so; an operation and a layer may be called `transpose` too."""
    transposes = any(pair == ("transpose", "(") for pair in itertools.pairwise(words))
    return transposes or "gradient_tape" in words
