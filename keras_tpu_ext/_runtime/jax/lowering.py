"""The train step of a model on JAX as a program for TPUs, lowered from shapes: nothing is run, and no TPU is there.

Private names that this module leans on (tests/_runtime/test_jax_private_names.py watches them): of Keras's `Trainer`
`_symbolic_build`; of JAX `jax._src.interpreters.mlir.module_to_bytecode`, which keeps the names of operations.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax._src.interpreters import mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.common.lowering_errors import check_dtypes, wrap_lowering_errors
from keras_tpu_ext._runtime.compat.keras3 import path_of
from keras_tpu_ext._runtime.jax.loop import CompiledLoop, own_variables
from keras_tpu_ext._runtime.jax.scope import within
from keras_tpu_ext._runtime.jax.step import TrainStep
from keras_tpu_ext._runtime.keras3.models import flatten_layers

_AXIS = "batch"


def lower_step(model: Any, batch: Any, replicas: int) -> LoweredStep:
    """Return the train step that `fit` would run; see `common/protocols.py`."""
    parts = batch if batch[2] is not None else batch[:2] if batch[1] is not None else batch[:1]
    check_dtypes(jax.tree.leaves(parts), model)
    data = jax.tree.map(_described, parts)
    with within(None), wrap_lowering_errors(model):
        _build(model, data)
        step, state = _step_of(model)
        mesh = AbstractMesh((replicas,), (_AXIS,))
        everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(_AXIS))
        arguments = [_placed([variable.value for variable in part], everywhere) for part in state]
        donated = tuple(range(len(arguments)))
        outputs = (None, *[everywhere] * len(arguments))
        jitted = jax.jit(step, donate_argnums=donated, out_shardings=outputs)
        lowered = jitted.trace(*arguments, _placed(data, split)).lower(lowering_platforms=("tpu",))
        program = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
    leaves = jax.tree.leaves(data)
    return LoweredStep(
        program=bytes(program),
        partitions=True,
        examples=leaves[0].shape[0],
        batch_bytes=sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves),
        layers=tuple(dict.fromkeys(layer.name for layer in flatten_layers(model))),
        roles=_roles(model),
        arguments=_arguments(state),
        framework="JAX",
        without_lines=lowered.as_text().encode(),
    )


def _arguments(state: tuple[list[Any], ...]) -> dict[str, str]:
    """Return the variables by what JAX calls the step's arguments, such as `optimizer[3]`."""
    names = ("trainable", "non_trainable", "optimizer", "metrics", "own")
    pairs = zip(names, state, strict=False)
    return {f"{name}[{i}]": path_of(variable) for name, part in pairs for i, variable in enumerate(part)}


def _described(leaf: Any) -> Any:
    """Return shape and dtype, the latter as JAX takes it: 32 bits where there are 64."""
    return jax.ShapeDtypeStruct(tuple(leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))


def _placed(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def _build(model: Any, data: Any) -> None:
    """Build layers, metrics and the optimizer as `fit` does before its first step."""
    model._symbolic_build(data_batch=data)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    if isinstance(model, TrainStep):
        model._build_accumulator()


def _step_of(model: Any) -> tuple[Any, tuple[list[Any], ...]]:
    """Return the step as a function of the values of some lists of variables and of a batch, and these lists."""
    optimizer = [] if model.optimizer is None else model.optimizer.variables
    state = (model.trainable_variables, model.non_trainable_variables, optimizer, model.metrics_variables)

    def step(trainable: Any, non_trainable: Any, optimizer: Any, metrics: Any, data: Any) -> Any:
        logs, after = model.train_step((trainable, non_trainable, optimizer, metrics), data)
        return logs, *after

    if not isinstance(model, TrainStep):
        return step, state
    execution = CompiledLoop(model, lambda state, data: model.train_step(state, data))

    def exact_step(trainable: Any, non_trainable: Any, optimizer: Any, metrics: Any, own: Any, data: Any) -> Any:
        logs, after, own = execution.stateless((trainable, non_trainable, optimizer, metrics), own, data, None)
        return logs, *after, own

    return exact_step, (*state, own_variables(model))


def _roles(model: Any) -> dict[str, str]:
    """Return what names of operations stand for beside those of layers."""
    found = {"compile_loss": "(loss)", "compile_metrics": "(metrics)"}
    optimizer = model.optimizer
    while optimizer is not None:
        found[optimizer.name] = "(optimizer)"
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return found
