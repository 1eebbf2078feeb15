"""The plan of a set of shards, which shows whether a run continues an earlier one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
from typing import Any

from keras_tpu_ext.data._listing import Files, parallel_map

_SHARD_BYTES = 128 << 20  # approximate size of the images in a shard
_LEAST_SHARDS = 8  # so that files can be read in parallel, and by as many hosts


@dataclasses.dataclass(frozen=True)
class Plan:
    """The files of each shard, in order."""

    files: Files  # the sources
    order: tuple[int, ...]  # numbers of files, in the order in which they are written
    shards: int  # number of shards
    identity: str  # hash of the sources and options

    def name(self, shard: int) -> str:
        """Return the file name of a shard."""
        return f"data-{shard:05d}-of-{self.shards:05d}.tfrecord"

    def files_of(self, shard: int) -> tuple[int, ...]:
        """Return the numbers of the files in a shard."""
        number = len(self.order)
        return self.order[number * shard // self.shards : number * (shard + 1) // self.shards]


def make_plan(tf: Any, files: Files, shards: int | None, options: dict[str, Any]) -> Plan:
    """Return the plan, from the size and time of every file; no file is read."""

    def look(path: str) -> tuple[int, int]:
        try:
            stat = tf.io.gfile.stat(path)
        except tf.errors.OpError:
            return -1, -1
        return int(stat.length), int(stat.mtime_nsec)

    looks = parallel_map(look, files.paths)
    total = sum(max(length, 0) for length, _ in looks)
    wanted = shards or max(_LEAST_SHARDS, -(-total // _SHARD_BYTES))
    number = min(wanted, len(files.paths))
    order = list(range(len(files.paths)))
    if options["shuffle"]:
        random.Random(options["seed"]).shuffle(order)
    names = [os.path.relpath(path, files.root) if files.root else path for path in files.paths]
    said = [names, files.labels, files.class_names, looks, number, options]
    return Plan(files, tuple(order), number, hashlib.sha256(json.dumps(said).encode()).hexdigest())
