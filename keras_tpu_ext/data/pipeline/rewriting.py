"""The rewrites of `optimize`, one transformation at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from keras_tpu_ext.data.pipeline import nodes
from keras_tpu_ext.data.pipeline.caching import cache_before_shuffle, cache_position
from keras_tpu_ext.data.pipeline.effects import FunctionEffects, effects_of, reason_to_keep

ALL = frozenset({"map", "interleave", "flat_map", "batch", "prefetch", "cache", "threads"})
_AHEAD = 8  # files that a flat_map opens ahead of time
# TensorFlow has a thread for each core, and one that waits for storage does nothing else: opening a file on a network
# takes some 20 ms, so two threads open 100 files a second and 64 threads 3200 (benchmarks/input_ladder.py).
READS = 64
_TRANSPARENT = {nodes.OPTIONS, nodes.TAKE, nodes.SKIP, nodes.REPEAT}


def has_threads(dataset: Any) -> bool:
    """Return whether the options set a private threadpool."""
    return bool(dataset.options().threading.private_threadpool_size)


def opens_files_in_parallel(dataset: Any) -> bool:
    """Return whether a parallel map opens files; an interleave does so on its own threads."""
    maps = (node for node in nodes.nodes_of(dataset) if nodes.class_name(node) == nodes.PARALLEL_MAP)
    return any(effects_of(node).reads_files for node in maps)


class Rewriting:
    """One call of `optimize`."""

    def __init__(
        self,
        dataset: Any,
        *,
        allow_reorder: bool = False,
        allow_stateful: bool = False,
        cache_bytes: float = 0,
        only: Collection[str] = ALL,
    ) -> None:
        self.dataset, self.only = dataset, frozenset(only)
        self.allow_reorder, self.allow_stateful = allow_reorder, allow_stateful
        self.cache_bytes = cache_bytes
        self.done: list[str] = []  # a sentence for each change
        self.left: list[str] = []  # a sentence for each change that was not made, with the reason
        self.applied: set[str] = set()  # the rewrites that changed something
        # If autotuning is off, AUTOTUNE means one call.
        is_tuned = dataset.options().autotune.enabled is not False
        self._calls = tf.data.AUTOTUNE if is_tuned else max(2, os.cpu_count() or 2)
        self._buffer = tf.data.AUTOTUNE if is_tuned else 2
        self._order = "false" if allow_reorder else "true"
        self._opens_files = False  # whether a map that opens files was made parallel

    def apply(self) -> Any:
        """Return the rewritten dataset; the same object if nothing changes."""
        self._cached, reason = cache_position(self.dataset, self.cache_bytes)
        self._leave(reason)
        made = nodes.rewrite(self.dataset, self._change, self._keeps_inputs)
        made = self._with_threads(made)
        return self._prefetched(made) if "prefetch" in self.only else made

    def _keeps_inputs(self, node: Any) -> bool:
        reason = reason_to_keep(node)
        self._leave(reason)
        return bool(reason)

    def _change(self, node: Any, inputs: list[Any]) -> Any:
        changes: dict[str, Callable[[Any, list[Any]], Any]] = {
            nodes.MAP: self._map,
            nodes.INTERLEAVE: self._interleave,
            nodes.FLAT_MAP: self._flat_map,
            nodes.BATCH: self._batch,
            nodes.CACHE: self._cache,
        }
        change = changes.get(nodes.class_name(node))
        made = change(node, inputs) if change and inputs and nodes.method_name(node) in self.only else None
        if node is not self._cached or "cache" not in self.only:
            return made
        self._note("cache", f"a cache after {nodes.method_name(node)}, whose elements are the same in every epoch")
        return (made or (nodes.rebuild(node, inputs) if inputs else node)).cache()

    def _map(self, node: Any, inputs: list[Any]) -> Any:
        label = f"map({nodes.function_name(node)})"
        if nodes.attribute(node, "_force_synchronous"):
            return self._leave(f"{label} is synchronous=True, as you asked.")
        effects = effects_of(node)
        if not self._may_run_in_parallel(label, effects):
            return None
        self._note("map", f"{label} runs in parallel" + (f", {READS} calls at once" if effects.reads_files else ""))
        self._opens_files |= effects.reads_files
        calls = READS if effects.reads_files else self._calls
        extra = {"_use_unbounded_threadpool": False} if hasattr(node, "_force_synchronous") else {}
        return nodes.rebuild(node, inputs, nodes.PARALLEL_MAP, **self._parallel(calls), **extra)

    def _interleave(self, node: Any, inputs: list[Any]) -> Any:
        label = f"interleave({nodes.function_name(node)})"
        if nodes.attribute(node, "_cycle_length") == tf.data.AUTOTUNE and not self.allow_reorder:
            return self._leave(
                f"{label} has no cycle_length, and in parallel TensorFlow chooses another one, which changes the "
                "order. Write .interleave(..., cycle_length=16)."
            )
        if not self._may_run_in_parallel(label, effects_of(node)):
            return None
        self._note("interleave", f"{label} reads its inputs in parallel")
        return self._parallel_interleave(node, inputs, tf.data.AUTOTUNE, {})

    def _flat_map(self, node: Any, inputs: list[Any]) -> Any:
        label = f"flat_map({nodes.function_name(node)})"
        effects = effects_of(node)
        if effects.is_generator:
            return self._leave("from_generator runs Python, one element at a time.")
        if not effects.reads_files:
            return None  # nothing to wait for
        if not self._may_run_in_parallel(label, effects):
            return None
        self._note("flat_map", f"{label} opens up to {_AHEAD} files ahead")
        # Reading one at a time keeps the order of flat_map.
        one = {"_cycle_length": tf.constant(1, tf.int64), "_block_length": tf.constant(1, tf.int64)}
        return self._parallel_interleave(node, inputs, _AHEAD, one)

    def _parallel_interleave(self, node: Any, inputs: list[Any], ahead: int, changed: dict[str, Any]) -> Any:
        changed["_buffer_output_elements"] = tf.constant(tf.data.AUTOTUNE, tf.int64)
        changed["_prefetch_input_elements"] = tf.constant(ahead, tf.int64)
        calls = {"_num_parallel_calls": tf.constant(tf.data.AUTOTUNE, tf.int64), "_deterministic": self._order}
        return nodes.rebuild(node, inputs, nodes.PARALLEL_INTERLEAVE, **calls, **changed)

    def _batch(self, node: Any, inputs: list[Any]) -> Any:
        if any(isinstance(spec, tf.data.DatasetSpec) for spec in tf.nest.flatten(inputs[0].element_spec)):
            return None
        self._note("batch", f"batch({nodes.attribute(node, '_batch_size')}) puts batches together in parallel")
        return nodes.rebuild(node, inputs, nodes.PARALLEL_BATCH, **self._parallel(self._calls))

    def _cache(self, node: Any, inputs: list[Any]) -> Any:
        moved = cache_before_shuffle(node, inputs)
        if moved is None:
            return None
        if not self.allow_reorder:
            return self._leave(
                "cache comes after shuffle, so every epoch has the order of the first. Below it each has its own: "
                "write allow_reorder=True."
            )
        self._note("cache", "cache goes below shuffle")
        return moved

    def _with_threads(self, made: Any) -> Any:
        wanted = self._opens_files or ("threads" in self.only and opens_files_in_parallel(made))
        if not wanted or has_threads(made):
            return made
        self._note("threads", f"{READS} threads, since most of them wait for files")
        options = tf.data.Options()
        options.threading.private_threadpool_size = READS
        threaded = made.with_options(options)
        vars(threaded).update(nodes.public_attributes(made))
        return threaded

    def _prefetched(self, made: Any) -> Any:
        end = made
        while nodes.class_name(end) in _TRANSPARENT:
            (end,) = nodes.inputs_of(end)
        if nodes.class_name(end) == nodes.PREFETCH:
            return made
        reads = any(effects_of(node).reads_variables for node in nodes.nodes_of(made))
        if reads and not self.allow_stateful:
            self._leave(
                "No prefetch at the end: a function reads a variable, which could have another value when it is "
                "read ahead. Write allow_stateful=True if it has not."
            )
            return made
        self._note("prefetch", "the end is prefetched")
        prefetched = made.prefetch(self._buffer)
        vars(prefetched).update(nodes.public_attributes(made))
        return prefetched

    def _parallel(self, calls: int) -> dict[str, Any]:
        return {"_num_parallel_calls": tf.constant(calls, tf.int64), "_deterministic": self._order}

    def _may_run_in_parallel(self, label: str, effects: FunctionEffects) -> bool:
        if not effects.state or self.allow_stateful:
            return True
        why, cure = f"keeps a state ({effects.state[0]})", "Write allow_stateful=True if that does not matter."
        if effects.runs_python:
            why, cure = "runs Python, which may rely on its order", "Write it with TensorFlow's functions."
        elif effects.draws:
            why = "draws random numbers in turn"
            cure = "Write tf.random.stateless_uniform with a seed from the data, or allow_stateful=True."
        elif effects.reads_variables:
            why = "reads a variable"
        self._leave(f"{label} {why}: in parallel its results could be others. {cure}")
        return False

    def _note(self, rewrite: str, sentence: str) -> None:
        self.applied.add(rewrite)
        self.done.append(sentence)

    def _leave(self, sentence: str) -> Any:
        if sentence:
            self.left.append(sentence)
        return None
