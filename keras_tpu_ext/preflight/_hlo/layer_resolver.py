"""The layer that an HLO instruction comes from, by the name stack that the framework gave it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from keras_tpu_ext.preflight._hlo.collectives import is_collective
from keras_tpu_ext.preflight._hlo.module import Instruction, Module
from keras_tpu_ext.preflight._hlo.shape import Shape

_TOKENS = re.compile(r"[^/()]+|[()]")
_NUMBER = re.compile(r"_\d+$")
_FUNCTIONS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
OTHER = "(other)"


class Origin(NamedTuple):
    """The part of a train step that an instruction comes from."""

    layer: str  # path of the layer, such as `"block/conv1"`; or `"(loss)"`, `"(optimizer)"`, `"(other)"`
    backward: bool = False  # whether it is in the backward pass


class Part(NamedTuple):
    """An instruction, or one of the arrays of a collective."""

    origin: Origin  # the part of a train step that the array comes from
    shape: Shape  # its shape on a device
    fraction: float  # its fraction of the instruction's bytes


class LayerResolver:
    """Resolves instructions to layers, by the names in a `LoweredStep`."""

    def __init__(self, layers: tuple[str, ...], roles: Mapping[str, str], arguments: Mapping[str, str]) -> None:
        self._layers = frozenset(layers)
        self._roles = dict(roles)
        self._arguments = arguments

    def resolve(self, instruction: Instruction, module: Module) -> Origin:
        """Return the origin of an instruction; for a fusion without a name, the most frequent one in it."""
        if instruction.op_name:
            origin = self.resolve_name(instruction.op_name)
            if origin.layer != OTHER:
                return origin
        names = [one.op_name for one in module.called_instructions(instruction) if one.op_name]
        known = [
            origin for origin, _ in Counter(map(self.resolve_name, names)).most_common() if origin.layer != OTHER
        ]
        if known:
            return known[0]
        # A copy has no name: it uses its operand's.
        operands = [module.entry.by_name[name] for name in instruction.operands if name in module.entry.by_name]
        return next((self.resolve_name(one.op_name) for one in operands if one.op_name), Origin(OTHER))

    def resolve_parts(self, instruction: Instruction, module: Module) -> list[Part]:
        """Return an instruction's parts: one, but for a collective that combines arrays of many layers."""
        whole = self.resolve(instruction, module)
        if not is_collective(instruction) or instruction.opcode == "fusion":
            return [Part(whole, instruction.shape, 1.0)]
        operands = (module.entry.by_name.get(name) for name in instruction.operands)
        arrays = [(one, one.shape) for one in operands if one is not None and not one.shape.tuple_shapes]
        total = sum(shape.bytes for _, shape in arrays)
        if len(arrays) < 2 or not total:
            return [Part(whole, instruction.shape, 1.0)]
        origins = [self.resolve(one, module) for one, _ in arrays]
        return [
            Part(whole if origin.layer == OTHER else origin, shape, shape.bytes / total)
            for origin, (_, shape) in zip(origins, arrays, strict=True)
        ]

    def resolve_name(self, op_name: str) -> Origin:
        """Return the origin of instructions with this `op_name`."""
        tokens = _TOKENS.findall(self._arguments.get(op_name, op_name))
        scopes = [token for i, token in enumerate(tokens) if not _is_function(tokens, i)]
        # The last token is an operation, such as `add`, which may be the name of a layer too.
        is_operation = len(tokens) > 1 and tokens[-1] != ")"
        names = [self._layer_name(scope) for scope in (scopes[:-1] if is_operation else scopes)]
        path = [name for i, name in enumerate(names) if name and name not in names[:i]]
        role = next((self._roles[scope] for scope in scopes if scope in self._roles), OTHER)
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
