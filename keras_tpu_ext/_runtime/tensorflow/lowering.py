"""The train step of a model on TensorFlow as a program for TPUs, lowered from shapes: nothing is run.

TensorFlow for TPUs lowers it with its kernels for TPUs. Another TensorFlow lowers it as for a CPU: these kernels have
the same meaning, and tensorflow-tpu 2.20 has all of them for TPUs too, without complex128. Where variables are
replicated, stock Keras also averages what a BatchNormalization remembers over replicas; a step lowered here has plain
variables, so these few small collectives are not in it.

`experimental_get_compiler_ir` is an experiment of TensorFlow's, and 2.15 has no StableHLO there.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.lowering import LoweredStep, LoweringError
from keras_tpu_ext._runtime.common.lowering_errors import check_dtypes, told
from keras_tpu_ext._runtime.tensorflow.compile_only import CompileOnlyStrategy
from keras_tpu_ext._runtime.tensorflow.custom_step import wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.functionalize import Functionalized
from keras_tpu_ext._runtime.tensorflow.lowering_errors import check_static, without_kernel
from keras_tpu_ext._runtime.tensorflow.step import ExactStep
from keras_tpu_ext._runtime.tensorflow.tpu import has_tpu_kernels

_TOO_OLD = f"TensorFlow {tf.__version__} cannot write what the TPU compiler reads (StableHLO)"
_NEWER = "ask with TensorFlow 2.16 or newer; for Keras 2 there, install tf-keras and set TF_USE_LEGACY_KERAS=1"


def lower_step(
    model: Any,
    batch: Any,
    replicas: int,
    *,
    build: Callable[[Any, Any, Callable[[Any], Any]], None],
    as_keras_traces: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> LoweredStep:
    """Return the train step that `fit` would run.

    Args:
        model: A compiled model.
        batch: `x`, `y` and `sample_weight`, structures of what has `shape` and `dtype`.
        replicas: Number of devices.
        build: Builds layers, metrics and optimizer for a model, the specs of a batch, and its step.
        as_keras_traces: Makes a function one whose code AutoGraph treats as it does that of Keras's train function.
    """
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise LoweringError(
            f"{model.name!r} was made on {model.distribute_strategy.num_replicas_in_sync} replicas, and preflight "
            "makes those of the target itself",
            cure="make it outside of strategy_scope(), which needs no change in the model",
        )
    parts = batch if batch[2] is not None else batch[:2] if batch[1] is not None else batch[:1]
    check_dtypes(tf.nest.flatten(parts), model)
    whole = tf.nest.map_structure(_described, parts)
    one = tf.nest.map_structure(
        lambda spec: tf.TensorSpec([spec.shape[0] // replicas, *spec.shape[1:]], spec.dtype), whole
    )
    step = wrap_custom_step(model, model.train_step) if isinstance(model, ExactStep) else model.train_step
    with told(model):
        build(model, one, step)
        strategy = CompileOnlyStrategy(replicas)
        results: list[Any] = []

        def on_leaves(*tensors: Any) -> Any:
            data = tf.nest.pack_sequence_as(one, tensors)
            logs = strategy.run(step, args=(data,))
            results[:] = [tf.convert_to_tensor(value) for value in tf.nest.flatten(logs)]
            return list(results)

        traced = tf.function(as_keras_traces(on_leaves), jit_compile=True)
        specs = tf.nest.flatten(one)
        text = _stablehlo(traced, specs, model)
    leaves = tf.nest.flatten(whole)
    return LoweredStep(
        program=text.encode(),
        partitions=False,
        examples=int(leaves[0].shape[0]),
        batch_bytes=sum(math.prod(leaf.shape) * leaf.dtype.size for leaf in leaves),
        layers=tuple(dict.fromkeys(layer.name for layer in model._flatten_layers(include_self=False))),
        roles=_roles(model),
        arguments={},
        framework="TensorFlow",
        results=len(results),
    )


def _stablehlo(traced: Any, specs: list[Any], model: Any) -> str:
    concrete = traced.get_concrete_function(*specs)
    try:
        text = _by_tpu_kernels(concrete, specs) if has_tpu_kernels() else _text_of(traced, specs, "CPU")
    except (ValueError, tf.errors.OpError) as error:
        fault = without_kernel(error, model, concrete.graph)
        if fault is None:
            raise
        raise fault from error
    check_static(text, model)
    # What TensorFlow calls the program has a number in it that counts functions.
    return re.sub(r"^module @\S+", "module @step", text, count=1, flags=re.MULTILINE)


def _by_tpu_kernels(concrete: Any, specs: list[Any]) -> str:
    """Return the program as TensorFlow for TPUs writes it: it takes no variables there, and knows no CPU."""
    on_values = Functionalized(concrete)
    count = len(on_values.specs)

    def step(*tensors: Any) -> Any:
        results, after = on_values(tensors[:count], *tensors[count:])
        return [*results, *after]

    return _text_of(tf.function(step, jit_compile=True, autograph=False), [*on_values.specs, *specs], "TPU")


def _text_of(traced: Any, specs: list[Any], platform: str) -> str:
    read = traced.experimental_get_compiler_ir(*specs)
    if "platform_name" not in inspect.signature(read).parameters:
        raise LoweringError(_TOO_OLD, cure=_NEWER)
    return str(read(stage="stablehlo", platform_name=platform))


def _described(leaf: Any) -> Any:
    return tf.TensorSpec(leaf.shape, "float32" if str(leaf.dtype) == "float64" else leaf.dtype)


def _roles(model: Any) -> dict[str, str]:
    """Return what names of operations stand for beside those of layers."""
    found = {"compile_loss": "(loss)", "compile_metrics": "(metrics)"}
    optimizer = model.optimizer
    while optimizer is not None:
        found[getattr(optimizer, "name", "") or type(optimizer).__name__] = "(optimizer)"
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return found
