"""What the writer leaves beside the shards: how many records each has, and what their labels mean."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from keras_tpu_ext.errors import ArgumentError

FORMAT = 1
MANIFEST = "manifest.json"
PLAN = "unfinished.json"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A whole set of shards.

    Attributes:
        shards: Number of records by the name of the file.
        class_names: What the labels mean; empty where that is not known.
        labelled: Whether records have a label.
        size: Pixels of the short side to which images were made smaller; `None` where they are as they were.
        plan: What identifies the sources and options they were made from.
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


def read_manifest(tf: Any, folder: str) -> Manifest | None:
    """Return the manifest in `folder`, or `None`.

    Raises:
        ArgumentError: If there is one that cannot be understood.
    """
    values = read_json(tf, os.path.join(folder, MANIFEST))
    if values is None or "format" not in values:  # something else of this name
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
    """Return what a file says, or `None` where it is not there or no JSON object."""
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            values = json.loads(file.read())
    except (tf.errors.NotFoundError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def write_whole(tf: Any, path: str, text: str) -> None:
    """Write a file that is there whole or not at all."""
    with tf.io.gfile.GFile(path + ".tmp", "w") as file:
        file.write(text)
    tf.io.gfile.rename(path + ".tmp", path, overwrite=True)
