"""How many floating-point operations a training step takes for one example, and why that may be unknown.

Counted are "model FLOPs": the matrix products and convolutions of the forward and the backward pass, two for each
multiply-add, and nothing that is computed a second time to save memory (rematerialisation). Source: Chowdhery et al.,
PaLM: Scaling Language Modeling with Pathways, 2022, appendix B, https://arxiv.org/abs/2204.02311.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class FlopsCount(NamedTuple):
    """FLOPs of a training step.

    Attributes:
        per_sample: FLOPs for one example, forward and backward pass.
        batch_size: Number of examples in the batch of which they were counted, over all replicas.
    """

    per_sample: float
    batch_size: int


LOOP = "it has a loop with products in it, and how often that turns is not known before it runs"


class UncountableError(Exception):
    """FLOPs cannot be counted; the text is what follows on "because"."""


def flops_of_sizes(*sizes: int | None) -> float:
    """Return two FLOPs for each multiply-add, of which there are as many as the product of `sizes`.

    Raises:
        UncountableError: If a size is not known.
    """
    if None in sizes:
        raise UncountableError(
            "its batches have dimensions of unknown size beside the number of examples, such as texts of any length"
        )
    return 2.0 * math.prod(size for size in sizes if size is not None)


def flops_of_einsum(equation: str, shapes: Sequence[Sequence[int | None]]) -> float:
    """Return the FLOPs of an Einstein sum of two tensors; of one there is none.

    Args:
        equation: Such as `"abc,cd->abd"`; `...` stands for dimensions that are broadcast.
        shapes: The tensors' shapes.

    Raises:
        UncountableError: If a size is not known.
    """
    if len(shapes) != 2:
        return 0.0
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int | None] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in zip(_labels(term, len(shape)), shape, strict=True):
            if sizes.get(label) in (None, 1):  # a size of one is broadcast
                sizes[label] = size
    return flops_of_sizes(*sizes.values())


def _labels(term: str, rank: int) -> list[str]:
    """Return a label for each dimension; those of `...` are numbered from the last one on."""
    before, dots, after = term.partition("...")
    between = rank - len(before) - len(after) if dots else 0
    return [*before, *[f"...{i}" for i in reversed(range(between))], *after]
