"""The number of iterations of loops in a compiled module."""

from __future__ import annotations

import re

from keras_tpu_ext.preflight._hlo.module import Computation, Instruction, Module

_WHOLE = re.compile(r"-?\d+")
_SAME_VALUE = ("copy", "bitcast", "convert", "reshape")


def trip_count(loop: Instruction, computation: Computation, module: Module) -> int | None:
    """Return the number of iterations of a loop in a computation; `None` if the module does not say."""
    if loop.trip_count is not None:
        return loop.trip_count
    # The compiler states no count for loops that hide a collective behind the parts of a matrix product.
    condition, body = (module.computations[loop.called_computations[role]] for role in ("condition", "body"))
    compared = condition.root
    if compared.opcode != "compare" or "direction=LT" not in compared.attributes or len(compared.operands) != 2:
        return None
    counter, limit = _element(compared.operands[0], condition), _constant(compared.operands[1], condition)
    first = _constant_in(loop.operands[0], counter, computation)
    step = _step(body, counter)
    if limit is None or first is None or not step or step < 0:
        return None
    return max(-(-(limit - first) // step), 0)


def _step(body: Computation, counter: int | None) -> int | None:
    """Return the number that an iteration adds to an element of the loop's state."""
    if counter is None or body.root.opcode != "tuple" or counter >= len(body.root.operands):
        return None
    after = _origin(body.root.operands[counter], body)
    if after is None or after.opcode != "add":
        return None
    for before, added in (after.operands, after.operands[::-1]):
        if _element(before, body) == counter:
            return _constant(added, body)
    return None


def _element(name: str, computation: Computation) -> int | None:
    """Return which element of a loop's state a name stands for; `None` if it stands for something else."""
    found = _origin(name, computation)
    if found is None or found.element is None or computation.by_name[found.operands[0]].opcode != "parameter":
        return None
    return found.element


def _constant_in(name: str, element: int | None, computation: Computation) -> int | None:
    """Return the constant that is an element of a tuple; `None` if it is not a constant."""
    made = computation.by_name.get(name)
    if made is None or made.opcode != "tuple" or element is None or element >= len(made.operands):
        return None
    return _constant(made.operands[element], computation)


def _constant(name: str, computation: Computation) -> int | None:
    found = _origin(name, computation)
    if found is None or found.opcode != "constant" or not _WHOLE.fullmatch(found.literal):
        return None
    return int(found.literal)


def _origin(name: str, computation: Computation) -> Instruction | None:
    """Return the instruction that makes a value, looking through instructions that do not change it."""
    found = computation.by_name.get(name)
    while found is not None and found.opcode in _SAME_VALUE:
        found = computation.by_name.get(found.operands[0])
    return found
