"""Where in a pipeline a cache belongs."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from keras_tpu_ext.data.pipeline import stage_kinds as kinds
from keras_tpu_ext.data.pipeline import stages as pipeline
from keras_tpu_ext.data.pipeline.determinism import is_left_alone, is_same_again, is_source

_BATCHES = {kinds.BATCH, kinds.PARALLEL_BATCH, kinds.PADDED_BATCH}
_ABOVE = {kinds.SHUFFLE, kinds.PREFETCH, kinds.REPEAT, kinds.OPTIONS, kinds.ZIP, kinds.CONCATENATE}


def cache_place(dataset: Any, most: float) -> tuple[Any, str]:
    """Return the stage after which a cache of up to `most` bytes goes, or `None` and why, in a sentence."""
    if not most:
        return None, ""
    reason = "No cache was added: nowhere are the elements the same in every epoch."
    stage = dataset
    while not is_left_alone(stage):
        if pipeline.name_of(stage) not in _ABOVE and _keeps(stage):
            size = _size(stage)
            if any(pipeline.name_of(one) == kinds.CACHE for one in pipeline.stages_of(stage)):
                return None, "No cache was added: there is one already."
            if size is not None and size <= most:
                return stage, ""
            reason = (
                f"No cache was added: the size of the elements after {pipeline.word_of(stage)} is not known."
                if size is None
                else f"No cache was added: it would take {size / 2**20:.0f} MiB, and may take {most / 2**20:.0f} MiB."
            )
        if is_source(stage) or len(pipeline.inputs_of(stage)) != 1:
            break
        (stage,) = pipeline.inputs_of(stage)
    return None, reason


def _keeps(stage: Any) -> bool:
    """Return whether every epoch has the same elements there, and making them is any work."""
    below = list(pipeline.stages_of(stage))
    works = any(pipeline.functions_of(one) or pipeline.name_of(one).startswith("readers.") for one in below)
    return works and is_same_again(stage) and not any(pipeline.name_of(one) == kinds.SHUFFLE for one in below)


def _size(stage: Any) -> float | None:
    """Return how many bytes all elements take; `None` where that is not known."""
    count, total = int(stage.cardinality()), 0
    for spec in tf.nest.flatten(stage.element_spec):
        if type(spec).__name__ == "NoneTensorSpec":
            continue
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined() or spec.dtype == tf.string:
            return None
        total += math.prod(spec.shape) * spec.dtype.size
    return None if count < 0 else float(count * total)


def cache_below_shuffle(stage: Any, inputs: list[Any]) -> Any:
    """Return a cache stage's replacement with the cache below the shuffle; `None` where there is no shuffle."""
    above, below = [], inputs[0]
    while pipeline.name_of(below) in _BATCHES | {kinds.SHUFFLE, kinds.PREFETCH} and pipeline.kind_of(below):
        above.append(below)
        (below,) = pipeline.inputs_of(below)
    shuffles = [number for number, one in enumerate(above) if pipeline.name_of(one) == kinds.SHUFFLE]
    if not shuffles:
        return None
    # What is below the lowest shuffle stays below the cache.
    above = above[: shuffles[-1] + 1]
    made = pipeline.remade(stage, pipeline.inputs_of(above[-1]))
    for one in reversed(above):
        made = pipeline.remade(one, [made])
    return made
