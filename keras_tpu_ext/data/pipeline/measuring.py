"""The gain of each rewrite: the pipeline runs with and without it in turns, for a bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import NamedTuple

import tensorflow as tf

from keras_tpu_ext.data.pipeline import nodes
from keras_tpu_ext.data.pipeline.effects import has_side_effects, is_source
from keras_tpu_ext.data.pipeline.rewriting import ALL, Rewriting

_ROUNDS = 2
_WARM_UP = 0.4  # of a turn: tf.data first tunes how many calls to run at once
_PATIENCE = 60.0  # seconds beyond the requested ones
_FIRST_EPOCH = "The gains are those of a first epoch; the cache serves the later ones."


class Gains(NamedTuple):
    """Measured gains."""

    gains: dict[str, float]  # elements per second with the rewrite divided by those without, by the kind of finding
    note: str = ""  # a remark on the measurement; may be empty
    failure: str = ""  # the error of the pipeline; empty if it runs


def measure_gains(dataset: nodes.Node, found: Iterable[str], seconds: float, clock: Callable[[], float]) -> Gains:
    """Run the pipeline for `seconds` in all, and return the gain of each rewrite in `found`."""
    wanted = sorted(ALL.intersection(found))
    why = _reason_not_to_run(dataset)
    if why or not wanted:
        return Gains({}, f"Nothing was measured: {why}." if why and wanted else "")
    copy = nodes.rewrite(dataset, _without_shuffle)
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
    caches = any(nodes.class_name(node) == nodes.CACHE for node in nodes.nodes_of(dataset))
    return Gains(gains, _FIRST_EPOCH if caches and gains else "")


def _rates(variants: dict[str, nodes.Node], seconds: float, clock: Callable[[], float]) -> dict[str, float]:
    """Return the elements per second of each dataset; none if it takes too long.

    They run in a thread, which is abandoned a minute after its time. The thread also closes the iterators, after the
    result is there: TensorFlow 2.21 can take seconds to close one on a busy machine.
    """
    rates: Future[dict[str, float]] = Future()

    def run() -> None:
        iterators: dict[str, tf.data.Iterator] = {}
        try:
            rates.set_result(_run_in_turns(variants, iterators, seconds, clock))
        except BaseException as error:
            rates.set_exception(error)

    thread = threading.Thread(target=run, name="kte-advise", daemon=True)
    thread.start()
    try:
        return rates.result(timeout=seconds + _PATIENCE)
    except FutureTimeoutError:
        return {}
    finally:
        thread.join(1.0)


def _run_in_turns(
    variants: dict[str, nodes.Node],
    iterators: dict[str, tf.data.Iterator],
    seconds: float,
    clock: Callable[[], float],
) -> dict[str, float]:
    part = seconds / (_ROUNDS * len(variants))
    counts, times = dict.fromkeys(variants, 0), dict.fromkeys(variants, 0.0)
    for _ in range(_ROUNDS):
        for name, variant in variants.items():
            begin = clock()
            if name not in iterators:
                # Repeated, so that what is rebuilt at the end of an epoch counts too.
                iterators[name] = iter(variant.repeat())
            count, time = _run(iterators[name], begin, part, clock)
            counts[name] += count
            times[name] += time
    return {name: counts[name] / times[name] for name in variants if times[name] > 0}


def _run(iterator: tf.data.Iterator, begin: float, seconds: float, clock: Callable[[], float]) -> tuple[int, float]:
    """Return the number of elements after a warm-up, and the seconds they took."""
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


def _without_shuffle(node: nodes.Node, source: nodes.Node | None) -> nodes.Node | None:
    """Leave out shuffles and replace caches, so that a copy shares no order and no cache with the original."""
    if nodes.class_name(node) == nodes.SHUFFLE:
        return source
    return nodes.rebuild(node, source) if nodes.class_name(node) == nodes.CACHE else None


def _reason_not_to_run(dataset: nodes.Node) -> str:
    """Return the reason why running a copy of `dataset` would have an effect; empty if it would not."""
    for node in nodes.nodes_of(dataset):
        if nodes.node_type(node) is None and not is_source(node):
            return f"{nodes.method_name(node)} cannot be copied"
        if nodes.class_name(node) == nodes.CACHE and nodes.attribute(node, "_filename"):
            return "the pipeline has a cache in a file"
    if has_side_effects(dataset):
        return "it would run Python, or change a state, of yours"
    return ""
