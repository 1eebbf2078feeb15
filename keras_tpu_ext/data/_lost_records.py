"""Finds the names of records that `ignore_errors` dropped because they could not be read.

Records are numbered before they are read. A dropped record leaves a gap in the numbers, and an end marker reveals a
gap at the end. Each record carries the names of its neighbours, so that a gap can be named. This takes some 20 us a
record: names are written once for a block of records, and gaps are found once for a batch. Catching the error of each
record in its own dataset would be simpler, and takes 24 ms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_tpu_ext.data._tensorflow import without_autograph
from keras_tpu_ext.data.skipped import Ledger

BLOCK = 16  # records numbered at once; each carries the names of its block and of the block before
END, _UNKNOWN = -1, -2  # in place of the file's number


@dataclasses.dataclass(frozen=True)
class Messages:
    """Messages about lost records. A name is two int64: the number of a file, and of a record in it."""

    function: str  # the public function, such as `"images"`
    place: Callable[[Any], Any]  # maps a name to a text such as `"cat/1.jpg"`
    fault: Callable[[Any], Any]  # maps a name to what was needed and what was found; may read the file again
    lost: Callable[[Any], Any]  # maps names to the number of records lost with each, int64; -1 if it is unknown


def number_records(tf: Any, blocks: Any) -> Any:
    """Return a dataset of (position, names of its neighbours, content), one record after another.

    Args:
        tf: TensorFlow.
        blocks: A dataset of (names, contents), `BLOCK` records at a time. An end marker is the last record: its name
            begins with `END`, and `is_end` is true for it.
    """
    unknown = tf.fill([BLOCK, 2], tf.constant(_UNKNOWN, tf.int64))

    def number(state: Any, block: Any) -> Any:
        first, before = state
        names, contents = block
        rows = tf.shape(names, tf.int64)[0]
        here = tf.ensure_shape(tf.concat([names, unknown[rows:]], 0), [BLOCK, 2])
        neighbours = tf.repeat(tf.concat([before, here], 0)[None], rows, 0)
        neighbours = tf.ensure_shape(neighbours, [None, 2 * BLOCK, 2])
        return (first + BLOCK, here), (tf.range(first, first + rows), neighbours, contents)

    start = (tf.constant(0, tf.int64), unknown)
    return blocks.scan(start, without_autograph(tf, number)).unbatch()


def is_end(tf: Any, position: Any, neighbours: Any) -> Any:
    """Return whether an element is the end marker."""
    return tf.equal(neighbours[BLOCK + position % BLOCK, 0], END)


def batch_records(
    tf: Any, records: Any, batch_size: int, messages: Messages, ledger: Ledger, *, drop_remainder: bool
) -> Any:
    """Return batches of the values in `records`, a dataset of (position, neighbours, value).

    A lost record is written into the ledger if the ledger skips, and is an error otherwise.
    """
    least = batch_size if drop_remainder else 1
    check = _GapCheck(tf, messages, ledger, least)
    batches = records.batch(batch_size, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    batches = batches.scan(start, without_autograph(tf, check))

    def rows(values: Any) -> Any:
        return tf.shape(tf.nest.flatten(values)[0])[0]

    batches = batches.filter(lambda *values: rows(values) >= least)
    if not drop_remainder:
        return batches

    def with_static_shape(*values: Any) -> Any:
        static = tf.nest.map_structure(lambda leaf: tf.ensure_shape(leaf, [batch_size, *leaf.shape[1:]]), values)
        return static if len(values) > 1 else static[0]

    return batches.map(with_static_shape)


class _GapCheck:
    """Finds the gaps in each batch, and removes the end marker; the function of a `scan`.

    Its state is the next position, and the numbers of records that came and that were lost.
    """

    def __init__(self, tf: Any, messages: Messages, ledger: Ledger, least: int) -> None:
        self._tf = tf
        self._messages = messages
        self._ledger = ledger
        self._least = least

    def __call__(self, state: Any, batch: Any) -> Any:
        tf = self._tf
        expected, came, failed = state
        positions, neighbours, values = batch
        last = positions[-1]
        rows = tf.size(positions, tf.int64)
        lost = tf.cond(
            tf.equal(last + 1 - expected, rows),
            lambda: tf.constant(0, tf.int64),
            lambda: self._report(_missing(tf, expected, positions, neighbours)),
        )
        over = is_end(tf, last, neighbours[-1])
        rows -= tf.cast(over, tf.int64)
        came, failed = came + rows, failed + lost
        with tf.control_dependencies([lost]):
            reported = tf.cond(over, lambda: self._close_pass(came, failed), lambda: tf.constant(True))
        with tf.control_dependencies([reported]):
            return (last + 1, came, failed), tf.nest.map_structure(lambda leaf: leaf[:rows], values)

    def _report(self, names: Any) -> Any:
        """Raise, or write the names into the ledger; return the minimum number of lost records."""
        tf, messages = self._tf, self._messages
        lost = messages.lost(names)
        if self._ledger.skips:
            places = tf.map_fn(self._place, names, fn_output_signature=tf.string)
            written = self._ledger.write(places, lost)
            with tf.control_dependencies([written]):
                return tf.reduce_sum(tf.maximum(lost, 1))
        name = names[tf.argmax(names[:, 0] >= 0)]  # the first known one
        text = tf.strings.join(
            [
                f"keras_tpu_ext.data.{messages.function}: ",
                self._place(name),
                " ",
                tf.cond(name[0] >= 0, lambda: messages.fault(name), lambda: tf.constant("cannot be read.")),
                ' Mend or remove it, or write on_error="skip" to leave such records out and have them counted.',
            ]
        )
        with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
            return tf.reduce_sum(lost)

    def _place(self, name: Any) -> Any:
        tf = self._tf
        one_of_many = tf.constant("one of many in a row")
        return tf.cond(name[0] >= 0, lambda: self._messages.place(name), lambda: one_of_many)

    def _close_pass(self, came: Any, failed: Any) -> Any:
        tf, function = self._tf, self._messages.function
        text = tf.strings.join(
            [
                f"keras_tpu_ext.data.{function} needs at least {self._least} records for a batch; it found ",
                tf.strings.as_string(came),
                " that can be read and ",
                tf.strings.as_string(failed),
                " that cannot (",
                self._ledger.first_places(),
                '). Write on_error="raise" to see what is the matter with those, or a smaller batch_size.',
            ]
        )
        some = tf.debugging.Assert(came >= self._least, [text])
        with tf.control_dependencies([some]):
            closed = self._ledger.close_pass(function, came, failed)
        with tf.control_dependencies([closed]):
            return tf.constant(True)


def _missing(tf: Any, expected: Any, positions: Any, neighbours: Any) -> Any:
    """Return the names of the records missing from `positions`, which should begin at `expected`."""
    places = positions - expected
    present = tf.scatter_nd(places[:, None], tf.ones_like(places), [places[-1] + 1])
    missing = tf.where(tf.equal(present, 0))[:, 0] + expected
    rows = tf.searchsorted(positions, missing, side="right")
    first = tf.gather(positions, rows) // BLOCK * BLOCK - BLOCK  # the first one whose name this row carries
    indices = tf.stack([tf.cast(rows, tf.int64), tf.maximum(missing - first, 0)], 1)
    found = tf.gather_nd(neighbours, indices)
    return tf.where((missing >= first)[:, None], found, tf.constant(_UNKNOWN, tf.int64))
