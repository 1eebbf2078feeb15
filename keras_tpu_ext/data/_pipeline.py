"""The two ends of a pipeline: an order that is the same in every run, and options, length and prefetch."""

from __future__ import annotations

from typing import Any, NamedTuple

from keras_tpu_ext.data.skipped import Ledger, keep_ledger


class Order(NamedTuple):
    """In what order records come.

    Attributes:
        shuffle: Whether in a new one in each epoch.
        seed: What it follows from.
        draws: Whether each record is given random numbers.
    """

    shuffle: bool
    seed: int
    draws: bool


def repeatable_order(tf: Any, records: Any, order: Order) -> Any:
    """Return a dataset of (record, two int64), of which the numbers are random ones if the order says so."""
    if not order.draws:
        return tf.data.Dataset.zip((records, tf.data.Dataset.from_tensors(tf.zeros([2], tf.int64)).repeat()))
    drawn = tf.data.Dataset.random(seed=order.seed, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip((records, drawn.batch(2, drop_remainder=True)))


def finished(
    tf: Any, batches: Any, number: int | None, ledger: Ledger, *, repeat: bool, shards: int, threads: int | None
) -> Any:
    """Return `batches` with options, with their number if it is known, and with some ready ahead of their turn."""
    if number is not None:
        batches = batches.apply(tf.data.experimental.assert_cardinality(number))
    if repeat:
        batches = batches.repeat()
    options = tf.data.Options()
    options.deterministic = True
    policies = tf.data.experimental.AutoShardPolicy
    # Never by files: every process reads the same batches and takes its part of them, or has its own already.
    options.experimental_distribute.auto_shard_policy = policies.DATA if shards == 1 else policies.OFF
    if threads is not None:
        options.threading.private_threadpool_size = threads
    return keep_ledger(batches.prefetch(tf.data.AUTOTUNE).with_options(options), ledger)
