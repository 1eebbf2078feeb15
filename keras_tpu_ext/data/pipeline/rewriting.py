"""The rewrites of `optimize`, one stage at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from keras_tpu_ext.data.pipeline import stage_kinds as kinds
from keras_tpu_ext.data.pipeline import stages as pipeline
from keras_tpu_ext.data.pipeline.caching import cache_below_shuffle, cache_place
from keras_tpu_ext.data.pipeline.determinism import is_left_alone
from keras_tpu_ext.data.pipeline.function_effects import FunctionEffects, effects_of

ALL = frozenset({"map", "interleave", "flat_map", "batch", "prefetch", "cache", "threads"})
_AHEAD = 8  # files that a flat_map opens before their turn
# TensorFlow has a thread for each core, and one that waits for storage does nothing else: opening a file on a network
# takes some 20 ms, so that two threads open 100 files a second and 64 of them 3200 (benchmarks/input_ladder.py).
READS = 64
_TRANSPARENT = {kinds.OPTIONS, kinds.TAKE, kinds.SKIP, kinds.REPEAT}


def has_threads(dataset: Any) -> bool:
    """Return whether the user has chosen a number of threads."""
    return bool(dataset.options().threading.private_threadpool_size)


def opens_files_in_parallel(dataset: Any) -> bool:
    """Return whether a parallel map opens files; an interleave has threads of its own."""
    stages = (stage for stage in pipeline.stages_of(dataset) if pipeline.name_of(stage) == kinds.PARALLEL_MAP)
    return any(effects_of(stage).reads_files for stage in stages)


class Rewriting:
    """One call of `optimize`.

    Args:
        dataset: The dataset.
        allow_reorder: As `optimize` takes it.
        allow_stateful: As `optimize` takes it.
        cache_bytes: As `optimize` takes it.
        only: Which rewrites to apply, of `ALL`.

    Attributes:
        done: A sentence for each change.
        left: A sentence for each change that was not made, with the reason.
        applied: Which rewrites changed something.
    """

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
        self.done: list[str] = []
        self.left: list[str] = []
        self.applied: set[str] = set()
        # Where the user has turned autotune off, nothing would tune what is left to it.
        is_tuned = dataset.options().autotune.enabled is not False
        self._calls = tf.data.AUTOTUNE if is_tuned else max(2, os.cpu_count() or 2)
        self._buffer = tf.data.AUTOTUNE if is_tuned else 2
        self._order = "false" if allow_reorder else "true"
        self._opens_files = False  # whether something that opens files was made to run in parallel

    def apply(self) -> Any:
        """Return the dataset that was asked for; the same object where nothing is to be changed."""
        self._place, reason = cache_place(self.dataset, self.cache_bytes)
        self._leave(reason)
        made = pipeline.transformed(self.dataset, self._change, self._is_closed)
        made = self._with_threads(made)
        return self._prefetched(made) if "prefetch" in self.only else made

    def _is_closed(self, stage: Any) -> bool:
        reason = is_left_alone(stage)
        self._leave(reason)
        return bool(reason)

    def _change(self, stage: Any, inputs: list[Any]) -> Any:
        changes: dict[str, Callable[[Any, list[Any]], Any]] = {
            kinds.MAP: self._map,
            kinds.INTERLEAVE: self._interleave,
            kinds.FLAT_MAP: self._flat_map,
            kinds.BATCH: self._batch,
            kinds.CACHE: self._cache,
        }
        change = changes.get(pipeline.name_of(stage))
        made = change(stage, inputs) if change and inputs and pipeline.word_of(stage) in self.only else None
        if stage is not self._place or "cache" not in self.only:
            return made
        self._note("cache", f"a cache after {pipeline.word_of(stage)}, whose elements are the same in every epoch")
        return (made or (pipeline.remade(stage, inputs) if inputs else stage)).cache()

    def _map(self, stage: Any, inputs: list[Any]) -> Any:
        label = f"map({pipeline.function_name(stage)})"
        if pipeline.value_of(stage, "_force_synchronous"):
            return self._leave(f"{label} is synchronous=True, as you asked.")
        deeds = effects_of(stage)
        if not self._may_run_at_other_times(label, deeds):
            return None
        self._note("map", f"{label} runs in parallel" + (f", {READS} calls at once" if deeds.reads_files else ""))
        self._opens_files |= deeds.reads_files
        calls = READS if deeds.reads_files else self._calls
        extra = {"_use_unbounded_threadpool": False} if hasattr(stage, "_force_synchronous") else {}
        return pipeline.remade(stage, inputs, kinds.PARALLEL_MAP, **self._parallel(calls), **extra)

    def _interleave(self, stage: Any, inputs: list[Any]) -> Any:
        label = f"interleave({pipeline.function_name(stage)})"
        if pipeline.value_of(stage, "_cycle_length") == tf.data.AUTOTUNE and not self.allow_reorder:
            return self._leave(
                f"{label} has no cycle_length, and in parallel TensorFlow chooses another one, which changes the "
                "order. Write .interleave(..., cycle_length=16)."
            )
        if not self._may_run_at_other_times(label, effects_of(stage)):
            return None
        self._note("interleave", f"{label} reads its inputs in parallel")
        return self._parallel_interleave(stage, inputs, tf.data.AUTOTUNE, {})

    def _flat_map(self, stage: Any, inputs: list[Any]) -> Any:
        label = f"flat_map({pipeline.function_name(stage)})"
        deeds = effects_of(stage)
        if deeds.is_generator:
            return self._leave("from_generator runs Python, one element at a time.")
        if not deeds.reads_files:
            return None  # there is nothing to wait for
        if not self._may_run_at_other_times(label, deeds):
            return None
        self._note("flat_map", f"{label} opens up to {_AHEAD} files ahead")
        # One at a time is the order of flat_map.
        one = {"_cycle_length": tf.constant(1, tf.int64), "_block_length": tf.constant(1, tf.int64)}
        return self._parallel_interleave(stage, inputs, _AHEAD, one)

    def _parallel_interleave(self, stage: Any, inputs: list[Any], ahead: int, changed: dict[str, Any]) -> Any:
        changed["_buffer_output_elements"] = tf.constant(tf.data.AUTOTUNE, tf.int64)
        changed["_prefetch_input_elements"] = tf.constant(ahead, tf.int64)
        calls = {"_num_parallel_calls": tf.constant(tf.data.AUTOTUNE, tf.int64), "_deterministic": self._order}
        return pipeline.remade(stage, inputs, kinds.PARALLEL_INTERLEAVE, **calls, **changed)

    def _batch(self, stage: Any, inputs: list[Any]) -> Any:
        if any(isinstance(spec, tf.data.DatasetSpec) for spec in tf.nest.flatten(inputs[0].element_spec)):
            return None
        self._note("batch", f"batch({pipeline.value_of(stage, '_batch_size')}) puts batches together in parallel")
        return pipeline.remade(stage, inputs, kinds.PARALLEL_BATCH, **self._parallel(self._calls))

    def _cache(self, stage: Any, inputs: list[Any]) -> Any:
        moved = cache_below_shuffle(stage, inputs)
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
        vars(threaded).update(pipeline.own_names(made))
        return threaded

    def _prefetched(self, made: Any) -> Any:
        end = made
        while pipeline.name_of(end) in _TRANSPARENT:
            (end,) = pipeline.inputs_of(end)
        if pipeline.name_of(end) == kinds.PREFETCH:
            return made
        reads = any(effects_of(stage).reads_variables for stage in pipeline.stages_of(made))
        if reads and not self.allow_stateful:
            self._leave(
                "No prefetch at the end: a function reads a variable, which could have another value when it is "
                "read ahead. Write allow_stateful=True if it has not."
            )
            return made
        self._note("prefetch", "the end is prefetched")
        prefetched = made.prefetch(self._buffer)
        vars(prefetched).update(pipeline.own_names(made))
        return prefetched

    def _parallel(self, calls: int) -> dict[str, Any]:
        return {"_num_parallel_calls": tf.constant(calls, tf.int64), "_deterministic": self._order}

    def _may_run_at_other_times(self, label: str, deeds: FunctionEffects) -> bool:
        if not deeds.state or self.allow_stateful:
            return True
        why, cure = f"keeps a state ({deeds.state[0]})", "Write allow_stateful=True if that does not matter."
        if deeds.runs_python:
            why, cure = "runs Python, which may rely on its order", "Write it with TensorFlow's functions."
        elif deeds.draws:
            why = "draws random numbers in turn"
            cure = "Write tf.random.stateless_uniform with a seed from the data, or allow_stateful=True."
        elif deeds.reads_variables:
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
