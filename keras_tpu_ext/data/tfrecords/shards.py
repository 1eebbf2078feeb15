"""Finds TFRecord files, and reads many at once with a mark where the rest of one is lost.

TensorFlow leaves a file at the first damage, takes a cut in the length field of a record for the end of the file,
and, if errors are ignored, tries for ever to open a missing file. So records and errors of a file are numbered
together, its bytes are summed and compared with its size, and it is opened once beforehand.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.data._listing import is_shard, list_shards, parallel_map
from keras_tpu_ext.data._records import BLOCK
from keras_tpu_ext.data._tensorflow import tf, without_autograph
from keras_tpu_ext.data.tfrecords.manifest import MANIFEST, PLAN, Manifest, Shard, difference, read_manifest
from keras_tpu_ext.errors import ArgumentError

CYCLE_LENGTH = 16  # files read at once
_BUFFER = 1 << 20  # bytes read ahead of each
_DAMAGED = 1  # byte: no shard has this size
_MODULUS = 1 << 32  # of sizes, as stored by GZIP
_FRAME = 16  # bytes of a record's length and checksums


@dataclasses.dataclass(frozen=True)
class Shards:
    """TFRecord files."""

    paths: tuple[str, ...]  # paths
    sizes: tuple[int, ...]  # uncompressed size of each in bytes, modulo 2^32; -1 if it is unknown
    counts: tuple[int, ...]  # number of records in each by the manifest; -1 if there is none
    compression: str  # `""`, `"GZIP"` or `"ZLIB"`

    @property
    def records(self) -> int | None:
        """Number of records in all, if known."""
        return None if min(self.counts) < 0 else sum(self.counts)


def find_shards(source: Any) -> tuple[tuple[str, ...], Manifest | None]:
    """Return the paths of shards, and their manifest if there is one."""
    folder = check.path(source) if isinstance(source, (str, os.PathLike)) else ""
    if folder and tf.io.gfile.isdir(folder):
        manifest = read_manifest("tfrecords", folder)
        if manifest is None and tf.io.gfile.exists(os.path.join(folder, PLAN)):
            raise ArgumentError(
                f"tfrecords found {os.path.join(folder, PLAN)!r}: the shards in this folder are not all written yet. "
                "Run `keras-tpu-ext tfrecords` again with the same arguments; it goes on where it was."
            )
        if manifest is not None:
            check_names("tfrecords", folder, manifest, tf.io.gfile.listdir(folder))
            return tuple(os.path.join(folder, name) for name in sorted(manifest.shards)), manifest
    paths = list_shards("tfrecords", source)
    folder = os.path.dirname(paths[0])
    is_one = all(os.path.dirname(path) == folder for path in paths)
    manifest = read_manifest("tfrecords", folder) if is_one else None
    names = {os.path.basename(path) for path in paths}
    if manifest is None or not names & manifest.shards.keys():  # it is of other files in this folder
        return paths, None
    check_names("tfrecords", folder, manifest, names | manifest.shards.keys())
    return paths, manifest


def check_names(function: str, folder: str, manifest: Manifest, there: Iterable[str]) -> None:
    """Check that the files of a folder are those of its manifest."""
    path, known = os.path.join(folder, MANIFEST), manifest.shards.keys()
    if missing := sorted(known - set(there)):
        raise ArgumentError(
            f"{function} needs all {len(known)} shards that {path!r} names; {len(missing)} are not there, such as "
            f"{missing[0]!r}. Bring them, or write a pattern for those that are: "
            f'tfrecords("{folder}/*.tfrecord", ...).'
        )
    if others := sorted(name for name in set(there) - known if is_shard(name)):
        raise ArgumentError(
            f"{function} needs the shards to be those that {path!r} names; {others[0]!r} is not one of them. Move it "
            "to another folder, or remove the manifest to read all shards without their counts."
        )


def make_shards(
    paths: tuple[str, ...],
    manifest: Manifest | None,
    part: tuple[int, int],
    compression: str,
    *,
    skips: bool = False,
) -> Shards:
    """Return the files of one of `part[1]` hosts, with their sizes and counts."""
    index, count = part
    if len(paths) < count:
        raise ArgumentError(
            f"tfrecords needs at least one file for each of {count} hosts; there are {len(paths)}, such as "
            f"{paths[0]!r}. Write the data again with more: keras-tpu-ext tfrecords FOLDER OUT --shards {count}"
        )
    own = paths[index::count]
    known = [None if manifest is None else manifest.shards.get(os.path.basename(path)) for path in own]

    def size(path: str, shard: Shard | None) -> int:
        fault = "" if shard is None else difference(path, shard)
        if fault and not skips:
            raise ArgumentError(
                f"tfrecords needs {path!r} to be the file that {MANIFEST} beside it describes; it {fault}: it was "
                "cut off, changed or renamed. Copy it again or write the set again, or write "
                'on_error="skip" to read what can be read and have the rest counted.'
            )
        return _DAMAGED if fault else _size(path, compression)

    sizes = tuple(parallel_map(lambda pair: size(*pair), zip(own, known, strict=True)))
    return Shards(own, sizes, tuple(-1 if shard is None else shard.records for shard in known), compression)


def _size(path: str, compression: str) -> int:
    """Return the uncompressed size of a file modulo 2^32, or -1 if it is unknown."""
    if compression == "ZLIB":
        return -1
    try:
        length = int(tf.io.gfile.stat(path).length)
        if not compression:
            return length % _MODULUS
        with tf.io.gfile.GFile(path, "rb") as file:
            file.seek(max(0, length - 4))
            return int.from_bytes(file.read(4), "little") if length > 4 else _DAMAGED  # RFC 1952
    except tf.errors.OpError:
        return _DAMAGED


def records_of(shards: Shards, numbers: tf.data.Dataset) -> tf.data.Dataset:
    """Return a deterministic dataset of (name, record) of the files with `numbers`.

    A name is the number of the file and of the record in it. If the rest of a file is lost, there is an element
    without a record, whose number is -1 minus the number of records before it.
    """
    return numbers.interleave(
        lambda number: _of_file(shards, number),
        cycle_length=min(CYCLE_LENGTH, len(shards.paths)),
        block_length=BLOCK,
        num_parallel_calls=min(CYCLE_LENGTH, len(shards.paths)),
        deterministic=True,
    )


def one_record(shards: Shards, name: tf.Tensor) -> tf.Tensor:
    """Return the record of a name, empty if it cannot be read; in a graph."""
    path = tf.constant(shards.paths)[name[0]]
    records = tf.data.TFRecordDataset(path, shards.compression).skip(name[1]).take(1)
    return records.reduce(tf.constant(""), lambda before, record: record)


def _of_file(shards: Shards, number: tf.Tensor) -> tf.data.Dataset:
    data = tf.data.Dataset
    path = tf.constant(shards.paths)[number]
    opened = data.from_tensors(path).map(lambda path: _check_opens(path))
    records = opened.flat_map(lambda path: tf.data.TFRecordDataset(path, shards.compression, buffer_size=_BUFFER))
    marked = data.zip((records, data.from_tensors(False).repeat())).concatenate(data.from_tensors(("", True)))
    # A record that fails uses up a number, so the last number reveals it.
    blocks = marked.enumerate().ignore_errors(log_warning=True).batch(BLOCK)
    size, count = tf.constant(shards.sizes, tf.int64)[number], tf.constant(shards.counts, tf.int64)[number]

    def check_end(state: tuple[tf.Tensor, ...], block: tuple[tf.Tensor, ...]) -> Nest:
        """Pass records on, and mark the end of the file if some are lost; the state is their number and bytes."""
        came, length = state
        numbers, (records, ends) = block
        is_last = ends[-1]
        here = tf.size(numbers, tf.int64) - tf.cast(is_last, tf.int64)
        came += here
        length += tf.reduce_sum(tf.cast(tf.strings.length(records[:here]) + _FRAME, tf.int64))
        differs = (size >= 0) & tf.not_equal(size, length % _MODULUS)
        differs |= (count >= 0) & tf.not_equal(count, came)
        lost = is_last & ((numbers[-1] != came) | differs)
        rows = here + tf.cast(lost, tf.int64)
        numbers = tf.where(ends, -1 - came, numbers)[:rows]
        return (came, length), (tf.stack([tf.fill([rows], number), numbers], 1), records[:rows])

    start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    return blocks.scan(start, without_autograph(check_end)).unbatch()


def _check_opens(path: tf.Tensor) -> tf.Tensor:
    """Return `path`, or raise if the file cannot be opened."""
    first = tf.data.FixedLengthRecordDataset(path, 1, buffer_size=1).take(1)
    with tf.control_dependencies([first.reduce(tf.constant(0), lambda number, _: number + 1)]):
        return tf.identity(path)
