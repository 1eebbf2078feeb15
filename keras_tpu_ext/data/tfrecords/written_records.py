"""What `write_tfrecords` has written."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tpu_ext._repr import HtmlText


@dataclasses.dataclass(frozen=True)
class WrittenRecords(HtmlText):
    """What `write_tfrecords` has written.

    Attributes:
        folder: Where.
        records: Number of records in all shards.
        shards: Number of shards.
        shards_now: How many of them this run wrote; the others were there from one that was broken off.
        class_names: What the labels mean.
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
        """Whether there is anything to train on."""
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
            lines.append(f"{len(self.skipped)} files could not be read and are left out, such as {self.skipped[0]}")
        return "\n".join([*lines, f'Read them with kte.data.tfrecords("{self.folder}", batch_size=128)'])
