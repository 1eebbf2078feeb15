"""Lower a train step of TensorFlow to StableHLO for the TPU compiler, from shapes: nothing is run.

XLA's kernels for CPUs lower the step, with the same meaning: tensorflow-tpu 2.20 has each of them for TPUs too,
except for complex128. A step lowered here has plain variables, so it lacks the small collectives with which stock
Keras averages the statistics of a replicated `BatchNormalization`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NoReturn

import tensorflow as tf

from keras_tpu_ext._runtime.common.lowering import (
    LoweredStep,
    LoweringError,
    check_dtypes,
    error_of_lookup,
    error_of_operation,
    layer_names,
    roles_of,
    wrap_lowering_errors,
)
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.common.values import OpenedStrategy
from keras_tpu_ext._runtime.compat import build_for_step
from keras_tpu_ext._runtime.compat.autograph import as_keras_traces
from keras_tpu_ext._runtime.compat.tensorflow import WRITES_STABLEHLO
from keras_tpu_ext._runtime.tensorflow.compile_only import CompileOnlyStrategy
from keras_tpu_ext._runtime.tensorflow.custom_step import wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.devices import has_tpu_kernels
from keras_tpu_ext._runtime.training.model import ExactModel
from keras_tpu_ext._runtime.training.step_state import step_state_of

_TOO_OLD = f"TensorFlow {tf.__version__} cannot write what the TPU compiler reads (StableHLO)"
_NEWER = "ask with TensorFlow 2.19 or newer; for Keras 2 there, install tf-keras and set TF_USE_LEGACY_KERAS=1"
_TPU_KERNELS = (
    f"this TensorFlow, {tf.__version__}, was built for TPUs (tensorflow-tpu), and such a build does not give out the "
    "program of a train step"
)
_WITHOUT_TPU_KERNELS = (
    "ask in an environment with tensorflow-cpu, which lowers the same program: tensorflow-tpu 2.20 has every "
    "operation that XLA has for CPUs, complex128 apart"
)

_NO_KERNEL = re.compile(r"(\w+) \(No registered '(\w+)' OpKernel for \w+ devices.*?\{\{node ([^}]+)\}\}", re.DOTALL)
# An unbounded dimension; the compiler decides about one with a known bound.
_DYNAMIC = re.compile(r"mhlo\.unknown|tensor<\?")
_LOCATION = re.compile(r"loc\(([^\n]*)\)\s*$", re.MULTILINE)
_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)


def lower_programs(model: Model, *arguments: object, **options: object) -> NoReturn:
    """Refuse: TensorFlow takes no compiled program; see `training/protocols.py`."""
    raise LoweringError(
        "TensorFlow compiles its programs itself, and takes none that was compiled elsewhere",
        cure="train with Keras 3 on JAX, KERAS_BACKEND=jax",
    )


def lower_step(model: Model, batch: Nest, opened: OpenedStrategy, device_kind: str) -> LoweredStep:
    """Lower the train step that `fit` would run; see `training/protocols.py`."""
    _check_can_lower(model)
    check_dtypes(tf.nest.flatten(batch), model)
    whole = tf.nest.map_structure(_spec, batch)
    replicas = opened.num_replicas
    one = tf.nest.map_structure(
        lambda spec: tf.TensorSpec([spec.shape[0] // replicas, *spec.shape[1:]], spec.dtype), whole
    )
    step = wrap_custom_step(model, model.train_step) if isinstance(model, ExactModel) else model.train_step
    with wrap_lowering_errors(model):
        _build(model, one, step)
        strategy = CompileOnlyStrategy(replicas)
        results: list[tf.Tensor] = []

        def on_leaves(*tensors: tf.Tensor) -> list[tf.Tensor]:
            data = tf.nest.pack_sequence_as(one, tensors)
            logs = strategy.run(step, args=(data,))
            results[:] = [tf.convert_to_tensor(value) for value in tf.nest.flatten(logs)]
            return list(results)

        traced = tf.function(as_keras_traces(on_leaves), jit_compile=True)
        text = _stablehlo(traced, tf.nest.flatten(one), model)
    leaves = tf.nest.flatten(whole)
    return LoweredStep(
        program=text.encode(),
        partitions=False,
        examples=int(leaves[0].shape[0]),
        batch_bytes=sum(math.prod(leaf.shape) * leaf.dtype.size for leaf in leaves),
        layers=layer_names(model),
        roles=roles_of(model),
        arguments={},
        results=len(results),
    )


def _build(model: Model, data_spec: Nest, step: Callable[[Nest], Nest]) -> None:
    """Create the variables that the step needs."""

    def on_leaves(*leaves: tf.Tensor) -> Nest:
        return step(tf.nest.pack_sequence_as(data_spec, leaves))

    traced = tf.function(as_keras_traces(on_leaves))
    build_for_step(model, data_spec, lambda: traced.get_concrete_function(*tf.nest.flatten(data_spec)))
    if step_state_of(model) is not None:
        model._kte.build_accumulator()


def _check_can_lower(model: Model) -> None:
    if not WRITES_STABLEHLO:
        raise LoweringError(_TOO_OLD, cure=_NEWER)
    if has_tpu_kernels():
        raise LoweringError(_TPU_KERNELS, cure=_WITHOUT_TPU_KERNELS)
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        raise LoweringError(
            f"{model.name!r} was made on {replicas} replicas, and preflight makes those of the target itself",
            cure="make it outside of strategy_scope(), which needs no change in the model",
        )


def _stablehlo(traced: tf.types.experimental.PolymorphicFunction, specs: list[tf.TensorSpec], model: Model) -> str:
    graph = traced.get_concrete_function(*specs).graph
    try:
        text = str(traced.experimental_get_compiler_ir(*specs)(stage="stablehlo", platform_name="CPU"))
    except (ValueError, tf.errors.OpError) as error:
        missing = _missing_operation(error, model, graph)
        if missing is None:
            raise
        raise missing from error
    _check_static(text, model)
    # TensorFlow counts functions in the name of the program.
    return re.sub(r"^module @\S+", "module @step", text, count=1, flags=re.MULTILINE)


def _spec(leaf: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec(leaf.shape, "float32" if str(leaf.dtype) == "float64" else leaf.dtype)


def _missing_operation(error: Exception, model: Model, graph: tf.Graph) -> LoweringError | None:
    """Explain an error about operations that TPUs lack; `None` for any other error."""
    if "is_initialized" in str(error):  # of a table, which is a resource but not a variable
        return error_of_lookup(
            "the model looks something up in a table of TensorFlow, which a TPU does not have", model
        )
    found = _NO_KERNEL.findall(str(error))
    if not found:
        return None
    names = sorted({operation for _, operation, _ in found})
    operations = f"the operation {names[0]}" if len(names) == 1 else f"the operations {', '.join(names)}"
    nodes = [node for _, _, node in found]
    cause = f"a TPU does not have {operations} of TensorFlow"
    return error_of_operation(nodes, cause, model, _traceback_of(graph, nodes))


def _check_static(program: str, model: Model) -> None:
    """Raise a `LoweringError` for the first operation of the program whose result has no static shape."""
    found = _DYNAMIC.search(program)
    if found is None:
        return
    end = program.find("\n", found.start())
    line = program[program.rfind("\n", 0, found.start()) + 1 : end]
    definitions = dict(_DEFINITION.findall(program))
    location = _LOCATION.search(line)
    names = _names_in(location[1] if location else "", definitions)
    raise error_of_operation(names, "the shape of a tensor depends on values, which is a dynamic shape", model)


def _traceback_of(graph: tf.Graph, nodes: list[str]) -> list[tuple[str, int]]:
    """Return files and lines of the frames that created the first of `nodes` found in `graph`."""
    operations = {operation.name: operation for operation in graph.get_operations()}
    operation = next((operations[node] for node in nodes if node in operations), None)
    return [] if operation is None else [(frame.filename, frame.lineno) for frame in operation.traceback]


def _names_in(location: str, definitions: dict[str, str], depth: int = 4) -> list[str]:
    """Return the names of operations in an MLIR location, and in the locations that it refers to."""
    names = re.findall(r'"([^"]+)"', location)
    if depth:
        for reference in re.findall(r"#loc\d*", location):
            names += _names_in(definitions.get(reference, ""), definitions, depth - 1)
    return names
