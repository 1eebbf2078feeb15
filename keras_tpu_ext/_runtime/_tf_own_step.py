"""A `train_step` or `test_step` of the user's own, on replicas that may have no example.

The step's code is not made for an empty batch: TensorFlow's oneDNN convolutions end the process on one, and a mean
over no row is NaN. So it never gets one. A replica without examples gets one row of ones in each tensor, and what
comes of it counts nowhere: not in `global_mean`, not in the gradients that `minimize` takes, not in the statistics
of a batch normalisation, not in a metric that is updated with rows, and not in a `super().train_step` or in
`compute_loss`. What the user makes of it in another way counts, as does all that is not made of `global_mean`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime._tf_empty import no_row_if_empty, one_row_if_empty
from keras_tpu_ext._runtime._tf_replicas import batch_size, num_replicas
from keras_tpu_ext._runtime._tf_step import ExactStep, known_batch

Step = Callable[[Any], Any]


class _Replica(threading.local):
    """Whether the replica that runs in this thread has any example."""

    has_any: Any = None


_REPLICA = _Replica()
_HOOKED: dict[int, tuple[int, Any]] = {}  # by id of a metric: how many replicas are inside, what it had before


def guarded(model: Any, step: Step) -> Step:
    """Return `step` of `model`; where it is the user's own, one that never sees an empty batch.

    Args:
        model: The model.
        step: Its `train_step` or `test_step`, which takes one replica's part of the batch.
    """
    if getattr(step, "__func__", None) in (ExactStep.train_step, ExactStep.test_step):
        return step  # ours knows what to do

    def guarded_step(data: Any) -> Any:
        if not _is_of_rows(data):
            return step(data)
        has_any = _has_any(data)
        with (
            known_batch(examples=batch_size(data), has_any=has_any, not_a_stand_in=has_any),
            model._statistics_only_if(has_any),
            _metrics_without_stand_ins(model.metrics, has_any),
        ):
            return step(one_row_if_empty(data, has_any))

    return guarded_step


def _is_of_rows(data: Any) -> bool:
    """Return whether `data` is made of tensors that a row of ones can stand in for; ragged ones are not."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    return bool(leaves) and all(isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0 for leaf in leaves)


def _has_any(data: Any) -> Any:
    """Return whether this replica has any example; `None` where it is certain that every replica has."""
    examples = batch_size(data)
    # In a graph what is static is the same on every replica. Eagerly it is not, and all must take the same path.
    is_certain = isinstance(examples, int) and examples > 0 and not tf.executing_eagerly()
    return None if is_certain or num_replicas() == 1 else tf.greater(examples, 0)


@contextlib.contextmanager
def _metrics_without_stand_ins(metrics: Sequence[Any], has_any: Any) -> Iterator[None]:
    """Within the block `metrics` do not count the row that stands in for no example.

    A value without rows, a loss say, is the same on every replica and counts on each of them, so that every batch
    has the same weight.
    """
    if has_any is None:
        yield
        return
    before, _REPLICA.has_any = _REPLICA.has_any, has_any
    for metric in metrics:
        _hook(metric)
    try:
        yield
    finally:
        for metric in metrics:
            _unhook(metric)
        _REPLICA.has_any = before


def _hook(metric: Any) -> None:
    inside, before = _HOOKED.get(id(metric), (0, metric.__dict__.get("update_state")))
    if not inside:  # replicas take turns: the first one in hooks, the last one out unhooks
        update_state = metric.update_state

        def without_stand_ins(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _without_stand_ins((args, kwargs), _REPLICA.has_any)
            return update_state(*args, **kwargs)

        metric.__dict__["update_state"] = without_stand_ins
    _HOOKED[id(metric)] = (inside + 1, before)


def _unhook(metric: Any) -> None:
    inside, before = _HOOKED.pop(id(metric))
    if inside > 1:
        _HOOKED[id(metric)] = (inside - 1, before)
    elif before is None:
        del metric.__dict__["update_state"]
    else:
        metric.__dict__["update_state"] = before


def _without_stand_ins(data: Any, has_any: Any) -> Any:
    """Return `data` with no row in its tensors where there is no example; what has no rows stays."""
    leaves = tf.nest.flatten(data)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0]
    for place, leaf in zip(places, no_row_if_empty([leaves[i] for i in places], has_any), strict=True):
        leaves[place] = leaf
    return tf.nest.pack_sequence_as(data, leaves)
