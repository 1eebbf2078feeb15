"""The rewrites of `optimize`, one transformation at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection

import tensorflow as tf

from keras_tpu_ext.data.pipeline import nodes
from keras_tpu_ext.data.pipeline.effects import (
    FunctionEffects,
    effects_of,
    is_deterministic,
    is_source,
    reason_to_keep,
)

ALL = frozenset({"map", "interleave", "flat_map", "batch", "cache", "prefetch", "threads"})
# TensorFlow has a thread for each core, and one that waits for storage does nothing else: opening a file on a network
# takes some 20 ms, so two threads open 100 files a second and 64 threads 3200 (benchmarks/input_ladder.py).
READS = 64
_TRANSPARENT = {nodes.OPTIONS, nodes.TAKE, nodes.SKIP, nodes.REPEAT}
_AFTER_CACHE = {nodes.SHUFFLE, nodes.PREFETCH, nodes.REPEAT, nodes.OPTIONS}


def has_threads(dataset: nodes.Node) -> bool:
    """Return whether the options set a private threadpool."""
    return bool(dataset.options().threading.private_threadpool_size)


def opens_files_in_parallel(dataset: nodes.Node) -> bool:
    """Return whether a parallel map opens files; an interleave does so on its own threads."""
    maps = (node for node in nodes.nodes_of(dataset) if nodes.class_name(node) == nodes.PARALLEL_MAP)
    return any(effects_of(node).reads_files for node in maps)


def is_prefetched(dataset: nodes.Node) -> bool:
    """Return whether the end of a pipeline is prefetched."""
    while nodes.class_name(dataset) in _TRANSPARENT:
        (dataset,) = nodes.inputs_of(dataset)
    return nodes.class_name(dataset) == nodes.PREFETCH


class Rewriting:
    """One call of `optimize`."""

    def __init__(
        self,
        dataset: nodes.Node,
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

    def apply(self) -> nodes.Node:
        """Return the rewritten dataset; the same object if nothing changes."""
        self._cached, reason = cache_position(self.dataset, self.cache_bytes)
        self._leave(reason)
        made = nodes.rewrite(self.dataset, self._change, lambda node: bool(self._leave(reason_to_keep(node))))
        made = self._with_threads(made)
        return self._prefetched(made) if "prefetch" in self.only else made

    def _change(self, node: nodes.Node, source: nodes.Node | None) -> nodes.Node | None:
        changes: dict[str, Callable[[nodes.Node, nodes.Node], nodes.Node | None]] = {
            nodes.MAP: self._map,
            nodes.INTERLEAVE: self._interleave,
            nodes.FLAT_MAP: self._flat_map,
            nodes.BATCH: self._batch,
            nodes.CACHE: self._cache,
        }
        change = changes.get(nodes.class_name(node))
        is_wanted = source is not None and nodes.method_name(node) in self.only
        made = change(node, source) if change and is_wanted else None
        if node is not self._cached:
            return made
        self._note("cache", f"a cache after {nodes.method_name(node)}, whose elements are the same in every epoch")
        before: nodes.Node = made
        if made is None:
            before = node if source is None else nodes.rebuild(node, source)
        return before.cache()

    def _map(self, node: nodes.Node, source: nodes.Node) -> nodes.Node | None:
        label, effects = f"map({nodes.function_name(node)})", effects_of(node)
        if nodes.attribute(node, "_force_synchronous"):
            self._leave(f"{label} is synchronous=True, as you asked.")
            return None
        if not self._may_run_in_parallel(label, effects):
            return None
        self._note("map", f"{label} runs in parallel" + (f", {READS} calls at once" if effects.reads_files else ""))
        self._opens_files |= effects.reads_files
        calls = READS if effects.reads_files else self._calls
        extra = {"_use_unbounded_threadpool": False} if hasattr(node, "_force_synchronous") else {}
        return nodes.rebuild(node, source, nodes.PARALLEL_MAP, **self._parallel(calls), **extra)

    def _interleave(self, node: nodes.Node, source: nodes.Node) -> nodes.Node | None:
        label = f"interleave({nodes.function_name(node)})"
        if nodes.attribute(node, "_cycle_length") == tf.data.AUTOTUNE and not self.allow_reorder:
            self._leave(
                f"{label} has no cycle_length, and in parallel TensorFlow chooses another one, which changes the "
                "order. Write .interleave(..., cycle_length=16)."
            )
            return None
        if not self._may_run_in_parallel(label, effects_of(node)):
            return None
        self._note("interleave", f"{label} reads its inputs in parallel")
        buffers = dict.fromkeys(
            ("_buffer_output_elements", "_prefetch_input_elements"), tf.constant(tf.data.AUTOTUNE, tf.int64)
        )
        return nodes.rebuild(node, source, nodes.PARALLEL_INTERLEAVE, **self._parallel(tf.data.AUTOTUNE), **buffers)

    def _flat_map(self, node: nodes.Node, source: nodes.Node) -> None:
        label, effects = f"flat_map({nodes.function_name(node)})", effects_of(node)
        if effects.is_generator:
            self._leave("from_generator runs Python, one element at a time.")
        elif effects.reads_files:
            self._leave(
                f"{label} opens one file after the other. Write .interleave({nodes.function_name(node)}, "
                "cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE), which gives another order."
            )

    def _batch(self, node: nodes.Node, source: nodes.Node) -> nodes.Node | None:
        if any(isinstance(spec, tf.data.DatasetSpec) for spec in tf.nest.flatten(source.element_spec)):
            return None
        self._note("batch", f"batch({nodes.attribute(node, '_batch_size')}) puts batches together in parallel")
        return nodes.rebuild(node, source, nodes.PARALLEL_BATCH, **self._parallel(self._calls))

    def _cache(self, node: nodes.Node, source: nodes.Node) -> None:
        while nodes.class_name(source) in nodes.ANY_BATCH | {nodes.PREFETCH}:
            (source,) = nodes.inputs_of(source)
        if nodes.class_name(source) == nodes.SHUFFLE:
            self._leave(
                "cache comes after shuffle, so every epoch has the order of the first. Write .cache().shuffle(...)."
            )

    def _with_threads(self, made: nodes.Node) -> nodes.Node:
        wanted = self._opens_files or ("threads" in self.only and opens_files_in_parallel(made))
        if not wanted or has_threads(made):
            return made
        self._note("threads", f"{READS} threads, since most of them wait for files")
        options = tf.data.Options()
        options.threading.private_threadpool_size = READS
        return nodes.with_attributes_of(made, made.with_options(options))

    def _prefetched(self, made: nodes.Node) -> nodes.Node:
        if is_prefetched(made):
            return made
        reads = any(effects_of(node).reads_variables for node in nodes.nodes_of(made))
        if reads and not self.allow_stateful:
            self._leave(
                "No prefetch at the end: a function reads a variable, which could have another value when it is "
                "read ahead. Write allow_stateful=True if it has not."
            )
            return made
        self._note("prefetch", "the end is prefetched")
        return nodes.with_attributes_of(made, made.prefetch(self._buffer))

    def _parallel(self, calls: int) -> dict[str, tf.Tensor | str]:
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

    def _leave(self, sentence: str) -> str:
        """Add a sentence on what is not changed, unless it is empty, and return it."""
        self.left += [sentence] if sentence else []
        return sentence


def cache_position(dataset: nodes.Node, most: float) -> tuple[nodes.Node | None, str]:
    """Return the node to cache, in at most `most` bytes, and the reason if it is `None`."""
    if not most:
        return None, ""
    reason = "No cache was added: nowhere are the elements the same in every epoch."
    node = dataset
    while not reason_to_keep(node):
        if nodes.class_name(node) not in _AFTER_CACHE and _is_worth_caching(node):
            size = _bytes(node)
            if any(nodes.class_name(one) == nodes.CACHE for one in nodes.nodes_of(node)):
                return None, "No cache was added: there is one already."
            if size is not None and size <= most:
                return node, ""
            reason = (
                f"No cache was added: the size of the elements after {nodes.method_name(node)} is not known."
                if size is None
                else f"No cache was added: it would take {size / 2**20:.0f} MiB, and may take {most / 2**20:.0f} MiB."
            )
        if is_source(node):
            break
        (node,) = nodes.inputs_of(node)
    return None, reason


def _is_worth_caching(node: nodes.Node) -> bool:
    """Return whether the elements are costly to make, and the same in every epoch."""
    upstream = list(nodes.nodes_of(node))
    works = any(nodes.functions_of(one) or nodes.class_name(one).startswith("readers.") for one in upstream)
    return works and is_deterministic(node) and not any(nodes.class_name(one) == nodes.SHUFFLE for one in upstream)


def _bytes(node: nodes.Node) -> float | None:
    """Return the size of all elements in bytes; `None` if it is unknown."""
    count, total = int(node.cardinality()), 0
    for spec in tf.nest.flatten(node.element_spec):
        if type(spec).__name__ == "NoneTensorSpec":
            continue
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined() or spec.dtype == tf.string:
            return None
        total += math.prod(spec.shape) * spec.dtype.size
    return None if count < 0 else float(count * total)
