"""Writes the missing shards of a plan, and the manifest last."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from keras_tpu_ext.data._listing import Files
from keras_tpu_ext.data.tfrecords.manifest import (
    MANIFEST,
    PLAN,
    Manifest,
    WrittenRecords,
    read_json,
    read_manifest,
    write_atomically,
)
from keras_tpu_ext.data.tfrecords.shard_plan import Plan
from keras_tpu_ext.errors import ArgumentError

_PARALLEL_READS = 16  # files read and checked ahead of the one being written
_TEMPORARY, _DONE = ".tmp", ".done.json"


class ShardWriter:
    """Writes the shards of a plan.

    Args:
        tf: TensorFlow.
        plan: The plan.
        folder: The folder to write to.
        size: Pixels of the short side, or `None`.
        quality: JPEG quality of resized images.
        skips: Whether to leave out images that cannot be decoded.
    """

    def __init__(self, tf: Any, plan: Plan, folder: str, size: int | None, quality: int, *, skips: bool) -> None:
        self._tf = tf
        self._plan = plan
        self._folder = folder
        self._size = size
        self._quality = quality
        self._skips = skips

    def run(self, show: Callable[[int], None]) -> WrittenRecords:
        """Write the shards that are missing, then the manifest."""
        plan = self._plan
        manifest = self._claim_folder()
        if manifest is not None:
            return self._report(manifest, 0)
        written, done, skipped = 0, 0, []
        shards = {}
        for shard in range(plan.shards):
            found = self._finished(shard)
            if found is None:
                found = self._write(shard, functools.partial(_show_after, show, done))
                written += 1
            done += len(plan.files_of(shard))
            show(done)
            shards[plan.name(shard)] = found["records"]
            skipped += found["skipped"]
        files = plan.files
        manifest = Manifest(
            shards, files.class_names, files.labels is not None, self._size, plan.identity, tuple(skipped)
        )
        self._check_some(manifest)
        write_atomically(self._tf, self._path(MANIFEST), manifest.to_json())
        self._clean()
        return self._report(manifest, written)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _claim_folder(self) -> Manifest | None:
        """Claim the folder for this plan; return the manifest if everything is written.

        Raises:
            ArgumentError: If it has shards that are not of this plan.
        """
        gfile = self._tf.io.gfile
        gfile.makedirs(self._folder)
        manifest = read_manifest(self._tf, self._folder)
        if manifest is not None and manifest.plan == self._plan.identity:
            self._clean()
            return manifest
        begun = read_json(self._tf, self._path(PLAN))
        if manifest is not None or (begun is not None and begun.get("plan") != self._plan.identity):
            state = "was written" if manifest is not None else "was begun"
            raise ArgumentError(
                f"write_tfrecords needs an empty folder, or one it began with the same files and options; in "
                f"{self._folder!r} a set {state} from other ones: a source file, the number of shards, the size or "
                "another option has changed. Write to another folder, or remove this one."
            )
        others = [name for name in gfile.listdir(self._folder) if ".tfrecord" in name]
        if begun is None and others:
            raise ArgumentError(
                f"write_tfrecords needs an empty folder; {self._folder!r} has {others[0]!r}, which it did not write. "
                "Write to another folder, or remove that file."
            )
        if begun is None:
            write_atomically(self._tf, self._path(PLAN), json.dumps({"plan": self._plan.identity}))
        return None

    def _finished(self, shard: int) -> dict[str, Any] | None:
        """Return the counts of a shard that an earlier run has finished."""
        path = self._path(self._plan.name(shard))
        found = read_json(self._tf, path + _DONE) if self._tf.io.gfile.exists(path) else None
        return None if found is not None and found["skipped"] and not self._skips else found

    def _write(self, shard: int, show: Callable[[int], None]) -> dict[str, Any]:
        path = self._path(self._plan.name(shard))
        records, skipped = 0, []
        with self._tf.io.TFRecordWriter(path + _TEMPORARY) as file:
            for number, (source, record) in enumerate(self._records(self._plan.files_of(shard))):
                if record is None:
                    skipped.append(source)
                else:
                    file.write(record)
                    records += 1
                show(number + 1)
        found = {"records": records, "skipped": skipped}
        # First the counts, then the file itself: a file that exists always has its counts.
        write_atomically(self._tf, path + _DONE, json.dumps(found))
        self._tf.io.gfile.rename(path + _TEMPORARY, path, overwrite=True)
        return found

    def _records(self, numbers: tuple[int, ...]) -> Iterator[tuple[str, bytes | None]]:
        """Yield paths and records in order, some of them made ahead."""
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            ahead: list[Any] = []
            for number in numbers:
                ahead.append(pool.submit(self._record, number))
                if len(ahead) > 2 * _PARALLEL_READS:
                    yield ahead.pop(0).result()
            for future in ahead:
                yield future.result()

    def _record(self, number: int) -> tuple[str, bytes | None]:
        tf, files = self._tf, self._plan.files
        path = files.paths[number]
        try:
            content = self._checked(tf.io.read_file(path))
        except tf.errors.OpError as error:
            if self._skips:
                return path, None
            raise ArgumentError(
                f"write_tfrecords needs every file to be a whole JPEG, PNG, BMP or GIF image; {path!r} is not: "
                f'{_cause(error)}. Mend or remove it, or write on_error="skip" '
                "(--skip-errors) to leave such files out and have them counted."
            ) from error
        return path, _example(tf, files, number, content)

    def _checked(self, content: Any) -> bytes:
        """Return the bytes of an image, resized if asked for; raises if it cannot be decoded."""
        tf = self._tf
        pixels = tf.io.decode_image(content, channels=3, expand_animations=False)
        short = min(int(side) for side in pixels.shape[:2])
        if self._size is None or short <= self._size:
            return bytes(content.numpy())
        height, width = (max(1, round(int(side) * self._size / short)) for side in pixels.shape[:2])
        floats = tf.image.resize(pixels, (height, width), antialias=True)
        smaller = tf.cast(tf.clip_by_value(tf.round(floats), 0.0, 255.0), tf.uint8)
        return bytes(tf.io.encode_jpeg(smaller, quality=self._quality).numpy())

    def _check_some(self, manifest: Manifest) -> None:
        if not sum(manifest.shards.values()):
            raise ArgumentError(
                f"write_tfrecords needs at least one image that can be decoded; none of {len(manifest.skipped)} can, "
                f"such as {manifest.skipped[0]!r}. Leave out --skip-errors to see what is the matter with it."
            )

    def _clean(self) -> None:
        """Remove the files of an unfinished set; the plan last, which claims the others."""
        gfile = self._tf.io.gfile
        names = [name for name in gfile.listdir(self._folder) if name.endswith((_DONE, _TEMPORARY))]
        for name in [*names, *([PLAN] if gfile.exists(self._path(PLAN)) else [])]:
            gfile.remove(self._path(name))

    def _report(self, manifest: Manifest, written: int) -> WrittenRecords:
        records = sum(manifest.shards.values())
        return WrittenRecords(
            self._folder, records, len(manifest.shards), written, manifest.class_names, manifest.skipped
        )


def _show_after(show: Callable[[int], None], before: int, number: int) -> None:
    show(before + number)


def _cause(error: Any) -> str:
    """Return the message of a TensorFlow error, without the names of graphs and operations."""
    return re.sub(r"{{.*?}}|\[Op:.*", "", str(error.message).splitlines()[0]).strip().rstrip(".")


def _example(tf: Any, files: Files, number: int, content: bytes) -> bytes:
    feature, path = tf.train.Feature, files.paths[number]
    name = os.path.relpath(path, files.root) if files.root else path
    values = {
        "image": feature(bytes_list=tf.train.BytesList(value=[content])),
        "name": feature(bytes_list=tf.train.BytesList(value=[name.encode()])),
    }
    if files.labels is not None:
        values["label"] = feature(int64_list=tf.train.Int64List(value=[files.labels[number]]))
    example = tf.train.Example(features=tf.train.Features(feature=values))
    return bytes(example.SerializeToString(deterministic=True))
