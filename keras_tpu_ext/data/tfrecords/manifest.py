"""The manifest of a set of shards, and the report of the writer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os

from keras_tpu_ext.checks import schema
from keras_tpu_ext.data._tensorflow import tf
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.output.report import Report

FORMAT = 2
MANIFEST = "manifest.json"
PLAN = "unfinished.json"
_HEAD_BYTES = 1024
_LARGEST = 100_000_000  # bytes of a manifest

# Format 1 has only the number of records for each shard.
SHARD = {"records": schema.integer(), "bytes": schema.integer(), "head": schema.text}
_FIELDS = {
    "format": schema.integer(1, FORMAT),
    "records": schema.integer(1),
    "class_names": schema.list_of(schema.text),
    "labelled": schema.boolean,
    "size": schema.optional(schema.integer(1)),
    "plan": schema.text,
    "skipped": schema.list_of(schema.text),
}
_OURS = {"format", "shards", "records", "plan"}  # another program's manifest.json has none of them


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard as its writer left it."""

    records: int  # number of records
    bytes: int | None = None  # size of the file; `None` if it is unknown (format 1)
    head: str = ""  # SHA-256 of the first KiB of the file


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The manifest of a whole set of shards."""

    shards: dict[str, Shard]  # the shards by the names of their files
    class_names: tuple[str, ...] = ()  # the names of the labels; empty if unknown
    labelled: bool = True  # whether records have a label
    size: int | None = None  # pixels of the short side of resized images; `None` if they were not resized
    plan: str = ""  # hash of the sources and options
    skipped: tuple[str, ...] = ()  # sources that could not be read and were left out

    @property
    def records(self) -> int:
        """Number of records in all shards."""
        return sum(shard.records for shard in self.shards.values())

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps({"format": FORMAT, "records": self.records, **dataclasses.asdict(self)}, indent=1)


@dataclasses.dataclass(frozen=True)
class WrittenRecords(Report):
    """The shards that `write_tfrecords` has written.

    Attributes:
        folder: The folder.
        records: Number of records in all shards.
        shards: Number of shards.
        shards_now: Number of shards that this run wrote; the others are from an interrupted run.
        class_names: The names of the labels.
        skipped: Sources that could not be read and were left out.
    """

    folder: str
    records: int
    shards: int
    shards_now: int
    class_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are any records."""
        return self.records > 0

    def __str__(self) -> str:
        classes = f" of {len(self.class_names)} classes" if self.class_names else ""
        before = self.shards - self.shards_now
        old = f" ({before} of them were there from a run before)" if before else ""
        lines = [f"{self.records} records{classes} in {self.shards} shards{old} in {self.folder}"]
        if self.skipped:
            count = len(self.skipped)
            files = "1 file could not be read and is" if count == 1 else f"{count} files could not be read and are"
            lines.append(f"{files} left out, such as {self.skipped[0]}")
        return "\n".join([*lines, f'Read them with kte.data.tfrecords("{self.folder}", batch_size=128)'])


def read_manifest(function: str, folder: str) -> Manifest | None:
    """Return the manifest in `folder`, or `None` if there is none, or another program's."""
    path = os.path.join(folder, MANIFEST)
    try:
        content = read_file(path)
        return None if content is None else _parse_manifest(schema.parse_json(content))
    except schema.MismatchError as error:
        raise ArgumentError(
            f"{function} needs {path!r} to be the manifest that write_tfrecords wrote; {error}. Copy the folder "
            "again, or write the set again into another one. To read the shards without their counts, remove that "
            "file."
        ) from None


def _parse_manifest(values: object) -> Manifest | None:
    if not isinstance(values, dict) or not _OURS & values.keys():
        return None
    number = _FIELDS["format"](values.get("format"), "format")
    shard = schema.integer() if number == 1 else schema.fields(SHARD)
    shards = schema.mapping(shard, keys=schema.file_name)
    found = schema.fields({**_FIELDS, "shards": shards})(values, "")
    del found["format"]
    records = found.pop("records")
    found["shards"] = {name: Shard(one) if number == 1 else Shard(**one) for name, one in found["shards"].items()}
    found.update({name: tuple(found[name]) for name in ("class_names", "skipped")})
    manifest = Manifest(**found)
    if records != manifest.records:
        raise schema.MismatchError("records", f"the sum of those of the shards, {manifest.records}", records)
    return manifest


def shard_of(path: str, records: int) -> Shard:
    """Return the shard that a file with so many records is."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return Shard(records, file.size(), hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest())


def difference(path: str, shard: Shard) -> str:
    """Return how a file differs from what its writer left; empty if it does not."""
    if shard.bytes is None:
        return ""
    try:
        found = shard_of(path, shard.records)
    except tf.errors.OpError:
        return "cannot be read"
    if found.bytes != shard.bytes:
        return f"has {found.bytes} bytes and not {shard.bytes}"
    return "" if found == shard else "begins with other bytes than those that were written"


def read_file(path: str) -> bytes | None:
    """Return the bytes of a file, or `None` if it is not there."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise schema.MismatchError("it", "a file", "a folder or a pipe")
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            if file.size() > _LARGEST:
                raise schema.MismatchError("it", f"a file of at most {_LARGEST:,} bytes", file.size())
            return bytes(file.read())
    except tf.errors.NotFoundError:
        return None
    except tf.errors.OpError as error:
        raise schema.MismatchError("it", "a file that can be read", error.message) from None


def write_atomically(path: str, text: str) -> None:
    """Write a file atomically."""
    with tf.io.gfile.GFile(path + ".tmp", "w") as file:
        file.write(text)
    tf.io.gfile.rename(path + ".tmp", path, overwrite=True)
