"""Models that are sharded over the devices of a mesh: the layout of each variable, decided when it is made."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras

from keras_tpu_ext._runtime.common.layouts import (
    LayerFacts,
    MeshAxes,
    Patterns,
    Role,
    Spec,
    VariableLayout,
    indivisible,
    sharded_spec,
)
from keras_tpu_ext._runtime.common.protocols import OpenedStrategy
from keras_tpu_ext._runtime.compat.keras3 import path_of
from keras_tpu_ext._runtime.jax.scope import distribution_of
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext.errors import ArgumentError, LayoutWarning

_MOST_FRAMES = 12  # between a layer that adds a weight and the question for its layout
_TOLD = "_kte_layout_told"
_KINDS = (keras.layers.Embedding, keras.layers.EinsumDense, keras.layers.Dense)


class ShardedParallel(keras.distribution.ModelParallel):
    """Keras's distribution of a model over a mesh, with layouts from shapes and layers, or from patterns.

    Args:
        mesh: The mesh.
        batch_axis: The axis along which batches are sharded.
        patterns: Layouts by patterns; what matches none is replicated. `None` for layouts by shapes and layers.
        layout_map: Keras's own layouts; `None` for one of the others.
    """

    def __init__(
        self,
        mesh: keras.distribution.DeviceMesh,
        batch_axis: str,
        patterns: Patterns | None = None,
        layout_map: keras.distribution.LayoutMap | None = None,
    ) -> None:
        # Each process is given the whole batch and takes its part, so nothing is to be sharded once more.
        super().__init__(
            layout_map=keras.distribution.LayoutMap(mesh) if layout_map is None else layout_map,
            batch_dim_name=batch_axis,
            auto_shard_dataset=False,
        )
        sizes = dict(zip(mesh.axis_names, map(int, mesh.shape), strict=True))
        self.axes = MeshAxes(sizes, batch_axis)
        self.patterns = patterns
        self._is_given = layout_map is not None

    def get_variable_layout(self, variable: keras.Variable) -> keras.distribution.TensorLayout:
        """Return the layout of a variable that is being made."""
        facts = _facts_of_running_layer()
        if self._is_given or getattr(variable, "_layout", None) is not None:
            return super().get_variable_layout(variable)
        shape = tuple(variable.shape)
        if self.patterns is None:
            spec = sharded_spec(shape, facts or LayerFacts(), self.axes)
        else:
            spec = self._spec_by_pattern(path_of(variable), shape, is_weight=facts is not None and variable.trainable)
        return keras.distribution.TensorLayout(spec, self.device_mesh)

    def note_of(self, path: str, shape: tuple[int, ...]) -> str:
        """Return why a dimension that a pattern names is not sharded; empty if there is none."""
        matching = [] if self.patterns is None else self.patterns.matching(path)
        if self.patterns is None or len(matching) != 1 or len(self.patterns.specs[matching[0]]) > len(shape):
            return ""
        for i, name in indivisible(shape, self.patterns.specs[matching[0]], self.axes):
            size = self.axes.sizes[name]
            return f"dimension {i} is not sharded: {size} devices along {name!r} do not divide {shape[i]}"
        return ""

    def _spec_by_pattern(self, path: str, shape: tuple[int, ...], *, is_weight: bool) -> Spec:
        assert self.patterns is not None
        matching = self.patterns.matching(path)
        if not matching:
            return (None,) * len(shape)
        if len(matching) > 1:
            raise ArgumentError(
                f"strategy_scope: two patterns of `shard` match {path!r}: {' and '.join(map(repr, matching[:2]))}. "
                "Each variable may match one. Write a longer pattern, or the whole path."
            )
        spec = self.patterns.specs[matching[0]]
        if len(spec) > len(shape):
            if not is_weight:  # as of an optimizer, or the scales of quantized weights: no user names these
                return (None,) * len(shape)
            raise ArgumentError(
                f"strategy_scope: `shard` gives {path!r} {len(spec)} axes by {matching[0]!r}: {spec}, but its shape "
                f"is {shape}. Write one axis or None for each dimension."
            )
        spec = (*spec, *[None] * (len(shape) - len(spec)))
        whole = dict(indivisible(shape, spec, self.axes))
        return tuple(None if i in whole else name for i, name in enumerate(spec))


def _facts_of_running_layer() -> LayerFacts | None:
    """Return what is known of the layer that is adding a weight now; `None` where none is."""
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code is keras.layers.Layer.add_weight.__code__:
            layer = frame.f_locals.get("self")
            kind = next((one.__name__ for one in _KINDS if isinstance(layer, one)), type(layer).__name__)
            return LayerFacts(kind, layer.equation if isinstance(layer, keras.layers.EinsumDense) else "")
        frame = frame.f_back
    return None


def shard(opened: OpenedStrategy, shard: Any, mesh: Sequence[tuple[str, int]] | None) -> OpenedStrategy:
    """Return the distribution that shards models over the devices of another; see `common/protocols.py`."""
    if isinstance(shard, keras.distribution.LayoutMap):
        own = shard.device_mesh
        distribution = ShardedParallel(own, own.axis_names[0], layout_map=shard)
        return dataclasses.replace(opened, strategy=distribution, num_replicas=int(own.shape[0]))
    devices = opened.strategy.device_mesh.devices.flatten()
    sizes = dict(mesh or (("data", len(devices)),))
    if math.prod(sizes.values()) != len(devices):
        raise ArgumentError(
            f"strategy_scope: `mesh` must have as many devices as there are, {len(devices)}; got "
            f"{tuple(sizes.items())}, "
            f'which has {math.prod(sizes.values())}. Write mesh=(("data", {len(devices)}),).'
        )
    patterns = Patterns(shard) if isinstance(shard, Mapping) else None
    if patterns is not None:
        _check_axes(patterns, tuple(sizes))
    device_mesh = keras.distribution.DeviceMesh(tuple(sizes.values()), list(sizes), devices)
    batch_axis = "data" if "data" in sizes else next(iter(sizes))
    distribution = ShardedParallel(device_mesh, batch_axis, patterns)
    return dataclasses.replace(opened, strategy=distribution, num_replicas=sizes[batch_axis])


def _check_axes(patterns: Patterns, names: tuple[str, ...]) -> None:
    for pattern, spec in patterns.specs.items():
        unknown = [name for name in spec if name is not None and name not in names]
        if unknown:
            raise ArgumentError(
                f"strategy_scope: `shard` names the axis {unknown[0]!r} by {pattern!r}, and the mesh has "
                f"{', '.join(map(repr, names))}. Write "
                f'mesh=(("data", 2), ({unknown[0]!r}, 4)), or one of its axes.'
            )


def layouts(model: keras.Model) -> list[VariableLayout]:
    """Return where each variable of a model is, weights first."""
    distribution = distribution_of(model)
    rows = []
    for role, variables in _by_role(model).items():
        rows += [_row(variable, role, distribution) for variable in variables]
    return rows


def layout_complaints(model: keras.Model) -> list[str]:
    """Return what is surely not meant: patterns that match nothing, and large weights that are not sharded."""
    distribution = distribution_of(model)
    found = []
    if isinstance(distribution, ShardedParallel) and distribution.patterns is not None:
        paths = [row.path for row in layouts(model)]
        found += [
            f"the pattern {pattern!r} of `shard` matches no variable"
            for pattern in distribution.patterns.unmatched(paths)
        ]
    found += [f"{row.path} {row.shape}: {row.note}" for row in layouts(model) if row.role == "weight" and row.note]
    found += [
        f"{row.path} {row.shape}, {row.bytes / 2**20:.1f} MiB, is not sharded"
        for row in layouts(model)
        if row.role == "weight" and row.is_large and row.is_replicated and not _is_meant(row.path, distribution)
    ]
    return found


def warn_of_layouts(model: keras.Model) -> None:
    """Warn once of a model whose layouts are surely not meant."""
    if not isinstance(distribution_of(model), ShardedParallel) or vars(model).get(_TOLD):
        return
    vars(model)[_TOLD] = True
    found = layout_complaints(model)
    if found:
        warnings.warn(
            f"The layout of {model.name!r} is surely not meant: {'; '.join(found)}. "
            "print(scope.layout(model)) shows all of it.",
            LayoutWarning,
            stacklevel=2,
        )


def _is_meant(path: str, distribution: keras.distribution.Distribution | None) -> bool:
    """Return whether a pattern says that a variable is on every device."""
    patterns = getattr(distribution, "patterns", None)
    return patterns is not None and bool(patterns.matching(path))


def _by_role(model: keras.Model) -> dict[Role, list[keras.Variable]]:
    optimizer = [] if getattr(model, "optimizer", None) is None else list(model.optimizer.variables)
    metrics = list(model.metrics_variables)
    state = step_state_of(model)
    accumulators = (
        [] if state is None else [total for window in state.accumulators() for total in window.sum_variables()]
    )
    known = {id(variable) for variable in (*optimizer, *metrics, *accumulators)}
    others = [variable for variable in model.variables if id(variable) not in known]
    weights = {id(variable) for variable in model.weights}
    return {
        "weight": [variable for variable in others if id(variable) in weights],
        "optimizer": optimizer,
        "accumulator": accumulators,
        "metric": metrics,
        "other": [variable for variable in others if id(variable) not in weights],
    }


def _row(
    variable: keras.Variable, role: Role, distribution: keras.distribution.Distribution | None
) -> VariableLayout:
    shape = tuple(map(int, variable.shape))
    layout = getattr(variable, "_layout", None)
    spec: Spec = (None,) * len(shape)
    if layout is not None:
        spec = tuple(getattr(layout, "axes", spec))
    size = math.prod(shape) * jax.numpy.dtype(variable.dtype).itemsize
    mesh = getattr(layout, "device_mesh", None)
    sizes = {} if mesh is None else dict(zip(mesh.axis_names, map(int, mesh.shape), strict=True))
    parts = math.prod(sizes.get(name, 1) for name in spec if name is not None)
    note = distribution.note_of(path_of(variable), shape) if isinstance(distribution, ShardedParallel) else ""
    return VariableLayout(path_of(variable), role, shape, str(variable.dtype), spec, size, size // parts, note)
