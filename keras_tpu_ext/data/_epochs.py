"""What `images` and `tfrecords` have in common: the order, seeds, length and options of an epoch."""

from __future__ import annotations

from typing import Any, NamedTuple

from keras_tpu_ext.data.skipped import Ledger, keep_ledger


class Order(NamedTuple):
    """The order of records."""

    shuffle: bool  # whether every epoch has a new order
    seed: int  # seed of the orders, and of the seeds of the records
    seeds_records: bool  # whether each record has its own random seed


def with_seeds(tf: Any, records: Any, order: Order) -> Any:
    """Return a dataset of (record, seed); a seed is two int64, zeros if records have none."""
    if not order.seeds_records:
        return tf.data.Dataset.zip((records, tf.data.Dataset.from_tensors(tf.zeros([2], tf.int64)).repeat()))
    drawn = tf.data.Dataset.random(seed=order.seed, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip((records, drawn.batch(2, drop_remainder=True)))


def number_of_batches(records: int | None, batch_size: int, drop_remainder: bool) -> int | None:
    """Return the number of batches of `records`; `None` if that is unknown."""
    if records is None:
        return None
    return records // batch_size if drop_remainder else -(-records // batch_size)


def finalize(
    tf: Any, batches: Any, number: int | None, ledger: Ledger, *, repeat: bool, shards: int, threads: int
) -> Any:
    """Return `batches` with cardinality, options and prefetch."""
    if number is not None:
        batches = batches.apply(tf.data.experimental.assert_cardinality(number))
    if repeat:
        batches = batches.repeat()
    options = tf.data.Options()
    options.deterministic = True
    policies = tf.data.experimental.AutoShardPolicy
    # Never by files: every process takes its part of the same batches, or already has its own files.
    options.experimental_distribute.auto_shard_policy = policies.DATA if shards == 1 else policies.OFF
    options.threading.private_threadpool_size = threads
    return keep_ledger(batches.prefetch(tf.data.AUTOTUNE).with_options(options), ledger)
