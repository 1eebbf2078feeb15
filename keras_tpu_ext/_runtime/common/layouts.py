"""Layouts: the axes of a mesh along which each variable is sharded."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

# For each dimension the axis of the mesh that shards it, or `None`.
Spec = tuple[str | None, ...]
Role = Literal["weight", "optimizer", "accumulator", "metric", "other"]

# A weight below the first limit may be replicated; a vector below the second always is.
_LARGE = 2**20  # bytes
_LARGE_VECTOR = 2**16  # elements
_OPERANDS = re.compile(r"^[^,]*,([^,]*)->(.*)$")


@dataclasses.dataclass(frozen=True)
class VariableLayout:
    """The layout of a variable of a model."""

    path: str  # its path, such as `"dense/kernel"`
    role: Role  # what it is for
    shape: tuple[int, ...]
    dtype: str
    spec: Spec  # for each dimension the axis of the mesh that shards it, or `None`
    bytes: int  # size of the whole variable
    bytes_per_device: int  # bytes of it on each device
    note: str = ""  # what is wrong with it, or why it is as it is; may be empty

    @property
    def is_replicated(self) -> bool:
        """Whether every device has the whole variable."""
        return not any(self.spec)

    @property
    def is_large(self) -> bool:
        """Whether it would be worth sharding."""
        return self.role in ("weight", "optimizer") and self.bytes >= _LARGE


class ModelLayout(NamedTuple):
    """The layout of a model."""

    mesh: Mapping[str, int]  # size of each axis of its mesh, by its name; empty if it is not on a mesh
    variables: tuple[VariableLayout, ...]  # its variables, weights first
    complaints: tuple[str, ...] = ()  # likely mistakes, in words
    has_slots: bool = True  # whether its optimizer, if it has one, has variables yet


class MeshAxes(NamedTuple):
    """The axes of a mesh."""

    sizes: Mapping[str, int]  # size of each axis by its name, in the order of the mesh
    batch: str  # name of the axis along which batches are sharded

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the axes of more than one device along which batches are not sharded."""
        return tuple(name for name, size in self.sizes.items() if name != self.batch and size > 1)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes.values())


def batch_axis_of(names: Iterable[str]) -> str:
    """Return the axis of a mesh along which batches are sharded: that named `"data"`, else the first."""
    found = list(names)
    return "data" if "data" in found else found[0]


class LayerFacts(NamedTuple):
    """The facts about a variable's layer that its layout depends on."""

    kind: str = ""  # name of its class, or of the Keras class that it extends, such as `"Dense"`; may be empty
    equation: str = ""  # the equation of an `EinsumDense`; else empty


def sharded_spec(shape: Sequence[int], layer: LayerFacts, axes: MeshAxes) -> Spec:
    """Return a variable's layout by its shape and its layer: sharded along all axes, as far as they divide it.

    The batch axis shards the largest dimension that it divides (FSDP; Rajbhandari et al., ZeRO, SC20). Any other axis
    shards matrix products as tensor parallelism does (Shoeybi et al., Megatron-LM, arXiv:1909.08053): the heads of
    attention, the wider side of other products, the words of an embedding.
    """
    spec: list[str | None] = [None] * len(shape)
    if len(shape) < 2 and math.prod(shape) < _LARGE_VECTOR:
        return tuple(spec)
    for name in axes.others:
        for i in tensor_dimensions(shape, layer):
            if spec[i] is None and shape[i] % axes.sizes[name] == 0:
                spec[i] = name
                break
    size = axes.sizes[axes.batch]
    if size > 1:
        for i in sorted(range(len(shape)), key=lambda i: shape[i], reverse=True):
            if spec[i] is None and shape[i] % size == 0:
                spec[i] = axes.batch
                break
    return tuple(spec)


def tensor_dimensions(shape: Sequence[int], layer: LayerFacts) -> list[int]:
    """Return the dimensions of a weight that tensor parallelism shards, the best one first."""
    largest_first = sorted(range(len(shape)), key=lambda i: (shape[i], i), reverse=True)
    found = _OPERANDS.match(layer.equation.replace("...", "").replace(" ", ""))
    if found is not None and len(found[1]) == len(shape):
        free = [i for i, letter in enumerate(found[1]) if letter in found[2]]
        contracted = [i for i, letter in enumerate(found[1]) if letter not in found[2]]
        heads = next((dimensions[0] for dimensions in (free, contracted) if len(dimensions) > 1), None)
        if heads is not None:
            return [heads, *(i for i in largest_first if i != heads)]
    if layer.kind == "Embedding":
        return list(range(len(shape)))
    if "Conv" in layer.kind:
        return list(range(len(shape)))[::-1]
    return largest_first


class Patterns:
    """Layouts by patterns over the paths of variables, as in a `keras.distribution.LayoutMap`."""

    def __init__(self, specs: Mapping[str, Sequence[str | None]]) -> None:
        self.specs: dict[str, Spec] = {pattern: tuple(spec) for pattern, spec in specs.items()}

    def matching(self, path: str) -> list[str]:
        """Return the patterns that match a path."""
        return [path] if path in self.specs else [one for one in self.specs if re.search(one, path)]

    def unmatched(self, paths: Sequence[str]) -> list[str]:
        """Return the patterns that match none of these paths."""
        matched = {pattern for path in paths for pattern in self.matching(path)}
        return [pattern for pattern in self.specs if pattern not in matched]


def indivisible(shape: Sequence[int], spec: Spec, axes: MeshAxes) -> Iterator[tuple[int, str]]:
    """Yield each dimension of a variable that its axis does not divide, with the axis."""
    for i, name in enumerate(spec):
        if name is not None and shape[i] % axes.sizes[name]:
            yield i, name
