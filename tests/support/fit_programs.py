"""The programs that `fit`, `evaluate` and `predict` hand to a compiler, by the digests of what JAX lowers."""

import contextlib
from unittest import mock

import jax
import jax.numpy as jnp
from jax._src import compiler

from keras_tpu_ext._runtime.jax import update
from keras_tpu_ext._runtime.jax.loop import CompiledLoop
from keras_tpu_ext._runtime.jax.program_digest import canonical_text
from keras_tpu_ext._runtime.jax.traced_devices import tracing_for_tpu

TPU = "TPU v5 lite"


@contextlib.contextmanager
def compiled(device_kind):
    """Yield a dict that gets the canonical text of each program that is compiled for steps, with how often.

    For a TPU, which is not there, nothing is run: logs and outputs are zeros, and the state stays.
    """
    texts, running = {}, []

    def note(module):
        text = canonical_text(module)
        texts[text] = texts.get(text, 0) + 1

    def called(function, arguments, state=slice(0, 2)):
        if device_kind == TPU:
            lowered = function.trace(*arguments).lower(lowering_platforms=("tpu",))
            note(lowered.compiler_ir("stablehlo"))
            outputs = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), lowered.out_info)
            return (outputs[0], *arguments[state]) if state.stop == 2 else arguments
        running.append(True)
        try:
            return function(*arguments)
        finally:
            running.pop()

    def watched(original):
        def compiled(*args):
            function, arguments = original(*args)
            return lambda *arguments: called(function, arguments), arguments

        return compiled

    def watched_flush(original):
        def compiled_flush(*args):
            function, variables = original(*args)
            return lambda *values: called(function, values, slice(None)), variables

        return compiled_flush

    def compile_or_get_cached(backend, computation, *args, **kwargs):
        if running:
            note(computation)
        return stock(backend, computation, *args, **kwargs)

    stock = compiler.compile_or_get_cached
    with (
        mock.patch.object(CompiledLoop, "compiled", _method(CompiledLoop.compiled, watched)),
        mock.patch.object(update, "compiled_flush", watched_flush(update.compiled_flush)),
        mock.patch.object(compiler, "compile_or_get_cached", compile_or_get_cached),
        tracing_for_tpu(device_kind) if device_kind == TPU else contextlib.nullcontext(),
    ):
        yield texts


def _method(function, wrap):
    return lambda self, *args: wrap(lambda *args: function(self, *args))(*args)
