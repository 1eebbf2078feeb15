"""The work of the vector units: additions, comparisons and the like, on one number at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

from keras_tpu_ext.preflight._hlo.module import Computation, Instruction, Module

# Operations of the units on each number, roughly: XLA expands the others into these. A random word is Threefry's 20
# rounds for two words, and the words of the key: of a hardware's generator less is not known.
OPERATIONS = {
    **dict.fromkeys(
        "add subtract multiply maximum minimum negate abs compare select and or not xor clamp convert reduce "  # noqa: SIM905
        "shift-left shift-right-logical shift-right-arithmetic floor ceil sign is-finite popcnt".split(),
        1,
    ),
    **dict.fromkeys("exponential rsqrt sqrt logistic tanh".split(), 4),  # noqa: SIM905
    **dict.fromkeys("divide log exponential-minus-one log-plus-one cbrt remainder".split(), 8),  # noqa: SIM905
    **dict.fromkeys("power erf sine cosine tan atan2".split(), 20),  # noqa: SIM905
    "rng-bit-generator": 36,
}
# Those that make random bits; each xor and shift goes with an addition or a product.
_OF_RANDOM_BITS = {"rng-bit-generator": 36, "xor": 2, "shift-left": 2, "shift-right-logical": 2}


class VectorWork(NamedTuple):
    """Operations on numbers of 32 bits, in one run of an instruction."""

    operations: float
    random: float  # those of them that make random bits, as far as they can be told


def vector_work(instruction: Instruction, computation: Computation, module: Module) -> VectorWork:
    """Return the work of an instruction of a computation, or of what it calls if it is a fusion."""
    inner = [(computation, instruction)]
    if instruction.opcode == "fusion":
        inner = [(called, one) for called in module.called_computations(instruction) for one in called.instructions]
    operations = random = 0
    for called, one in inner:
        shapes = called.operand_shapes(one) if one.opcode == "reduce" else [one.shape]
        numbers = sum(math.prod(leaf.dimensions) for shape in shapes for leaf in shape.leaves())
        operations += OPERATIONS.get(one.opcode, 0) * numbers
        random += _OF_RANDOM_BITS.get(one.opcode, 0) * numbers
    return VectorWork(operations, min(random, operations))
