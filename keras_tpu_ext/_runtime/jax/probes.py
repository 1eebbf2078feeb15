"""Probes of a train step, on JAX, and the executions of a running `fit`."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_ext._runtime.common.executions import CompileWatch, Execution, Interception, Step, timed
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3_jax import start_profiler as start_profiler
from keras_tpu_ext._runtime.jax.abstract import call_abstractly as call_abstractly
from keras_tpu_ext._runtime.jax.data_adapter import Group
from keras_tpu_ext._runtime.jax.devices import num_workers
from keras_tpu_ext._runtime.jax.flops import count_flops as count_flops
from keras_tpu_ext._runtime.jax.loop import steps_of
from keras_tpu_ext._runtime.jax.lowering import lower_programs as lower_programs
from keras_tpu_ext._runtime.jax.lowering import lower_step as lower_step
from keras_tpu_ext._runtime.jax.program import TrainStep

# Tracing to a jaxpr, lowering to StableHLO, and the compiler or, instead, reading its result from the cache.
_EVENTS = "/jax/core/compile/"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
# What an event says of the cache: hits and misses. Each program asks first, and a hit takes the miss back.
_CACHE = {
    "/jax/compilation_cache/compile_requests_use_cache": (0, 1),
    "/jax/compilation_cache/cache_hits": (1, -1),
    "/jax/compilation_cache/compile_time_saved_sec": (0, 0),
}
_open: weakref.WeakSet[CompileWatch] = weakref.WeakSet()
_lock = threading.Lock()

stop_profiler = jax.profiler.stop_trace


class JaxExecution(Execution):
    """An `Execution` on JAX."""

    reads_in_graph = False

    def run_reading(self, clock: Callable[[], float], note: Callable[[float], object]) -> Nest:
        """Make the call, and call `note` with the seconds of each reading of batches."""
        return self._function(*self._args[:-1], timed(self._args[-1], clock, note))

    def output_of(self, result: Nest) -> Nest:
        """Return one of the logs."""
        logs: Nest = result[0]  # type: ignore[index]
        if isinstance(logs, dict):  # the fast way
            for log in logs.values():
                if isinstance(log, jax.Array):
                    return log
        return next(iter(jax.tree.leaves(logs)), None)

    def is_ready(self, output: Nest) -> bool:
        """Return whether an array is there."""
        return not isinstance(output, jax.Array) or output.is_ready()

    def wait_for(self, result: Nest) -> None:
        """Wait for the arrays."""
        jax.block_until_ready(result)

    def run_watched(self, watch: CompileWatch) -> tuple[Nest, float]:
        """Make the call; return its result, and the seconds it compiled, without what its batches compile."""
        self._taken: list[Nest] = []
        programs, before = watch.programs, watch.seconds()
        result = self._function(*self._args[:-1], self._watched_batches(watch))
        # JAX also tells of a trace, of microseconds, where a new jit finds the program of an equal function.
        return result, watch.seconds() - before if watch.programs > programs else 0.0

    def _watched_batches(self, watch: CompileWatch) -> Iterator[Nest]:
        while True:
            watch.is_paused = True
            try:
                item = next(self._args[-1])
            except StopIteration:
                return
            finally:
                watch.is_paused = False
            self._taken.append(item)
            yield item

    def batches(self) -> list[Nest]:
        """Return the shapes of its batches."""
        return [shapes for item in self._taken for shapes in _shapes_of_batches(item)]

    def _can_take_from(self, iterator: Iterator[Nest]) -> bool:
        return hasattr(iterator, "__next__") and num_workers() == 1

    def _items_of_execution(self) -> int:
        # `TrainStep` takes all batches of an execution as one item.
        return 1 if isinstance(self._model, TrainStep) else self.steps

    def _steps_of(self, item: Any) -> int:
        return steps_of(item) if isinstance(self._model, TrainStep) else 1

    def _bytes_of(self, item: Nest) -> int:
        return sum(
            leaf.nbytes if hasattr(leaf, "nbytes") else np.asarray(leaf).nbytes for leaf in jax.tree.leaves(item)
        )

    def _source_of(self, items: Sequence[Nest]) -> Iterator[Nest]:
        jax.block_until_ready([leaf for leaf in jax.tree.leaves(items) if isinstance(leaf, jax.Array)])
        return iter(items)


def _shapes_of_batches(item: Nest) -> list[Nest]:
    """Return the shapes of a batch in each group of an item, or of the batch that it is."""
    if isinstance(item, list) and item and isinstance(item[0], Group):
        return [_shapes(group.data, axis=0 if group.steps is None else 1) for group in item]
    return [_shapes(item, axis=0)]


def _shapes(batch: Nest, axis: int) -> Nest:
    def shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape[axis:], jax.dtypes.canonicalize_dtype(leaf.dtype))

    return jax.tree.map(shape, batch)


def intercept_executions(
    model: keras.Model, around: Callable[[Execution], Nest], step: Step = "train"
) -> Interception:
    """Pass each call of the train or test function of `model`, which is in `fit`, to `around`."""
    return Interception(model, JaxExecution, around, step)


def watch_compiles() -> CompileWatch:
    """Return a `CompileWatch` that begins now and ends when nobody holds it."""
    _listen()
    watch = CompileWatch()
    with _lock:
        _open.add(watch)
    return watch


@functools.cache
def _listen() -> None:
    # Once for the process: in older versions of JAX only a private name takes a listener back.
    jax.monitoring.register_event_duration_secs_listener(_note)
    jax.monitoring.register_event_listener(_note)


def _note(event: str, seconds: float = 0.0, **_: str | int) -> None:
    ended = time.perf_counter()
    with _lock:
        watches = list(_open)
    for watch in watches:
        if event.startswith(_EVENTS):
            watch.add(ended - seconds, ended, programs=event == _LOWERED)
        elif event in _CACHE:
            watch.count_cache(*_CACHE[event], saved=max(seconds, 0.0))


def profiled_step(name: str, step: int) -> AbstractContextManager[object]:
    """Return a context whose span a running profiler records under a name, with the number of a step."""
    return jax.profiler.StepTraceAnnotation(name, step_num=step)
