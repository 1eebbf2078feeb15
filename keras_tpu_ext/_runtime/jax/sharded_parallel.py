"""Shard models over the devices of a mesh: the layout of each variable is decided when it is created."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras

from keras_tpu_ext._runtime.common.layouts import (
    LayerFacts,
    MeshAxes,
    Patterns,
    Spec,
    batch_axis_of,
    indivisible,
    sharded_spec,
)
from keras_tpu_ext._runtime.common.patches import patched, temporarily
from keras_tpu_ext._runtime.common.types import Layer, Variable
from keras_tpu_ext._runtime.common.values import ChooseMesh, OpenedStrategy
from keras_tpu_ext._runtime.compat.keras3 import path_of
from keras_tpu_ext._runtime.compat.keras3_jax import layout_of, mesh_sizes
from keras_tpu_ext.errors import ArgumentError

_FACTS = "_kte_layer_facts"
_ADDED = re.compile(r"(^|[/_])lora_\w+$|_(scale|zero)$")
_KINDS = (keras.layers.Embedding, keras.layers.EinsumDense, keras.layers.Dense)


class ShardedParallel(keras.distribution.ModelParallel):
    """Keras's distribution of a model over a mesh, with layouts from patterns, or from shapes and layers.

    What matches none of the `patterns` is replicated; a `layout_map` is Keras's own. `choose`, given a model and its
    first batch, returns the axis sizes of a better mesh, an empty mapping to replicate, or `None` to keep this mesh.
    """

    def __init__(
        self,
        mesh: keras.distribution.DeviceMesh,
        batch_axis: str,
        patterns: Patterns | None = None,
        layout_map: keras.distribution.LayoutMap | None = None,
        choose: ChooseMesh | None = None,
    ) -> None:
        # Each process gets the whole batch and takes its part of it, so the dataset must not be sharded again.
        super().__init__(
            layout_map=keras.distribution.LayoutMap(mesh) if layout_map is None else layout_map,
            batch_dim_name=batch_axis,
            auto_shard_dataset=False,
        )
        sizes = mesh_sizes(self)
        self.axes = MeshAxes(sizes, batch_axis)
        self.patterns = patterns
        self.choose = choose
        self._user_layout_map = layout_map
        specs = None if patterns is None else tuple(patterns.specs.items())
        self._key = tuple(mesh.devices.flat), tuple(sizes.items()), batch_axis, specs, id(layout_map), choose is None

    def __eq__(self, other: object) -> bool:
        """Return whether another one lays out models in the same way, so that blocks may be nested."""
        return isinstance(other, ShardedParallel) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def over(self, mesh: Mapping[str, int]) -> keras.distribution.Distribution:
        """Return the distribution over the same devices on another mesh; on an empty one every device has all."""
        devices = self.device_mesh.devices.flatten()
        if not mesh:
            return keras.distribution.DataParallel(devices=list(devices), auto_shard_dataset=False)
        device_mesh = keras.distribution.DeviceMesh(tuple(mesh.values()), list(mesh), devices)
        return ShardedParallel(device_mesh, batch_axis_of(mesh), self.patterns)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Make this Keras's distribution within the block, in which each weight remembers what adds it."""
        with patched([(keras.layers.Layer, "keras.layers.Layer.add_weight", _remembering_facts)]), super().scope():
            yield

    def get_variable_layout(self, variable: keras.Variable) -> keras.distribution.TensorLayout:
        """Return the layout of a variable that is being created."""
        if self._user_layout_map is not None or layout_of(variable) is not None:
            return super().get_variable_layout(variable)
        spec = self.spec_of(variable, facts_of_variable(variable))
        return keras.distribution.TensorLayout(spec, self.device_mesh)

    def spec_of(self, variable: keras.Variable, facts: LayerFacts | None) -> Spec:
        """Return the axes along which a variable is sharded; `facts` are those of its layer, if it has one."""
        shape = tuple(variable.shape)
        if self._user_layout_map is not None:
            layout = self._user_layout_map[path_of(variable)]
            return _padded(() if layout is None else tuple(layout.axes), shape)
        if self.patterns is None:
            return sharded_spec(shape, facts or LayerFacts(), self.axes)
        return self._spec_by_pattern(path_of(variable), shape, is_weight=facts is not None and variable.trainable)

    def unmatched(self, paths: Sequence[str]) -> list[str]:
        """Return the patterns that match none of these variables; a `LayoutMap` may name outputs of layers, too."""
        if self.patterns is not None:
            return self.patterns.unmatched(paths)
        outputs = {f"{path[:i]}/output" for path in paths for i, letter in enumerate(path) if letter == "/"}
        found = []
        for pattern, layout in ({} if self._user_layout_map is None else self._user_layout_map).items():
            alone = keras.distribution.LayoutMap(self.device_mesh)
            alone[pattern] = layout
            if all(alone[path] is None for path in (*paths, *outputs)):
                found.append(pattern)
        return found

    def names(self, path: str) -> bool:
        """Return whether a pattern specifies the layout of a variable."""
        if self._user_layout_map is not None:
            return self._user_layout_map[path] is not None
        return self.patterns is not None and bool(self.patterns.matching(path))

    def note_of(self, path: str, shape: tuple[int, ...]) -> str:
        """Return why a dimension that a pattern names is not sharded; empty if there is no such dimension."""
        matching = [] if self.patterns is None else self.patterns.matching(path)
        if self.patterns is None or len(matching) != 1 or _is_added(path, matching[0]):
            return ""
        axes = len(self.patterns.specs[matching[0]])
        if axes > len(shape):
            return f"it is not sharded: {matching[0]!r} gives {axes} axes, and it has {len(shape)} dimensions"
        for i, name in indivisible(shape, self.patterns.specs[matching[0]], self.axes):
            size = self.axes.sizes[name]
            return f"dimension {i} is not sharded: {size} devices along {name!r} do not divide {shape[i]}"
        return ""

    def _spec_by_pattern(self, path: str, shape: tuple[int, ...], *, is_weight: bool) -> Spec:
        assert self.patterns is not None
        matching = self.patterns.matching(path)
        if not matching:
            return _padded((), shape)
        if len(matching) > 1:
            raise ArgumentError(
                f"Two patterns of `shard` match {path!r}: {' and '.join(map(repr, matching[:2]))}. "
                "Each variable may match one. Write a longer pattern, or the whole path."
            )
        spec = self.patterns.specs[matching[0]]
        if len(spec) > len(shape):
            if not is_weight or _is_added(path, matching[0]):  # an optimizer's, for example: no user names these
                return _padded((), shape)
            raise ArgumentError(
                f"`shard` gives {path!r} {len(spec)} axes by {matching[0]!r}: {spec}, but its shape "
                f"is {shape}. Write one axis or None for each dimension."
            )
        spec = _padded(spec, shape)
        whole = dict(indivisible(shape, spec, self.axes))
        return tuple(None if i in whole else name for i, name in enumerate(spec))


def _padded(spec: Spec, shape: tuple[int, ...]) -> Spec:
    return (*spec, *[None] * (len(shape) - len(spec)))


def _is_added(path: str, pattern: str) -> bool:
    """Return whether LoRA or quantization added a variable to the weight that a pattern is meant for."""
    return _ADDED.search(path) is not None and not any(word in pattern for word in ("lora", "scale", "zero"))


class _Adding(threading.local):
    """The layer whose `add_weight` this thread is in."""

    layer: Layer | None = None


_ADDING = _Adding()


def _remembering_facts(original: Callable[..., Variable]) -> Callable[..., Variable]:
    """Let a weight remember its layer's facts: some get their value, and so a layout, when no layer is at work."""

    @functools.wraps(original)
    def add_weight(layer: Layer, *args: object, **kwargs: object) -> Variable:
        with temporarily(_ADDING, layer=layer):
            variable = original(layer, *args, **kwargs)
        object.__setattr__(variable, _FACTS, facts_of(layer))
        return variable

    return add_weight


def facts_of_variable(variable: keras.Variable) -> LayerFacts | None:
    """Return the facts about the layer that adds or has added a variable in the scope; `None` if none has."""
    facts: LayerFacts | None = getattr(variable, _FACTS, None)
    return facts_of(_ADDING.layer) if facts is None and _ADDING.layer is not None else facts


def facts_of(layer: Layer) -> LayerFacts:
    """Return the facts about a layer that layouts depend on."""
    kind = next((one.__name__ for one in _KINDS if isinstance(layer, one)), type(layer).__name__)
    return LayerFacts(kind, layer.equation if isinstance(layer, keras.layers.EinsumDense) else "")


def shard(
    opened: OpenedStrategy, shard: Any, mesh: Sequence[tuple[str, int]] | None, choose: ChooseMesh | None = None
) -> OpenedStrategy:
    """Return a distribution that shards models over the devices of `opened`; see `training/protocols.py`."""
    if isinstance(shard, keras.distribution.LayoutMap):
        own = shard.device_mesh
        distribution = ShardedParallel(own, own.axis_names[0], layout_map=shard)
        return dataclasses.replace(opened, strategy=distribution, num_replicas=int(own.shape[0]))
    devices = opened.strategy.device_mesh.devices.flatten()
    sizes = dict(mesh or (("data", len(devices)),))
    device_mesh = keras.distribution.DeviceMesh(tuple(sizes.values()), list(sizes), devices)
    batch_axis = batch_axis_of(sizes)
    patterns = Patterns(shard) if isinstance(shard, Mapping) else None
    distribution = ShardedParallel(device_mesh, batch_axis, patterns, choose=choose)
    return dataclasses.replace(opened, strategy=distribution, num_replicas=sizes[batch_axis])
