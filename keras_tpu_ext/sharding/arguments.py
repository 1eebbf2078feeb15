"""The arguments `replicas`, `shard` and `mesh`, and their checks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keras_tpu_ext._runtime.common.layouts import batch_axis_of
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError


class WantedDevices(NamedTuple):
    """The devices that were asked for."""

    replicas: int | None  # as given
    mesh: tuple[tuple[str, int], ...] | None  # name and size of each axis of the mesh, if one was given

    @property
    def devices(self) -> int | None:
        """The number of devices; `None` for any."""
        return self.replicas if self.mesh is None else math.prod(size for _, size in self.mesh)

    @property
    def name(self) -> str:
        """The argument that says so."""
        return "replicas" if self.mesh is None else "mesh"

    @property
    def code(self) -> str:
        """The arguments as they are written."""
        if self.mesh is None:
            return f"replicas={self.replicas}"
        axes = ", ".join(f'("{name}", {size})' for name, size in self.mesh)
        return f'shard="fsdp", mesh=({axes}{"," if len(self.mesh) == 1 else ""})'

    def __str__(self) -> str:
        return f"replicas={self.replicas}" if self.mesh is None else f"a mesh of {self.devices} devices"


def check_sharding(
    function: str, shard: object, mesh: object, replicas: object = None, *, devices: int | None = None
) -> tuple[tuple[str, int], ...] | None:
    """Return name and size of each axis of the requested mesh; `None` for the default."""
    axes = _checked_axes(function, shard, mesh, replicas)
    if isinstance(shard, Mapping) and not hasattr(shard, "device_mesh"):
        _check_names(function, shard, tuple(dict(axes or (("data", devices),))))
    if axes is not None and devices is not None and math.prod(size for _, size in axes) != devices:
        asked = math.prod(size for _, size in axes)
        if hasattr(shard, "device_mesh"):
            needed = f"a LayoutMap whose mesh has as many devices as there are, {devices}"
            write = f"a keras.distribution.DeviceMesh of {devices} devices for it"
            raise check.argument_error(function, "shard", needed, f"one with {axes}, which has {asked}", write)
        needed = f"as many devices as there are, {devices}"
        write = f'mesh=(("data", {devices}),)'
        raise check.argument_error(function, "mesh", needed, f"{axes}, which has {asked}", write)
    return axes


def _checked_axes(function: str, shard: object, mesh: object, replicas: object) -> tuple[tuple[str, int], ...] | None:
    own = getattr(shard, "device_mesh", None) if isinstance(shard, Mapping) else None  # of a LayoutMap
    if own is not None:
        if mesh is not None or replicas not in (None, int(own.shape[0])):
            raise ArgumentError(f"{function}: a LayoutMap has a mesh of its own. Leave `mesh` and `replicas` out.")
        return tuple(zip(map(str, own.axis_names), map(int, own.shape), strict=True))
    if isinstance(shard, Mapping) and shard:
        _check_patterns(function, shard)
    elif shard is not None and not (isinstance(shard, str) and shard in ("fsdp", "auto")):
        needed = '"fsdp", "auto", a dict of patterns, or a keras.distribution.LayoutMap'
        raise check.argument_error(function, "shard", needed, repr(shard), 'shard="fsdp"')
    if mesh is None:
        return None
    if shard is None:
        raise ArgumentError(f'{function}: `mesh` is for models that are sharded. Write shard="fsdp" as well.')
    axes = (
        tuple(mesh.items()) if isinstance(mesh, Mapping) else tuple(mesh) if isinstance(mesh, (tuple, list)) else ()
    )
    if not axes or not all(_is_axis(axis) for axis in axes) or len({name for name, _ in axes}) < len(axes):
        needed = "a tuple of axes with a name of its own and a size each"
        raise check.argument_error(function, "mesh", needed, repr(mesh), 'mesh=(("data", 2), ("model", 4))')
    sizes = dict(axes)
    whole, batches = math.prod(sizes.values()), sizes[batch_axis_of(sizes)]
    if replicas not in (None, whole, batches):
        raise ArgumentError(
            f"{function}: replicas={replicas} and mesh={axes}, which has {batches} replicas, contradict each "
            "other. Leave `replicas` out."
        )
    return tuple((str(name), int(size)) for name, size in axes)


def _check_names(function: str, shard: Mapping[str, Iterable[str | None]], names: tuple[str, ...]) -> None:
    """Reject patterns for axes that the mesh does not have."""
    for pattern, spec in shard.items():
        unknown = [name for name in spec if name is not None and name not in names]
        if unknown:
            raise ArgumentError(
                f"{function}: `shard` names the axis {unknown[0]!r} by {pattern!r}, and the mesh has "
                f"{', '.join(map(repr, names))}. Write "
                f'mesh=(("data", 2), ({unknown[0]!r}, 4)), or one of its axes.'
            )


def _check_patterns(function: str, shard: Mapping[str, object]) -> None:
    """Reject patterns that are not regular expressions, and invalid specs."""
    for pattern, spec in shard.items():
        write = 'shard={"dense.*kernel": (None, "model")}'
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            got = f"{pattern!r} ({error})"
            raise check.argument_error(
                function, "shard", "a dict whose keys are regular expressions", got, write
            ) from error
        names = [] if isinstance(spec, str) else list(spec) if isinstance(spec, Iterable) else None
        axes = [name for name in names or () if name is not None]
        if names is None or isinstance(spec, str) or not all(isinstance(name, str) for name in axes):
            needed = "a dict whose values have the name of an axis, or None, for each dimension"
            raise check.argument_error(function, "shard", needed, f"{pattern!r}: {spec!r}", write)
        if len(set(axes)) < len(axes):
            needed = "a dict whose values name an axis once"
            raise check.argument_error(function, "shard", needed, f"{pattern!r}: {spec!r}", write)


def _is_axis(axis: object) -> bool:
    if not isinstance(axis, (tuple, list)) or len(axis) != 2 or not isinstance(axis[0], str) or not axis[0]:
        return False
    return check.is_number(axis[1]) and math.isfinite(axis[1]) and int(axis[1]) == axis[1] >= 1
