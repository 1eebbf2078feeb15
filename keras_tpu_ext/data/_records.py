"""Batches records, and finds the names of those that `ignore_errors` dropped because they could not be read.

Records are numbered before they are read. A dropped record leaves a gap in the numbers, and an end marker reveals a
gap at the end. Each record carries the names of its neighbours, so that a gap can be named. This takes some 20 us a
record; catching the error of each record in its own dataset would be simpler, and takes 24 ms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.data._tensorflow import tf, without_autograph
from keras_tpu_ext.data.skipped import SkipLog, with_log

BLOCK = 16  # records numbered at once; each carries the names of its block and of the block before
END, _UNKNOWN = -1, -2  # instead of the file's number


@dataclasses.dataclass(frozen=True)
class Messages:
    """Messages about lost records. A name is two int64: the number of a file, and of a record in it."""

    function: str  # the public function, such as `"images"`
    location: Callable[[tf.Tensor], tf.Tensor]  # maps a name to a text such as `"cat/1.jpg"`
    # Maps a name to what was needed and what was found; may read the file again.
    fault: Callable[[tf.Tensor], tf.Tensor]
    # Maps names to the number of records lost with each, int64; -1 if it is unknown.
    lost: Callable[[tf.Tensor], tf.Tensor]


def with_seeds(records: tf.data.Dataset, seed: int | None) -> tf.data.Dataset:
    """Return a dataset of (record, its seed), two int64; zeros if `seed` is `None`."""
    if seed is None:
        return tf.data.Dataset.zip((records, tf.data.Dataset.from_tensors(tf.zeros([2], tf.int64)).repeat()))
    drawn = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip((records, drawn.batch(2, drop_remainder=True)))


def number_records(blocks: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset of (position, names of its neighbours, content), one record after another.

    `blocks` is a dataset of (names, contents) of `BLOCK` records. The last one is an end marker: its name is `END`.
    """
    unknown = tf.fill([BLOCK, 2], tf.constant(_UNKNOWN, tf.int64))

    def number(state: tuple[tf.Tensor, ...], block: tuple[tf.Tensor, ...]) -> Nest:
        first, before = state
        names, contents = block
        rows = tf.shape(names, tf.int64)[0]
        here = tf.ensure_shape(tf.concat([names, unknown[rows:]], 0), [BLOCK, 2])
        neighbours = tf.repeat(tf.concat([before, here], 0)[None], rows, 0)
        neighbours = tf.ensure_shape(neighbours, [None, 2 * BLOCK, 2])
        return (first + BLOCK, here), (tf.range(first, first + rows), neighbours, contents)

    start = (tf.constant(0, tf.int64), unknown)
    return blocks.scan(start, without_autograph(number)).unbatch()


def is_end(position: tf.Tensor, neighbours: tf.Tensor) -> tf.Tensor:
    """Return whether an element is the end marker."""
    return tf.equal(neighbours[BLOCK + position % BLOCK, 0], END)


def read_batches(
    records: tf.data.Dataset,
    batch_size: int,
    total: int | None,
    messages: Messages,
    log: SkipLog | None,
    *,
    drop_remainder: bool,
    repeat: bool,
    shards: int,
    threads: int,
) -> tf.data.Dataset:
    """Return the dataset of batches that `images` or `tfrecords` returns.

    `records` is a dataset of (position, neighbours, value), `total` of them if that is known. A lost record is
    written into `log`; if there is none, it is an error.
    """
    least = batch_size if drop_remainder else 1
    check = _GapCheck(messages, log, least)
    batches = records.batch(batch_size, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    batches = batches.scan(start, without_autograph(check))

    def rows(values: Nest) -> tf.Tensor:
        return tf.shape(tf.nest.flatten(values)[0])[0]

    def with_static_shape(*values: Nest) -> Nest:
        static = tf.nest.map_structure(lambda leaf: tf.ensure_shape(leaf, [batch_size, *leaf.shape[1:]]), values)
        return static if len(values) > 1 else static[0]

    batches = batches.filter(lambda *values: rows(values) >= least)
    if drop_remainder:
        batches = batches.map(with_static_shape)
    if total is not None and log is None:
        number = total // batch_size if drop_remainder else -(-total // batch_size)
        batches = batches.apply(tf.data.experimental.assert_cardinality(number))
    if repeat:
        batches = batches.repeat()
    options = tf.data.Options()
    options.deterministic = True
    policies = tf.data.experimental.AutoShardPolicy
    # Never by files: every process takes its part of the same batches, or already has its own files.
    options.experimental_distribute.auto_shard_policy = policies.DATA if shards == 1 else policies.OFF
    options.threading.private_threadpool_size = threads
    return with_log(batches.prefetch(tf.data.AUTOTUNE).with_options(options), log)


@dataclasses.dataclass(frozen=True)
class _GapCheck:
    """Finds the gaps in each batch, and removes the end marker; the function of a `scan`.

    Its state is the next position, and the numbers of records that came and that were lost.
    """

    messages: Messages
    log: SkipLog | None
    least: int  # records of a batch

    def __call__(self, state: tuple[tf.Tensor, ...], batch: tuple[tf.Tensor, ...]) -> Nest:
        expected, came, failed = state
        positions, neighbours, values = batch
        last = positions[-1]
        rows = tf.size(positions, tf.int64)
        lost = tf.cond(
            tf.equal(last + 1 - expected, rows),
            lambda: tf.constant(0, tf.int64),
            lambda: self._report(_missing(expected, positions, neighbours)),
        )
        over = is_end(last, neighbours[-1])
        rows -= tf.cast(over, tf.int64)
        came, failed = came + rows, failed + lost
        with tf.control_dependencies([lost]):
            reported = tf.cond(over, lambda: self._end_pass(came, failed), lambda: tf.constant(True))
        with tf.control_dependencies([reported]):
            return (last + 1, came, failed), tf.nest.map_structure(lambda leaf: leaf[:rows], values)

    def _report(self, names: tf.Tensor) -> tf.Tensor:
        """Raise, or write the names into the log; return the minimum number of lost records."""
        lost = self.messages.lost(names)
        if self.log is not None:
            locations = tf.map_fn(self._location, names, fn_output_signature=tf.string)
            with tf.control_dependencies([self.log.add(locations, lost)]):
                return tf.reduce_sum(tf.maximum(lost, 1))
        name = names[tf.argmax(names[:, 0] >= 0)]  # the first known one
        text = tf.strings.join(
            [
                f"keras_tpu_ext.data.{self.messages.function}: ",
                self._location(name),
                " ",
                tf.cond(name[0] >= 0, lambda: self.messages.fault(name), lambda: tf.constant("cannot be read.")),
                ' Mend or remove it, or write on_error="skip" to leave such records out and have them counted.',
            ]
        )
        with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
            return tf.reduce_sum(lost)

    def _location(self, name: tf.Tensor) -> tf.Tensor:
        unknown = tf.constant("one of many in a row")
        return tf.cond(name[0] >= 0, lambda: self.messages.location(name), lambda: unknown)

    def _end_pass(self, came: tf.Tensor, failed: tf.Tensor) -> tf.Tensor:
        function, log = self.messages.function, self.log
        text = tf.strings.join(
            [
                f"keras_tpu_ext.data.{function} needs at least {self.least} records for a batch; it found ",
                tf.strings.as_string(came),
                " that can be read and ",
                tf.strings.as_string(failed),
                " that cannot (",
                "" if log is None else log.first_positions(),
                '). Write on_error="raise" to see what is the matter with those, or a smaller batch_size.',
            ]
        )
        with tf.control_dependencies([tf.debugging.Assert(came >= self.least, [text])]):
            return tf.constant(True) if log is None else log.end_pass(function, came, failed)


def _missing(expected: tf.Tensor, positions: tf.Tensor, neighbours: tf.Tensor) -> tf.Tensor:
    """Return the names of the records missing from `positions`, which should begin at `expected`."""
    indices = positions - expected
    present = tf.scatter_nd(indices[:, None], tf.ones_like(indices), [indices[-1] + 1])
    missing = tf.where(tf.equal(present, 0))[:, 0] + expected
    rows = tf.searchsorted(positions, missing, side="right")
    first = tf.gather(positions, rows) // BLOCK * BLOCK - BLOCK  # the first one whose name this row carries
    indices = tf.stack([tf.cast(rows, tf.int64), tf.maximum(missing - first, 0)], 1)
    found = tf.gather_nd(neighbours, indices)
    return tf.where((missing >= first)[:, None], found, tf.constant(_UNKNOWN, tf.int64))
