"""The manifest of a set of shards, and the report of the writer."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from keras_tpu_ext._repr import HtmlText
from keras_tpu_ext.errors import ArgumentError

FORMAT = 1
MANIFEST = "manifest.json"
PLAN = "unfinished.json"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The manifest of a whole set of shards.

    Attributes:
        shards: Number of records by the name of the file.
        class_names: The names of the labels; empty if unknown.
        labelled: Whether records have a label.
        size: Pixels of the short side of resized images; `None` if they were not resized.
        plan: Hash of the sources and options.
        skipped: Sources that could not be read and were left out.
    """

    shards: dict[str, int]
    class_names: tuple[str, ...] = ()
    labelled: bool = True
    size: int | None = None
    plan: str = ""
    skipped: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(
            {"format": FORMAT, "records": sum(self.shards.values()), **dataclasses.asdict(self)}, indent=1
        )


@dataclasses.dataclass(frozen=True)
class WrittenRecords(HtmlText):
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

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        lists = {"class_names": list(self.class_names), "skipped": list(self.skipped)}
        return {"ok": self.ok, **dataclasses.asdict(self), **lists}

    def __str__(self) -> str:
        classes = f" of {len(self.class_names)} classes" if self.class_names else ""
        before = self.shards - self.shards_now
        kept = f" ({before} of them were there from a run before)" if before else ""
        lines = [f"{self.records} records{classes} in {self.shards} shards{kept} in {self.folder}"]
        if self.skipped:
            count = len(self.skipped)
            files = "1 file could not be read and is" if count == 1 else f"{count} files could not be read and are"
            lines.append(f"{files} left out, such as {self.skipped[0]}")
        return "\n".join([*lines, f'Read them with kte.data.tfrecords("{self.folder}", batch_size=128)'])


def read_manifest(tf: Any, folder: str) -> Manifest | None:
    """Return the manifest in `folder`, or `None`.

    Raises:
        ArgumentError: If there is one that cannot be parsed.
    """
    values = read_json(tf, os.path.join(folder, MANIFEST))
    if values is None or "format" not in values:  # another file with this name
        return None
    if values["format"] != FORMAT:
        raise ArgumentError(
            f"{os.path.join(folder, MANIFEST)!r} needs to have the format {FORMAT}; it has {values['format']!r}. "
            "Write the shards again with this version, or install the version of keras-tpu-ext that wrote them."
        )
    names = {field.name for field in dataclasses.fields(Manifest)}
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name in names
    }
    return Manifest(**known)


def read_json(tf: Any, path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, or `None` if there is none."""
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            values = json.loads(file.read())
    except (tf.errors.NotFoundError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def write_atomically(tf: Any, path: str, text: str) -> None:
    """Write a file atomically."""
    with tf.io.gfile.GFile(path + ".tmp", "w") as file:
        file.write(text)
    tf.io.gfile.rename(path + ".tmp", path, overwrite=True)
