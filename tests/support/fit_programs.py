"""The programs that `fit`, `evaluate` and `predict` hand to a compiler, and those that are lowered without them."""

import contextlib
import difflib
import hashlib
import re
from unittest import mock

import jax
import jax.numpy as jnp
from jax._src import compiler
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

import keras_tpu_ext as kte
from keras_tpu_ext._runtime import devices, probes
from keras_tpu_ext._runtime.jax import program, update
from keras_tpu_ext._runtime.jax.loop import CompiledLoop
from keras_tpu_ext._runtime.jax.saved_programs import canonical_text
from keras_tpu_ext._runtime.jax.traced_devices import tracing_for_tpu

CPU, TPU = "cpu", "TPU v5 lite"
_OF_KERAS = ("jit_train_step", "jit_test_step", "jit_predict_step")  # which its own loops compile


@contextlib.contextmanager
def compiled_programs(device_kind):
    """Yield a set that gets the canonical text of each program of a step that JAX's compiler gets in the block.

    Those for a TPU, which is not there, are lowered for one and not run: logs and outputs are zeros, the state stays.
    """
    texts, is_running = set(), []
    stock_compile, stock_compiled, stock_flush = (
        compiler.compile_or_get_cached,
        CompiledLoop.compiled,
        program.compiled_flush,
    )

    def call(function, arguments, kept):
        if device_kind == CPU:
            is_running.append(True)
            try:
                return function(*arguments)
            finally:
                is_running.pop()
        lowered = function.trace(*arguments).lower(lowering_platforms=("tpu",))
        texts.add(canonical_text(lowered.compiler_ir("stablehlo")))
        results = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), lowered.out_info)
        return (*results[: len(results) - kept], *arguments[:kept])

    def compiled(loop, *group):
        function, arguments = stock_compiled(loop, *group)
        return lambda *arguments: call(function, arguments, kept=2), arguments

    def compiled_flush(*model):
        function, variables = stock_flush(*model)
        return lambda *values: call(function, values, kept=4), variables

    def compile_or_get_cached(backend, computation, *args, **kwargs):
        name = ir.StringAttr(computation.operation.attributes["sym_name"]).value
        if is_running or name in _OF_KERAS:
            texts.add(canonical_text(computation))
        return stock_compile(backend, computation, *args, **kwargs)

    with (
        mock.patch.object(CompiledLoop, "compiled", compiled),
        mock.patch.object(program, "compiled_flush", compiled_flush),
        mock.patch.object(compiler, "compile_or_get_cached", compile_or_get_cached),
        contextlib.nullcontext() if device_kind == CPU else _on_tpu(device_kind),
    ):
        yield texts


@contextlib.contextmanager
def _on_tpu(device_kind):
    """Trace for a TPU, on which windows are open: where nothing is run, none would be."""
    always = mock.patch.object(update.GradientAccumulator, "is_open", return_value=True)
    with tracing_for_tpu(device_kind), always:
        yield


def text_of(lowered):
    """Return the canonical text of a `LoweredStep`."""
    with mlir.make_ir_context():
        text = canonical_text(ir.Module.parse(lowered.program))
    assert hashlib.sha256(text.encode()).hexdigest() == lowered.digest
    return text


def names_of(texts, lowered):
    """Return the names of the lowered programs that are among `texts`; a text that is none of them is an error."""
    by_text = {text_of(step): step.name for step in lowered}
    for text in texts:
        if text not in by_text:
            closest = min(by_text, key=lambda other: abs(len(other) - len(text)))
            lines = [re.split(r"\n|, (?=%arg|tensor)", one) for one in (closest, text)]
            changes = list(difflib.unified_diff(*lines, by_text[closest], "compiled", lineterm="", n=0))
            raise AssertionError("\n".join(line[:200] for line in changes[:40]))
    return sorted(by_text[text] for text in texts)


def programs_of_fit(make, scope, device_kind, x, y, batch_size):
    """Return the texts of the programs of `fit` with validation, unless `y` is `None`, and of `predict`."""
    with kte.strategy_scope(require="cpu", **{"replicas": None if "mesh" in scope else 8, **scope}):
        model = make()
    with compiled_programs(device_kind) as texts:
        checked = {} if y is None else {"validation_data": (x, y)}
        model.fit(x, y, batch_size=batch_size, epochs=2, verbose=0, **checked)
        model.predict(x, batch_size=batch_size, verbose=0)
    return texts


def programs_without_fit(make, scope, device_kind, x, y):
    """Return the programs of a model whose variables have no values, for devices that are not there."""
    scope = dict(scope)
    count, shard, mesh = scope.pop("replicas", 8), scope.pop("shard", None), scope.pop("mesh", {"data": 8})
    opened = devices.abstract_strategy(count)
    if shard:
        opened = devices.shard(opened, shard, tuple(mesh.items()))
    with kte.strategy_scope(require="cpu", replicas=1, **scope):
        model = probes.call_abstractly(make)
    return probes.lower_programs(model, x if y is None else (x, y), opened, device_kind)


def rows_of(data, rows):
    """Return some rows of all arrays in a structure."""
    return jax.tree.map(lambda leaf: leaf[rows], data)  # to which `None` is no leaf
