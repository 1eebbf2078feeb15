"""The work of the vector units: additions, comparisons and the like, on one number at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

from keras_tpu_ext.preflight._hlo.module import Instruction, Module

# Operations of the units, roughly: XLA expands the others into these.
_OPERATIONS = {
    **dict.fromkeys(
        "add subtract multiply maximum minimum negate abs compare select and or not xor clamp convert "  # noqa: SIM905
        "shift-left shift-right-logical shift-right-arithmetic floor ceil sign is-finite popcnt".split(),
        1,
    ),
    **dict.fromkeys("exponential rsqrt sqrt logistic tanh".split(), 4),  # noqa: SIM905
    **dict.fromkeys("divide log exponential-minus-one log-plus-one cbrt remainder".split(), 8),  # noqa: SIM905
    **dict.fromkeys("power erf sine cosine tan atan2".split(), 20),  # noqa: SIM905
}
# Threefry's 20 rounds for two words, and the words of the key. Of a hardware's generator less is not known.
_RANDOM_WORD = 36
_RANDOM = "rng-bit-generator"
_OF_RANDOM_BITS = frozenset("xor shift-left shift-right-logical".split())  # noqa: SIM905


class VectorWork(NamedTuple):
    """Operations on numbers of 32 bits, in one run of an instruction."""

    operations: float
    random: float  # those of them that make random bits, as far as they can be told


def vector_work(instruction: Instruction, module: Module) -> VectorWork:
    """Return the work of an instruction, or of what it calls if it is a fusion."""
    inner = list(module.called_instructions(instruction)) if instruction.opcode == "fusion" else [instruction]
    operations = random = 0.0
    for one in inner:
        numbers = sum(math.prod(leaf.dimensions) for leaf in one.shape.leaves())
        if one.opcode == _RANDOM:
            operations += _RANDOM_WORD * numbers
            random += _RANDOM_WORD * numbers
        elif one.opcode == "reduce" or one.opcode in _OPERATIONS:
            operations += _OPERATIONS.get(one.opcode, 1) * numbers
        if one.opcode in _OF_RANDOM_BITS:
            random += 2 * numbers  # each goes with an addition or a product
    return VectorWork(operations, min(random, operations))
