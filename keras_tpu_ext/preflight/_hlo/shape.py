"""Shapes of HLO and what they take in a TPU's memory, where dimensions are padded to tiles.

Source of the layout's form: https://openxla.org/xla/tiled_layout
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"^(?P<dtype>[a-z]\w*)\[(?P<sizes>[^\]]*)\](?:\{(?P<layout>.*)\})?$", re.DOTALL)
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class Shape:
    """The shape of a result: that of an array, or parts for a tuple.

    Attributes:
        dtype: Such as `"bf16"`; empty for a tuple.
        sizes: The logical sizes.
        minor_to_major: The dimensions in their order in memory, the fastest first.
        tiles: The tiles of the layout, the outermost first.
        space: The number of the memory space: 0 is HBM, 1 the vector memory on the chip.
        parts: The parts of a tuple.
    """

    dtype: str = ""
    sizes: tuple[int, ...] = ()
    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = 0
    parts: tuple[Shape, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of its elements, without padding."""
        if self.parts or not self.dtype:
            return sum(part.bytes for part in self.parts)
        return math.ceil(math.prod(self.sizes) * _bits(self.dtype) / 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes that it takes in memory."""
        if self.parts or not self.dtype:
            return sum(part.padded_bytes for part in self.parts)
        return math.ceil(math.prod(self._padded()) * _bits(self.dtype) / 8)

    def arrays(self) -> Iterator[Shape]:
        """Yield the arrays in it."""
        if self.dtype:
            yield self
        for part in self.parts:
            yield from part.arrays()

    def __str__(self) -> str:
        if self.dtype:
            return f"{self.dtype}[{','.join(map(str, self.sizes))}]"
        return f"({', '.join(map(str, self.parts))})"

    def _padded(self) -> tuple[int, ...]:
        """Return the sizes in the order of memory, the slowest first, each a multiple of its tile."""
        order = self.minor_to_major or tuple(reversed(range(len(self.sizes))))
        sizes = [self.sizes[i] for i in reversed(order)]
        # A tile covers the fastest dimensions; a further tile cuts up the first one, as (2,1) packs two rows of bf16.
        for tile in self.tiles[:1]:
            while len(sizes) < len(tile):
                sizes.insert(0, 1)
            for i, size in enumerate(reversed(tile), 1):
                sizes[-i] = math.ceil(sizes[-i] / size) * size
        return tuple(sizes)


def parse_shape(text: str) -> Shape:
    """Read a shape as XLA prints it, such as `"(f32[64]{0:T(128)S(1)}, u32[])"`.

    Raises:
        ValueError: If it is none.
    """
    text = _COMMENT.sub("", text).strip()
    if text.startswith("("):
        return Shape(parts=tuple(map(parse_shape, _split(text[1:-1]))))
    found = _ARRAY.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no shape")
    layout = found["layout"] or ""
    order, _, rest = layout.partition(":")
    tiles = _TILES.search(rest)
    space = _SPACE.search(rest)
    return Shape(
        dtype=found["dtype"],
        sizes=_numbers(found["sizes"].replace("<=", "")),
        minor_to_major=_numbers(order),
        tiles=tuple(_numbers(tile.replace("*", "1")) for tile in re.findall(r"\(([^)]*)\)", tiles[1]))
        if tiles
        else (),
        space=int(space[1]) if space else 0,
    )


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    found = re.match(r"[a-z]+(\d+)", dtype)
    return int(found[1]) if found else 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _split(text: str) -> Iterator[str]:
    """Yield what commas outside of brackets part."""
    depth, begin = 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            yield text[begin:i]
            begin = i + 1
    if text[begin:].strip():
        yield text[begin:]
