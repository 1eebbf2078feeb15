"""The layer that an HLO instruction comes from, by the name stack that the framework gave it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from keras_tpu_ext._runtime.common.layer_names import OTHER, LayerNames, Origin
from keras_tpu_ext.preflight._hlo.collectives import is_collective
from keras_tpu_ext.preflight._hlo.module import Instruction, Module
from keras_tpu_ext.preflight._hlo.shape import Shape


class Part(NamedTuple):
    """An instruction, or one of the arrays of a collective."""

    origin: Origin  # the part of a train step that the array comes from
    shape: Shape  # its shape on a device
    fraction: float  # its fraction of the instruction's bytes


class LayerResolver(LayerNames):
    """Resolves instructions to layers, by the names in a `LoweredStep`."""

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
