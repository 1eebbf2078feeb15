"""FLOPs of a train step for one example.

"Model FLOPs" are counted: the matrix products and convolutions of the forward and the backward pass, two for each
multiply-add, without rematerialisation. Source: Chowdhery et al.,
PaLM: Scaling Language Modeling with Pathways, 2022, appendix B, https://arxiv.org/abs/2204.02311.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class FlopsCount(NamedTuple):
    """FLOPs of a train step."""

    per_sample: float  # FLOPs for one example, forward and backward pass
    batch_size: int  # number of examples in the counted batch, over all replicas


LOOP = "it has a loop with products in it, and how often that turns is not known before it runs"


class UncountableError(Exception):
    """FLOPs cannot be counted; the message is a reason that follows "because"."""


def flops_of_sizes(*sizes: int | None) -> float:
    """Return the FLOPs of a loop nest of these sizes with a multiply-add inside: two times their product."""
    if None in sizes:
        raise UncountableError(
            "its batches have dimensions of unknown size beside the number of examples, such as texts of any length"
        )
    return 2.0 * math.prod(size for size in sizes if size is not None)


def flops_of_einsum(equation: str, shapes: Sequence[Sequence[int | None]]) -> float:
    """Return the FLOPs of an einsum of two tensors; an einsum of one has none."""
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
    """Return a label for each dimension; those of `...` are numbered from the right."""
    before, dots, after = term.partition("...")
    between = rank - len(before) - len(after) if dots else 0
    return [*before, *[f"...{i}" for i in reversed(range(between))], *after]
