"""What differs between versions of Keras 3 on JAX, and of JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.extend.core
import keras
import numpy as np

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import Patch
from keras_tpu_ext._runtime.common.types import Model, Variable
from keras_tpu_ext._runtime.compat.keras3 import VERSION

Mesh: TypeAlias = "jax.sharding.Mesh | jax.sharding.AbstractMesh"

# Where `keras.ops` finds attention.
_new, _old = private("keras.src.backend.jax.ops.nn"), private("keras.src.backend.jax.nn")
backend_nn: Any = _new if VERSION >= (3, 16) else _old


# Whether a trainer on JAX has `_maybe_symbolic_build`; before, it called `_symbolic_build` itself.
HAS_MAYBE_SYMBOLIC_BUILD = VERSION >= (3, 16)


def jax_mesh(distribution: keras.distribution.DataParallel) -> jax.sharding.Mesh:
    """Return JAX's mesh of a distribution."""
    if VERSION < (3, 10):
        return private("keras.src.backend.jax.distribution_lib:_to_jax_mesh")(distribution.device_mesh)
    return distribution.device_mesh.backend_mesh


def layout_of(variable: Variable) -> Any:
    """Return the layout of a variable; `None` if none was set."""
    return getattr(variable, "_layout", None)  # before 3.10 a variable without a value has no such attribute


def mesh_sizes(thing: Any) -> dict[str, int]:
    """Return the size of each axis, by its name, of the mesh of a distribution or a layout."""
    mesh = thing.device_mesh
    return dict(zip(mesh.axis_names, map(int, mesh.shape), strict=True))


def spec_of_layout(layout: Any) -> tuple[Sequence[str | None], dict[str, int]]:
    """Return the axes of a variable's layout, and the size of each axis of its mesh; before 3.10 it is JAX's own."""
    if layout is None:
        return (), {}
    if isinstance(layout, jax.sharding.Sharding):
        spec, mesh = getattr(layout, "spec", ()), getattr(layout, "mesh", None)
        return spec, {} if mesh is None else dict(mesh.shape)
    return layout.axes, mesh_sizes(layout)


def devices_of_layout(layout: Any) -> set[str]:
    """Return Keras's names of the devices of a variable's layout."""
    if isinstance(layout, jax.sharding.Sharding):
        return {f"{device.platform}:{device.id}" for device in layout.device_set}
    return set(layout.device_mesh.devices.flat)


# Whether an optimizer lays out its slots like the weights that they belong to.
SLOTS_FOLLOW_WEIGHTS = VERSION >= (3, 10)

# Whether a masked softmax, and so attention with dropout, gives zeros where the mask hides all; before, their mean.
ZEROS_WHERE_ALL_IS_HIDDEN = VERSION >= (3, 10)


def abstract_mesh(sizes: Mapping[str, int]) -> jax.sharding.AbstractMesh:
    """Return a mesh of devices that need not exist, given the size of each axis."""
    if jax.__version_info__ < (0, 5, 3):
        return jax.sharding.AbstractMesh(tuple(sizes.items()))
    if jax.__version_info__ < (0, 7):
        return jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    # The type of the axes of Keras's meshes; from JAX 0.11 on it is not the default.
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)


def compiler_params(**values: Any) -> Any:
    """Return what the TPU compiler is told of a Pallas kernel."""
    from jax.experimental.pallas import tpu

    return (tpu.CompilerParams if jax.__version_info__ >= (0, 7) else tpu.TPUCompilerParams)(**values)


def shard_map(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Return `function` mapped over the devices' shards, without a check that its results are replicated."""
    if jax.__version_info__ < (0, 7):
        from jax.experimental.shard_map import shard_map as sharded

        return sharded(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def kernel_depth(depth: int) -> int:
    """Return the depth of heads that JAX's attention kernel takes for `depth`: before 0.7.2 a multiple of 128."""
    return depth if jax.__version_info__ >= (0, 7, 2) else -(-depth // 128) * 128


def unsharded_state_patches(model: Model) -> list[Patch]:
    """Return patches for lowering a step of Keras before 3.12, which ties the state to where its variables are."""
    if VERSION >= (3, 12):
        return []

    def as_it_is(
        trainable_variables: Any = None,
        non_trainable_variables: Any = None,
        optimizer_variables: Any = None,
        metrics_variables: Any = None,
    ) -> tuple[Any, ...]:
        return trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables

    return [(model, "a model's _enforce_jax_state_sharding", lambda stock: as_it_is)]


def broadcast_seed() -> None:
    """Let all processes start from one seed, unless the user has set one."""
    if VERSION >= (3, 10):
        private("keras.src.backend.jax.distribution_lib:initialize_rng")()
    elif private("keras.src.backend.common.global_state:get_global_attribute")("global_random_seed") is None:
        from jax.experimental import multihost_utils

        seed = np.random.default_rng().integers(2**31, dtype=np.int32)
        keras.utils.set_random_seed(int(multihost_utils.broadcast_one_to_all(seed)))


@contextlib.contextmanager
def keeping_state(model: Model) -> Iterator[None]:
    """Even after an error in `fit`, put the last step's state into the variables, as Keras does from 3.10 on."""
    try:
        yield
    finally:
        if VERSION < (3, 10):
            model.jax_state_sync()


def state_after_predict(model: Model, before: Any, after: Any) -> Any:
    """Return the state with which Keras's loop over the batches to predict continues, given that it passed."""
    if VERSION >= (3, 9):
        return after
    # The older one leaves the trainable variables with donated values.
    before[0][:] = after[0]  # the loop continues with this very list
    for variable, value in zip(model.trainable_variables, after[0], strict=True):
        variable.assign(value)
    return after[1]


def start_profiler(directory: str) -> None:
    """Start JAX's profiler. Before JAX 0.7 it records Python's calls too, which makes these slower."""
    make_options = getattr(jax.profiler, "ProfileOptions", None)
    if make_options is None:
        jax.profiler.start_trace(directory)
        return
    options = make_options()
    options.python_tracer_level = 0
    jax.profiler.start_trace(directory, profiler_options=options)


def trace_state() -> object:
    """Return an object that equals another one if JAX was tracing the same when that was returned."""
    core: Any = jax.extend.core if hasattr(jax.extend.core, "get_opaque_trace_state") else jax.core  # newer, older
    return core.get_opaque_trace_state(convention="nnx")
