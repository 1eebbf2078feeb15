"""Lower a train step of JAX for TPUs, from shapes: nothing is run, and no TPU is needed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import keras
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_ext._runtime.common.layouts import Spec
from keras_tpu_ext._runtime.common.lowering import (
    LoweredStep,
    check_dtypes,
    error_of_operation,
    given_parts,
    layer_names,
    roles_of,
    wrap_lowering_errors,
)
from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.protocols import OpenedStrategy
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3 import build_for_step, path_of
from keras_tpu_ext._runtime.compat.keras3_jax import abstract_mesh, unsharded_state_patches
from keras_tpu_ext._runtime.jax.abstract import abstract_variables, is_abstract
from keras_tpu_ext._runtime.jax.attention import warn_of_stock_attention
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.flops import jaxprs_of
from keras_tpu_ext._runtime.jax.layouts import complaints_of, layouts_under, specs_under, without_layout_warning
from keras_tpu_ext._runtime.jax.loop import stateless
from keras_tpu_ext._runtime.jax.program import TrainStep
from keras_tpu_ext._runtime.jax.scope import mesh_sizes, use_distribution
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, tracing_for_tpu
from keras_tpu_ext._runtime.jax.update import own_variables, state_variables

_module_to_bytecode: Any = private("jax._src.interpreters.mlir:module_to_bytecode")

_CALLS_PYTHON = (
    "{} calls Python on the host in every step, for which a TPU would wait; without a TPU it cannot be compiled"
)
_State = tuple[list[keras.Variable], ...]


def lower_step(model: keras.Model, batch: tuple[Nest, ...], opened: OpenedStrategy, device_kind: str) -> LoweredStep:
    """Lower the train step that `fit` would run; see `common/protocols.py`."""
    parts = given_parts(batch)
    check_dtypes(jax.tree.leaves(parts), model)
    data = jax.tree.map(_shape, parts)
    distribution = opened.strategy
    mesh, batch_axis = abstract_mesh(mesh_sizes(distribution)), distribution.batch_dim_name
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_distribution(None))
        stack.enter_context(patched(unsharded_state_patches(model)))
        stack.enter_context(wrap_lowering_errors(model))
        stack.enter_context(tracing_for_tpu(device_kind))
        is_sharded = isinstance(distribution, keras.distribution.ModelParallel)
        devices = TracedDevices(mesh, batch_axis, is_sharded, exact_attention=isinstance(model, TrainStep))
        stack.enter_context(exact_operations(devices))
        if is_abstract(model):
            stack.enter_context(abstract_variables())
        stack.enter_context(without_layout_warning(model))  # the report has it
        _build(model, data)
        step, state = _stateless(model)
        specs = specs_under(model, distribution)
        arguments = [[_argument(variable, mesh, specs[id(variable)]) for variable in part] for part in state]
        shardings = [[argument.sharding for argument in part] for part in arguments]
        split = NamedSharding(mesh, PartitionSpec(batch_axis))
        jitted = jax.jit(step, donate_argnums=tuple(range(len(state))), out_shardings=(None, *shardings))
        traced = jitted.trace(*arguments, _sharded(data, split))
        _check_callbacks(traced.jaxpr, model)
        lowered = traced.lower(lowering_platforms=("tpu",))
        program = _module_to_bytecode(lowered.compiler_ir("stablehlo"))
        without_lines = lowered.as_text()
        if not isinstance(model, TrainStep):
            warn_of_stock_attention(model, without_lines)
    leaves, rows = jax.tree.leaves(data), layouts_under(model, distribution, specs)
    return LoweredStep(
        program=bytes(program),
        partitions=True,
        examples=leaves[0].shape[0],
        batch_bytes=sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves),
        layers=layer_names(model),
        roles=roles_of(model),
        arguments=_argument_names(state),
        without_lines=without_lines.encode(),
        layouts=tuple(rows),
        complaints=tuple(complaints_of(rows, distribution)),
    )


def _check_callbacks(jaxpr: jax.extend.core.ClosedJaxpr, model: keras.Model) -> None:
    """Raise a `LoweringError` for a step that calls Python, which cannot be lowered without the TPU."""
    pending = [("", jaxpr.jaxpr)]
    while pending:
        scope, inner = pending.pop()
        for equation in inner.eqns:
            source = equation.source_info
            name = f"{scope}/{source.name_stack}".replace("(", "/").replace(")", "")  # jvp(layer)
            if "callback" in equation.primitive.name or equation.primitive.name == "debug_print":
                frames = [] if source.traceback is None else source.traceback.frames
                lines = [(frame.file_name, frame.line_num) for frame in frames[::-1]]
                raise error_of_operation([name], _CALLS_PYTHON.format(equation.primitive.name), model, lines)
            pending += [(name, one) for one in jaxprs_of(equation.params)]


def _argument_names(state: _State) -> dict[str, str]:
    """Map JAX's names for the arguments of the step, such as `optimizer[3]`, to paths of variables."""
    names = ("trainable", "non_trainable", "optimizer", "metrics", "own")
    pairs = zip(names, state, strict=False)
    return {f"{name}[{i}]": path_of(variable) for name, part in pairs for i, variable in enumerate(part)}


def _shape(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return shape and dtype, with 32 bits if JAX narrows 64 bits."""
    return jax.ShapeDtypeStruct(tuple(leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))


def _argument(variable: keras.Variable, mesh: jax.sharding.AbstractMesh, spec: Spec) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype, sharding=sharding)


def _sharded(tree: Nest, sharding: NamedSharding) -> Nest:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def _build(model: keras.Model, data: Nest) -> None:
    """Build layers, metrics and optimizer, as `fit` does before its first step."""
    build_for_step(model, data)
    if isinstance(model, TrainStep):
        model._kte.build_accumulator()


def _stateless(model: keras.Model) -> tuple[Callable[..., tuple[Nest, ...]], _State]:
    """Return the step as a stateless function of lists of values and a batch, and the lists of variables."""
    state = state_variables(model)

    # JAX names arguments after the parameters.
    def step(trainable: Nest, non_trainable: Nest, optimizer: Nest, metrics: Nest, data: Nest) -> tuple[Nest, ...]:
        logs, after = model.train_step((trainable, non_trainable, optimizer, metrics), data)
        return logs, *after

    if not isinstance(model, TrainStep):
        return step, state

    def exact_step(
        trainable: Nest, non_trainable: Nest, optimizer: Nest, metrics: Nest, own: Nest, data: Nest
    ) -> tuple[Nest, ...]:
        logs, after, own = stateless(
            model, model.train_step, None, (trainable, non_trainable, optimizer, metrics), own, data, None
        )
        return logs, *after, own

    return exact_step, (*state, own_variables(model))
