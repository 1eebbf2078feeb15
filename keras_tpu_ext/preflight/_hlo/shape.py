"""HLO shapes, and the bytes that they take in TPU memory, where dimensions are padded to tiles.

Source: https://openxla.org/xla/tiled_layout
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

CLOSES = ")]}"  # brackets
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"^(?P<dtype>[a-z]\w*)\[(?P<dimensions>[^\]]*)\](?:\{(?P<layout>.*)\})?$", re.DOTALL)
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class Shape:
    """The shape of an array or of a tuple."""

    dtype: str = ""  # HLO's element type, such as `"bf16"`; empty for a tuple
    dimensions: tuple[int, ...] = ()  # logical sizes
    minor_to_major: tuple[int, ...] = ()  # order of the dimensions in memory, the fastest first
    tiles: tuple[tuple[int, ...], ...] = ()  # tiles of the layout, the outermost first
    memory_space: int = 0  # 0 is HBM, 1 the vector memory on the chip
    tuple_shapes: tuple[Shape, ...] = ()  # shapes of a tuple's elements

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        if self.tuple_shapes or not self.dtype:
            return sum(shape.bytes for shape in self.tuple_shapes)
        return math.ceil(math.prod(self.dimensions) * _bits(self.dtype) / 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes in memory, padding included."""
        if self.tuple_shapes or not self.dtype:
            return sum(shape.padded_bytes for shape in self.tuple_shapes)
        return math.ceil(math.prod(self._padded_dimensions()) * _bits(self.dtype) / 8)

    def leaves(self) -> Iterator[Shape]:
        """Yield the array shapes."""
        if self.dtype:
            yield self
        for shape in self.tuple_shapes:
            yield from shape.leaves()

    def __str__(self) -> str:
        if self.dtype:
            return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"
        return f"({', '.join(map(str, self.tuple_shapes))})"

    def _padded_dimensions(self) -> tuple[int, ...]:
        """Return the dimensions padded to tiles, the slowest first."""
        order = self.minor_to_major or tuple(reversed(range(len(self.dimensions))))
        sizes = [self.dimensions[i] for i in reversed(order)]
        # A tile covers the fastest dimensions; a further tile cuts up the first one, as (2,1) packs two rows of bf16.
        for tile in self.tiles[:1]:
            while len(sizes) < len(tile):
                sizes.insert(0, 1)
            for i, size in enumerate(reversed(tile), 1):
                sizes[-i] = math.ceil(sizes[-i] / size) * size
        return tuple(sizes)


def parse_shape(text: str) -> Shape:
    """Parse a shape as XLA prints it, such as `"(f32[64]{0:T(128)S(1)}, u32[])"`."""
    text = _COMMENT.sub("", text).strip()
    if text.startswith("("):
        return Shape(tuple_shapes=tuple(map(parse_shape, _split(text[1:-1]))))
    found = _ARRAY.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no shape")
    order, _, rest = (found["layout"] or "").partition(":")
    tiles = _TILES.search(rest)
    memory_space = _MEMORY_SPACE.search(rest)
    return Shape(
        dtype=found["dtype"],
        dimensions=integers(found["dimensions"].replace("<=", "")),
        minor_to_major=integers(order),
        tiles=tuple(
            integers(tile.replace("*", "1")) for tile in re.findall(r"\(([^)]*)\)", tiles[1] if tiles else "")
        ),
        memory_space=int(memory_space[1]) if memory_space else 0,
    )


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    found = re.match(r"[a-z]+(\d+)", dtype)
    return int(found[1]) if found else 0


def integers(text: str) -> tuple[int, ...]:
    """Return the integers between commas."""
    return tuple(int(number) for number in text.split(",") if number)


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    begin = 0
    while text[begin:].strip():
        end = find_outside(text, ",", begin)
        yield text[begin:end]
        begin = end + 1


def find_outside(text: str, characters: str, begin: int = 0) -> int:
    """Return the index of the first of some characters outside brackets opened after `begin`; else the length."""
    depth = 0
    for i in range(begin, len(text)):
        character = text[i]
        if not depth and character in characters:
            return i
        depth += (character in "([{") - (character in CLOSES)
    return len(text)
