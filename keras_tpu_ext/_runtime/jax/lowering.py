"""Lower the programs of JAX, from shapes: nothing is run, and no TPU is needed.

Each is the very function that `fit` calls, of `CompiledLoop`, for the shapes of what `fit` calls it with.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import keras
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_ext._runtime.common.layouts import Spec
from keras_tpu_ext._runtime.common.lowering import (
    LoweredStep,
    check_dtypes,
    error_of_operation,
    layer_names,
    roles_of,
    wrap_lowering_errors,
)
from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.common.values import OpenedStrategy
from keras_tpu_ext._runtime.compat.keras3 import build_for_step, path_of
from keras_tpu_ext._runtime.compat.keras3_jax import unsharded_state_patches
from keras_tpu_ext._runtime.jax.abstract import abstract_variables, is_abstract
from keras_tpu_ext._runtime.jax.attention import warn_of_stock_attention
from keras_tpu_ext._runtime.jax.data_adapter import Method, batches_of, host_batch
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.flops import jaxprs_of
from keras_tpu_ext._runtime.jax.layouts import complaints_of, layouts_under, specs_under, without_layout_warning
from keras_tpu_ext._runtime.jax.loop import most_steps
from keras_tpu_ext._runtime.jax.program import TrainStep, predict_step_of
from keras_tpu_ext._runtime.jax.saved_programs import signature_of
from keras_tpu_ext._runtime.jax.scope import abstract_array, bound, replicated, shard_data, use_distribution
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, lowering_for
from keras_tpu_ext._runtime.jax.update import compiled_flush, own_variables, state_variables
from keras_tpu_ext._runtime.training.execution_schedule import steps_that_fit

_module_to_bytecode: Any = private("jax._src.interpreters.mlir:module_to_bytecode")

_CALLS_PYTHON = (
    "{} calls Python on the host in every step, for which a TPU would wait; without a TPU it cannot be compiled"
)
# The variables of a state, by the numbers of their parts in `state_variables`.
_PARTS: dict[Method, tuple[int, ...]] = {"fit": (0, 1, 2, 3), "evaluate": (0, 1, 3), "predict": (0, 1)}


class _Program(NamedTuple):
    """A program of a model."""

    method: Method | None  # whose steps it runs; `None` if it ends a window of accumulated batches
    steps: int = 1  # the most that it runs
    padded: bool = False  # whether batches may be short

    @property
    def name(self) -> str:
        """What it does."""
        does = {"fit": "train", None: "end of a window"}.get(self.method, str(self.method))
        more = [f"{self.steps} steps"] * (self.steps > 1) + ["short batches"] * self.padded
        return ", ".join([does, *more])


def lower_step(model: keras.Model, batch: Nest, opened: OpenedStrategy, device_kind: str) -> LoweredStep:
    """Lower the train step that `fit` runs; see `training/protocols.py`."""
    (step,) = _lower(model, batch, opened, device_kind, lambda model, batch: [_Program("fit")])
    return step


def lower_programs(
    model: keras.Model,
    batch: Nest,
    opened: OpenedStrategy,
    device_kind: str,
    *,
    step_seconds: float | None = None,
) -> list[LoweredStep]:
    """Lower the programs of `fit`, `evaluate` and `predict`; see `training/protocols.py`."""

    def programs(model: Model, batch: Nest) -> list[_Program]:
        if not isinstance(model, TrainStep):  # Keras's own loop calls a program for each step
            return [_Program(method) for method in _PARTS]
        is_auto, found = model._kte.schedule is not None, []
        # An eighth of what may be: there is room for as many batches also where there are fewer.
        most = steps_that_fit(step_seconds, most_steps(8 * _bytes_of(batch)))
        sizes = sorted({1, most}) if is_auto else [int(model.steps_per_execution)]
        for method in _PARTS:
            pads = [False] + [True] * model._kte.separability.may_pad(method, batch)
            steps = [1] if method == "predict" and is_auto else sizes
            found += [_Program(method, *each) for each in itertools.product(steps, pads)]
        has_window = model._kte.compiled_state().accumulator(model.optimizer) is not None
        return found + [_Program(None)] * has_window

    found = _lower(model, batch, opened, device_kind, programs)
    # Short batches may make no difference, in a `predict` for instance.
    return list({step.digest: step for step in reversed(found)}.values())[::-1]


def _lower(
    model: keras.Model,
    batch: Nest,
    opened: OpenedStrategy,
    device_kind: str,
    programs: Callable[[Model, Nest], Iterable[_Program]],
) -> list[LoweredStep]:
    """Lower programs of a model, which `programs` returns for the model, once built, and shapes of a batch."""
    check_dtypes(jax.tree.leaves(batch), model)
    batch = jax.tree.map(lambda leaf: abstract_array(leaf.shape, leaf.dtype, None), batch)
    distribution, is_exact = opened.strategy, isinstance(model, TrainStep)
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_distribution(None))
        stack.enter_context(patched(unsharded_state_patches(model)))
        stack.enter_context(wrap_lowering_errors(model))
        stack.enter_context(lowering_for(device_kind))
        stack.enter_context(exact_operations(TracedDevices.of(distribution, exact_attention=is_exact)))
        if is_abstract(model):
            stack.enter_context(abstract_variables())
        stack.enter_context(without_layout_warning(model))  # the report has it
        _build(model, batch)
        stack.enter_context(bound(model, distribution))
        lowering = _Lowering(model, batch, distribution, _platform(device_kind))
        return [lowering.lower(program) for program in programs(model, batch)]


class _Lowering:
    """Lowers programs of a built model that is bound to a distribution."""

    def __init__(
        self, model: Model, batch: Nest, distribution: keras.distribution.Distribution, platform: str
    ) -> None:
        self._model = model
        self._batch = batch
        self._distribution = distribution
        self._platform = platform
        self._specs = specs_under(model, distribution)
        rows = layouts_under(model, distribution, self._specs)
        self._facts: dict[str, Any] = {
            "partitions": True,
            "examples": jax.tree.leaves(batch)[0].shape[0],
            "batch_bytes": _bytes_of(batch),
            "layers": layer_names(model),
            "roles": roles_of(model),
            "layouts": tuple(rows),
            "complaints": tuple(complaints_of(rows, distribution)),
        }

    def lower(self, program: _Program) -> LoweredStep:
        """Lower a program."""
        function, arguments, names = self._call(program)
        traced = function.trace(*arguments)
        _check_callbacks(traced.jaxpr, self._model)
        lowered = traced.lower(lowering_platforms=(self._platform,))
        module = lowered.compiler_ir("stablehlo")
        signature, options = signature_of(lowered, self._distribution.device_mesh.devices.size)
        if not isinstance(self._model, TrainStep):
            warn_of_stock_attention(self._model, str(module))
        return LoweredStep(
            program=bytes(_module_to_bytecode(module)),
            arguments=names,
            digest=signature.digest,
            name=program.name,
            steps=program.steps,
            signature=signature,
            compile_options=options,
            **self._facts,
        )

    def _call(self, program: _Program) -> tuple[Any, Sequence[Nest], dict[str, str]]:
        """Return what is called for a program, with which shapes, and JAX's names for its variables."""
        model, method = self._model, program.method
        if method is None:
            function, parts = compiled_flush(model, model.optimizer)
            return function, [self._shapes(part) for part in parts], {}
        variables, own = [state_variables(model)[i] for i in _PARTS[method]], own_variables(model)
        state = tuple(self._shapes(part) for part in variables)
        names = {f"state[{i}][{j}]": path_of(one) for i, part in enumerate(variables) for j, one in enumerate(part)}
        names |= {f"own[{i}]": path_of(one) for i, one in enumerate(own)}
        if not isinstance(model, TrainStep):
            return *self._call_of_keras(method, state), names
        batches = batches_of(model, fills_up=program.padded)
        (group,) = batches.groups([host_batch(self._batch)], program.steps)
        return *model._kte.compiled_loop(method).compiled(state, self._shapes(own), group), names

    def _call_of_keras(self, method: Method, state: tuple[Nest, ...]) -> tuple[Any, tuple[Nest, ...]]:
        """Return what Keras's own loop calls, and with which shapes."""
        model = self._model
        step = {"fit": model.train_step, "evaluate": model.test_step, "predict": predict_step_of(model)}[method]
        shardings = (None, jax.tree.map(lambda leaf: leaf.sharding, state))
        jitted = jax.jit(step, donate_argnums=0, out_shardings=shardings)
        return jitted, (state, shard_data(self._batch, self._distribution, axis=0))

    def _shapes(self, variables: Sequence[keras.Variable]) -> list[jax.ShapeDtypeStruct]:
        return [self._shape(variable, self._specs[id(variable)]) for variable in variables]

    def _shape(self, variable: keras.Variable, spec: Spec) -> jax.ShapeDtypeStruct:
        everywhere = replicated(self._distribution)
        sharding = None if everywhere is None else NamedSharding(everywhere.mesh, PartitionSpec(*spec))
        return abstract_array(variable.shape, variable.dtype, sharding)


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


def _build(model: keras.Model, batch: Nest) -> None:
    """Build layers, metrics and optimizer, as `fit` does before its first step."""
    build_for_step(model, batch)
    if isinstance(model, TrainStep):
        model._kte.build_accumulator()


def _platform(device_kind: str) -> str:
    """Return JAX's platform of devices of a kind."""
    if device_kind.startswith("TPU"):
        return "tpu"
    return "cpu" if device_kind.lower() == "cpu" else "cuda"


def _bytes_of(batch: Nest) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch))
