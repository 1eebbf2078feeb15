"""The records of TFRecord files, many files at once, with a mark where the rest of a file is lost.

TensorFlow leaves a file at the first damage, takes a cut in the length of a record for its end, and tries for ever to
open a file that is not there once errors are ignored. So the records of a file are numbered with the errors among
them, their bytes are added up and compared with the size of the file, and it is opened once before.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tpu_ext.data._lost_records import BLOCK
from keras_tpu_ext.data._tensorflow import as_written

AT_ONCE = 16  # files
_BUFFER = 1 << 20  # bytes read ahead of each
SIZES = 1 << 32  # sizes are compared modulo this, as GZIP has them
_FRAME = 16  # bytes of a record's length and checksums


@dataclasses.dataclass(frozen=True)
class Shards:
    """TFRecord files.

    Attributes:
        paths: Paths.
        sizes: Bytes of each, uncompressed, modulo 2^32; -1 where that is not known.
        counts: Records of each by the manifest; -1 where there is none.
        compression: `""`, `"GZIP"` or `"ZLIB"`.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    compression: str

    @property
    def records(self) -> int | None:
        """How many records there are in all, if it is known."""
        return None if min(self.counts) < 0 else sum(self.counts)


def records_of(tf: Any, shards: Shards, numbers: Any) -> Any:
    """Return a dataset of (name, record) of the files with `numbers`, in an order that is always the same.

    A name is the numbers of a file and of a record in it. Where the rest of a file is lost comes an element that is
    no record, with the number -1 - the number of records before it.
    """
    return numbers.interleave(
        lambda number: _of_file(tf, shards, number),
        cycle_length=min(AT_ONCE, len(shards.paths)),
        block_length=BLOCK,
        num_parallel_calls=min(AT_ONCE, len(shards.paths)),
        deterministic=True,
    )


def one_record(tf: Any, shards: Shards, name: Any) -> Any:
    """Return the record of a name, or nothing, as a string; in a graph."""
    path = tf.constant(shards.paths)[name[0]]
    records = tf.data.TFRecordDataset(path, shards.compression).skip(name[1]).take(1)
    return records.reduce(tf.constant(""), lambda before, record: record)


def _of_file(tf: Any, shards: Shards, number: Any) -> Any:
    data = tf.data.Dataset
    path = tf.constant(shards.paths)[number]
    opened = data.from_tensors(path).map(lambda path: _opened(tf, path))
    records = opened.flat_map(lambda path: tf.data.TFRecordDataset(path, shards.compression, buffer_size=_BUFFER))
    marked = data.zip((records, data.from_tensors(False).repeat())).concatenate(data.from_tensors(("", True)))
    # The number of a record that fails is used up, so that the last number tells of it.
    blocks = marked.enumerate().ignore_errors(log_warning=True).batch(BLOCK)
    start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    size, count = tf.constant(shards.sizes, tf.int64)[number], tf.constant(shards.counts, tf.int64)[number]
    return blocks.scan(start, as_written(tf, _Watch(tf, number, size, count))).unbatch()


def _opened(tf: Any, path: Any) -> Any:
    """Return `path`; an error where the file cannot be opened."""
    first = tf.data.FixedLengthRecordDataset(path, 1, buffer_size=1).take(1)
    with tf.control_dependencies([first.reduce(tf.constant(0), lambda number, _: number + 1)]):
        return tf.identity(path)


class _Watch:
    """Passes on the records of a file, and a mark at its end if some are lost.

    Its state is the number of records and of bytes that came.
    """

    def __init__(self, tf: Any, file: Any, size: Any, count: Any) -> None:
        self._tf = tf
        self._file = file
        self._size = size
        self._count = count

    def __call__(self, state: Any, block: Any) -> Any:
        tf = self._tf
        came, length = state
        numbers, (records, ends) = block
        is_last = ends[-1]
        here = tf.size(numbers, tf.int64) - tf.cast(is_last, tf.int64)
        came += here
        length += tf.reduce_sum(tf.cast(tf.strings.length(records[:here]) + _FRAME, tf.int64))
        lost = is_last & (
            (numbers[-1] != came) | self._differs(self._size, length % SIZES) | self._differs(self._count, came)
        )
        rows = here + tf.cast(lost, tf.int64)
        numbers = tf.where(ends, -1 - came, numbers)[:rows]
        return (came, length), (tf.stack([tf.fill([rows], self._file), numbers], 1), records[:rows])

    def _differs(self, known: Any, found: Any) -> Any:
        return (known >= 0) & self._tf.not_equal(known, found)
