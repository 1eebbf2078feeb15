"""How much faster a pipeline is with a rewrite: both run in turns, for a bounded time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_tpu_ext.data.pipeline import stage_kinds as kinds
from keras_tpu_ext.data.pipeline import stages as pipeline
from keras_tpu_ext.data.pipeline.determinism import is_source
from keras_tpu_ext.data.pipeline.function_effects import has_side_effects
from keras_tpu_ext.data.pipeline.rewriting import ALL, Rewriting

_ROUNDS = 2
_WARM_UP = 0.4  # of a turn: tf.data first finds out how many calls to run at once
_PATIENCE = 60.0  # seconds beyond those that were asked for
_FIRST_EPOCH = "The gains are those of a first epoch; the cache serves the later ones."


class Gains(NamedTuple):
    """What was measured.

    Attributes:
        gains: For each kind of finding how many times as fast the pipeline is with its rewrite.
        note: What there is to say of it; may be empty.
        failure: What the pipeline fails with; empty if it runs.
    """

    gains: dict[str, float]
    note: str = ""
    failure: str = ""


def measure_gains(dataset: Any, found: Iterable[str], seconds: float, clock: Callable[[], float]) -> Gains:
    """Return the gain of each rewrite in `found`, after running the pipeline for `seconds` in all."""
    wanted = sorted(ALL.intersection(found))
    why = _why_not(dataset)
    if why or not wanted:
        return Gains({}, f"Nothing was measured: {why}." if why and wanted else "")
    copy = pipeline.transformed(dataset, _without_shuffle)
    variants = {"": copy}
    for rewrite in wanted:
        rewriting = Rewriting(copy, only={rewrite})
        made = rewriting.apply()
        if rewrite in rewriting.applied:
            variants[rewrite] = made
    try:
        rates = _rates(variants, seconds, clock)
    except tf.errors.OpError as error:
        return Gains({}, failure=str(error.message).splitlines()[0])
    if not rates.get(""):
        return Gains({}, "Nothing was measured: the pipeline gave too few elements in that time.")
    gains = {name: round(rate / rates[""], 2) for name, rate in rates.items() if name and rate}
    caches = any(pipeline.name_of(stage) == kinds.CACHE for stage in pipeline.stages_of(dataset))
    return Gains(gains, _FIRST_EPOCH if caches and gains else "")


def _rates(variants: dict[str, Any], seconds: float, clock: Callable[[], float]) -> dict[str, float]:
    """Return how many elements a second each dataset gives, all of them in turns; none where it takes too long.

    It happens in a thread, which is left alone after a minute more than was asked for, and with the iterators once
    the result is there: TensorFlow 2.21 can take seconds to end one on a busy machine, and others wait for it.
    """
    outcome: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        iterators: dict[str, Any] = {}
        try:
            outcome.put(_turns(variants, iterators, seconds, clock))
        except BaseException as error:
            outcome.put(error)

    thread = threading.Thread(target=run, name="kte-advise", daemon=True)
    thread.start()
    try:
        found = outcome.get(timeout=seconds + _PATIENCE)
    except queue.Empty:
        return {}
    thread.join(1.0)
    if isinstance(found, BaseException):
        raise found
    return dict(found)


def _turns(
    variants: dict[str, Any], iterators: dict[str, Any], seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    part = seconds / (_ROUNDS * len(variants))
    counts, times = dict.fromkeys(variants, 0), dict.fromkeys(variants, 0.0)
    for _ in range(_ROUNDS):
        for name, variant in variants.items():
            begin = clock()
            if name not in iterators:
                # Over its end and again: what is rebuilt at the end of an epoch counts too.
                iterators[name] = iter(variant.repeat())
            count, time = _turn(iterators[name], begin, part, clock)
            counts[name] += count
            times[name] += time
    return {name: counts[name] / times[name] for name in variants if times[name] > 0}


def _turn(iterator: Any, begin: float, seconds: float, clock: Callable[[], float]) -> tuple[int, float]:
    """Return how many elements came, as a rule after a warm-up, and in what time."""
    if next(iterator, None) is None:
        return 0, 0.0
    start, count = clock(), 0
    if start - begin >= seconds:
        return 1, start - begin  # so slow that its start does not matter
    now = start
    while now - begin < seconds:
        next(iterator)
        count, now = count + 1, clock()
        if now - begin < _WARM_UP * seconds:
            start, count = now, 0
    return count, now - start


def _without_shuffle(stage: Any, inputs: list[Any]) -> Any:
    """Return a stage's place in a copy that shares no order and no cache with the original."""
    if pipeline.name_of(stage) == kinds.SHUFFLE:
        return inputs[0]
    return pipeline.remade(stage, inputs) if pipeline.name_of(stage) == kinds.CACHE else None


def _why_not(dataset: Any) -> str:
    """Return why a copy of `dataset` cannot be run without being noticed; empty if it can."""
    for stage in pipeline.stages_of(dataset):
        if pipeline.kind_of(stage) is None and not is_source(stage):
            return f"{pipeline.word_of(stage)} cannot be copied"
        if pipeline.name_of(stage) == kinds.CACHE and pipeline.value_of(stage, "_filename"):
            return "the pipeline has a cache in a file"
    if has_side_effects(dataset):
        return "it would run Python, or change a state, of yours"
    return ""
