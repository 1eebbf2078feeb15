"""Records that cannot be read are left out by `ignore_errors`; here it is found out which ones, and told.

Every record is given a position before anything is read. What fails later leaves a gap in the positions, and a last
element, which is no record, shows a gap at the end. As a record that is gone can no longer say who it was, each one
carries the names of those around it. That costs nothing for each record: names are written for a block of records at
once, and gaps looked for in a batch at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_tpu_ext.data._tensorflow import as_written
from keras_tpu_ext.data.skipped import Ledger

BLOCK = 16  # records that are numbered at once; a record knows the names of its own block and of that before
_END, _UNKNOWN = -1, -2  # in the place of a name's file


@dataclasses.dataclass(frozen=True)
class Telling:
    """What to say of a record that could not be read; a name is two int64: the number of a file and of a record.

    Attributes:
        function: What the user called, such as `"images"`.
        place: From a name to a text such as `"cat/1.jpg"`.
        fault: From a name to what was needed and what came. It may read the file again.
        lost: From names to how many records are lost with each, int64; -1 where no one knows.
    """

    function: str
    place: Callable[[Any], Any]
    fault: Callable[[Any], Any]
    lost: Callable[[Any], Any]


def numbered(tf: Any, items: Any) -> Any:
    """Return `items`, a dataset of (name, content), as one of (position, names around it, content).

    One element more comes at the end, for which `is_end` is true; its content is all zeros.
    """
    name, content = items.element_spec
    nothing = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), content)
    end = tf.data.Dataset.from_tensors((tf.fill(name.shape, tf.constant(_END, tf.int64)), nothing))
    unknown = tf.fill([BLOCK, 2], tf.constant(_UNKNOWN, tf.int64))

    def number(state: Any, block: Any) -> Any:
        first, before = state
        names, contents = block
        rows = tf.shape(names, tf.int64)[0]
        here = tf.ensure_shape(tf.concat([names, unknown[rows:]], 0), [BLOCK, 2])
        around = tf.concat([before, here], 0)
        around = tf.ensure_shape(tf.repeat(around[None], rows, 0), [None, 2 * BLOCK, 2])
        return (first + BLOCK, here), (tf.range(first, first + rows), around, contents)

    start = (tf.constant(0, tf.int64), unknown)
    return items.concatenate(end).batch(BLOCK).scan(start, as_written(tf, number)).unbatch()


def is_end(tf: Any, position: Any, around: Any) -> Any:
    """Return whether this is the element after the last record."""
    return tf.equal(around[BLOCK + position % BLOCK, 0], _END)


def checked(tf: Any, records: Any, batch_size: int, telling: Telling, ledger: Ledger, *, drop_remainder: bool) -> Any:
    """Return batches of the values in `records`, a dataset of (position, names around it, value).

    Without a ledger that skips, a record that is not there is an error.
    """
    least = batch_size if drop_remainder else 1
    finish = _Finish(tf, telling, ledger, least)
    batches = records.batch(batch_size, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    batches = batches.scan(start, as_written(tf, finish))

    def rows(values: Any) -> Any:
        return tf.shape(tf.nest.flatten(values)[0])[0]

    batches = batches.filter(lambda *values: rows(values) >= least)
    if not drop_remainder:
        return batches

    def with_static_shape(*values: Any) -> Any:
        static = tf.nest.map_structure(lambda leaf: tf.ensure_shape(leaf, [batch_size, *leaf.shape[1:]]), values)
        return static if len(values) > 1 else static[0]

    return batches.map(with_static_shape)


class _Finish:
    """The last step: looks for gaps in a batch, and takes off the element after the last record.

    Its state is the position that comes next, and the numbers of records that came and that did not.
    """

    def __init__(self, tf: Any, telling: Telling, ledger: Ledger, least: int) -> None:
        self._tf = tf
        self._telling = telling
        self._ledger = ledger
        self._least = least

    def __call__(self, state: Any, batch: Any) -> Any:
        tf = self._tf
        expected, came, failed = state
        positions, around, values = batch
        last = positions[-1]
        rows = tf.size(positions, tf.int64)
        gone = tf.cond(
            tf.equal(last + 1 - expected, rows),
            lambda: tf.constant(0, tf.int64),
            lambda: self._tell(_missing(tf, expected, positions, around)),
        )
        over = is_end(tf, last, around[-1])
        rows -= tf.cast(over, tf.int64)
        came, failed = came + rows, failed + gone
        with tf.control_dependencies([gone]):
            told = tf.cond(over, lambda: self._tell_of_pass(came, failed), lambda: tf.constant(True))
        with tf.control_dependencies([told]):
            return (last + 1, came, failed), tf.nest.map_structure(lambda leaf: leaf[:rows], values)

    def _tell(self, names: Any) -> Any:
        """Raise, or write down the names; return how many records are lost, at least."""
        tf, telling = self._tf, self._telling
        lost = telling.lost(names)
        if self._ledger.skips:
            places = tf.map_fn(self._place, names, fn_output_signature=tf.string)
            written = self._ledger.write(places, lost)
            with tf.control_dependencies([written]):
                return tf.reduce_sum(tf.maximum(lost, 1))
        name = names[tf.argmax(names[:, 0] >= 0)]  # the first one known
        text = tf.strings.join(
            [
                f"keras_tpu_ext.data.{telling.function}: ",
                self._place(name),
                " ",
                tf.cond(name[0] >= 0, lambda: telling.fault(name), lambda: tf.constant("cannot be read.")),
                ' Mend or remove it, or write on_error="skip" to leave such records out and have them counted.',
            ]
        )
        with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
            return tf.reduce_sum(lost)

    def _place(self, name: Any) -> Any:
        tf = self._tf
        one_of_many = tf.constant("one of many in a row")
        return tf.cond(name[0] >= 0, lambda: self._telling.place(name), lambda: one_of_many)

    def _tell_of_pass(self, came: Any, failed: Any) -> Any:
        tf, function = self._tf, self._telling.function
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


def _missing(tf: Any, expected: Any, positions: Any, around: Any) -> Any:
    """Return the names of the records that are not among `positions`, of which `expected` was to be the first."""
    places = positions - expected
    present = tf.scatter_nd(places[:, None], tf.ones_like(places), [places[-1] + 1])
    missing = tf.where(tf.equal(present, 0))[:, 0] + expected
    rows = tf.searchsorted(positions, missing, side="right")
    first = tf.gather(positions, rows) // BLOCK * BLOCK - BLOCK  # the first one that this row knows the name of
    indices = tf.stack([tf.cast(rows, tf.int64), tf.maximum(missing - first, 0)], 1)
    names = tf.gather_nd(around, indices)
    return tf.where((missing >= first)[:, None], names, tf.constant(_UNKNOWN, tf.int64))
