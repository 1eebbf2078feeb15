"""How many cycles a Pallas kernel takes, by the instructions that the TPU compiler has made of it.

A TPU runs one bundle of instructions a cycle, and the compiler's text has them all, with the delays between them. It
does not have how often a bundle runs that stands behind a condition; see `Visits`.

The text has a line for each bundle, with its address, a label such as that of a loop's first one, and its
instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(?P<label>LH|LB|LE|PB|PF|CT)?\s*:[ >]*\{(?P<instructions>.*)")
_LOOP_BODY = "LB"
_ROUNDS = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+) /\* loop exit test")
_BRANCH = re.compile(r"sbr\.rel \(!?%\w+\) target = \$region(\d+)")
_REGION = re.compile(r"region (\d+)\b")
_PRODUCT = "vmatmul"


class Visits(NamedTuple):
    """How often the conditions of a kernel hold, as fractions of all its programs."""

    products: float = 1.0  # whether a block is not masked
    others: float = 1.0  # whether a block is the first or the last of a row


class KernelCycles(NamedTuple):
    """The cycles of a kernel, if its conditions always hold."""

    always: float  # of what no condition skips
    products: float  # of products that a condition may skip
    others: float  # of anything else that one may skip

    def at(self, visits: Visits) -> float:
        """Return the cycles."""
        return self.always + visits.products * self.products + visits.others * self.others


class _Loop:
    """Bundles that run again and again."""

    rounds: int | None = None


class _Region:
    """Bundles that may be skipped."""

    def __init__(self, number: str) -> None:
        self.number, self.has_products, self.has_inner_products = number, False, False


def cycles_of(text: str) -> KernelCycles | None:
    """Return the cycles of a kernel; `None` if the text has none, or does not say how often a loop runs."""
    bundles = list(_nested(text))
    found = dict.fromkeys(KernelCycles._fields, 0.0)
    for loops, regions in bundles:
        cycles = 1.0
        for loop in loops:
            if loop.rounds is None:
                return None
            cycles *= loop.rounds
        # What is around other products is skipped only before the first program and after the last.
        region = next((one for one in reversed(regions) if not one.has_inner_products), None)
        found["always" if region is None else "products" if region.has_products else "others"] += cycles
    return KernelCycles(**found) if bundles else None


def _nested(text: str) -> Iterator[tuple[tuple[_Loop, ...], tuple[_Region, ...]]]:
    """Yield for each bundle the loops and the regions that it is in; what these are like is known at the end."""
    loops: list[_Loop] = []
    regions: list[_Region] = []
    for label, instructions in _bundles(text):
        if label == _LOOP_BODY:
            loops.append(_Loop())
        ended = set(_REGION.findall(instructions)) if regions else set()
        while ended & {region.number for region in regions}:
            regions.pop()
        if _PRODUCT in instructions:
            for i, region in enumerate(regions, 1):
                region.has_products = True
                region.has_inner_products |= i < len(regions)
        yield tuple(loops), tuple(regions)
        if loops and (rounds := _ROUNDS.search(instructions)) is not None:
            loops[-1].rounds = int(rounds[1])
        if (branch := _BRANCH.search(instructions)) is None:
            continue
        if loops and loops[-1].rounds is not None:  # after the test, back to the beginning
            loops.pop()
        else:
            regions.append(_Region(branch[1]))


def _bundles(text: str) -> Iterator[tuple[str, str]]:
    """Yield the label of each bundle, and its instructions, which may take several lines."""
    label, instructions = "", ""
    for line in text.splitlines():
        if (found := _BUNDLE.match(line)) is None:
            instructions += line if instructions else ""
            continue
        if instructions:
            yield label, instructions
        label, instructions = found["label"] or "", found["instructions"]
    if instructions:
        yield label, instructions
