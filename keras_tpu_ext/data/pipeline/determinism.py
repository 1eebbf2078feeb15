"""Which parts of a pipeline give the same elements when they are run again."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext.data.pipeline import stage_kinds as kinds
from keras_tpu_ext.data.pipeline import stages as pipeline
from keras_tpu_ext.data.pipeline.function_effects import effects_of

_STEADY_SOURCES = ("range_op.", "from_tensor_slices_op.", "from_tensors_op.", "readers.")


def is_source(stage: Any) -> bool:
    """Return whether elements begin at `stage`; a reader of files has the dataset of their names as its input."""
    return not pipeline.inputs_of(stage) or pipeline.name_of(stage).startswith("readers.")


def is_left_alone(stage: Any) -> str:
    """Return why `stage` must keep its very inputs, in a sentence; empty where it need not."""
    word = pipeline.word_of(stage)
    if pipeline.kind_of(stage) is None:
        return "" if is_source(stage) else f"{word} is not known well enough to be made again, nor what is below it."
    if is_unseeded_order(stage) and not stage._reshuffle_each_iteration:
        return (
            "shuffle without a seed keeps one order, on which another dataset may rely, as the other part of a split "
            "does. Write shuffle(..., seed=1, reshuffle_each_iteration=False)."
        )
    if pipeline.name_of(stage) == kinds.CACHE and not is_same_again(pipeline.inputs_of(stage)[0]):
        return "cache keeps random elements, on which another dataset may rely. Seed what is below it."
    return ""


def is_unseeded_order(stage: Any) -> bool:
    """Return whether `stage` is a shuffle that draws its own seed."""
    if pipeline.name_of(stage) != kinds.SHUFFLE:
        return False
    return not pipeline.value_of(stage, "_seed") and not pipeline.value_of(stage, "_seed2")


def is_same_again(dataset: Any) -> bool:
    """Return whether a dataset made like `dataset` gives the same elements in the same order."""
    return dataset.options().deterministic is not False and all(map(_is_steady, pipeline.stages_of(dataset)))


def _is_steady(stage: Any) -> bool:
    if pipeline.name_of(stage).startswith(_STEADY_SOURCES):
        return True
    if pipeline.kind_of(stage) is None or is_unseeded_order(stage):
        return False
    deeds = effects_of(stage)
    return getattr(stage, "_deterministic", "") != "false" and not deeds.state and not deeds.runs_python
