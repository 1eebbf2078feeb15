"""The plan of a set of shards, which shows whether a run continues an earlier one, and its writer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from keras_tpu_ext.checks import schema
from keras_tpu_ext.data import _decoding
from keras_tpu_ext.data._listing import Files, parallel_map
from keras_tpu_ext.data._tensorflow import tf
from keras_tpu_ext.data.tfrecords.manifest import (
    MANIFEST,
    PLAN,
    SHARD,
    Manifest,
    Shard,
    WrittenRecords,
    difference,
    read_file,
    read_manifest,
    shard_of,
    write_atomically,
)
from keras_tpu_ext.data.tfrecords.shards import check_names
from keras_tpu_ext.errors import ArgumentError

_SHARD_BYTES = 128 << 20  # approximate size of the images in a shard
_LEAST_SHARDS = 8  # so that files can be read in parallel, and by as many hosts
_PARALLEL_READS = 16  # files read and checked ahead of the one being written
_TEMPORARY, _DONE = ".tmp", ".done.json"
_IS_DONE = schema.fields({**SHARD, "skipped": schema.list_of(schema.text)})


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


def make_plan(files: Files, shards: int | None, options: dict[str, int | bool | None]) -> Plan:
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
    described = [names, files.labels, files.class_names, looks, number, options]
    return Plan(files, tuple(order), number, hashlib.sha256(json.dumps(described).encode()).hexdigest())


@dataclasses.dataclass(frozen=True)
class ShardWriter:
    """Writes the shards of a plan."""

    _plan: Plan
    _folder: str
    _size: int | None
    _quality: int
    _max_pixels: int
    _skips: bool

    def run(self, show: Callable[[int], None]) -> WrittenRecords:
        """Write the shards that are missing, then the manifest."""
        manifest = self._claim_folder()
        written = 0
        if manifest is None:
            manifest, written = self._write_all(show)
            write_atomically(self._path(MANIFEST), manifest.to_json())
        self._clean()
        return WrittenRecords(
            self._folder, manifest.records, len(manifest.shards), written, manifest.class_names, manifest.skipped
        )

    def _write_all(self, show: Callable[[int], None]) -> tuple[Manifest, int]:
        """Write the shards that are missing; return the manifest of all, and their number."""
        plan, files = self._plan, self._plan.files
        written, done = 0, 0
        shards: dict[str, Shard] = {}
        skipped: list[str] = []
        for shard in range(plan.shards):
            found = self._finished(shard)
            if found is None:
                found = self._write(shard, show, done)
                written += 1
            done += len(plan.files_of(shard))
            show(done)
            shards[plan.name(shard)] = found[0]
            skipped += found[1]
        manifest = Manifest(
            shards, files.class_names, files.labels is not None, self._size, plan.identity, tuple(skipped)
        )
        if not manifest.records:
            raise ArgumentError(
                f"write_tfrecords needs at least one image that can be decoded; none of {len(skipped)} can, "
                f"such as {skipped[0]!r}. Leave out --skip-errors to see what is the matter with it."
            )
        return manifest, written

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _claim_folder(self) -> Manifest | None:
        """Claim the folder for this plan; return the manifest if everything is written."""
        gfile = tf.io.gfile
        gfile.makedirs(self._folder)
        manifest = read_manifest("write_tfrecords", self._folder)
        if manifest is not None and manifest.plan == self._plan.identity:
            self._check_finished(manifest)
            return manifest
        begun = self._begun()
        if manifest is not None or begun not in (None, self._plan.identity):
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
            write_atomically(self._path(PLAN), json.dumps({"plan": self._plan.identity}))
        return None

    def _check_finished(self, manifest: Manifest) -> None:
        check_names("write_tfrecords", self._folder, manifest, tf.io.gfile.listdir(self._folder))
        names = sorted(manifest.shards)
        faults = parallel_map(lambda name: difference(self._path(name), manifest.shards[name]), names)
        for name, fault in zip(names, faults, strict=True):
            if fault:
                raise ArgumentError(
                    f"write_tfrecords needs {self._path(name)!r} to be the file that it wrote; it {fault}. Write to "
                    "another folder, or remove this one."
                )

    def _begun(self) -> str | None:
        """Return the identity of the set that an earlier run has begun in the folder."""
        path = self._path(PLAN)
        try:
            content = read_file(path)
            if content is None:
                return None
            return str(schema.fields({"plan": schema.text})(schema.parse_json(content), "")["plan"])
        except schema.MismatchError as error:
            raise ArgumentError(
                f"write_tfrecords needs {path!r} to be the plan of a set that it began; {error}. Write to another "
                "folder, or remove this one."
            ) from None

    def _finished(self, shard: int) -> tuple[Shard, list[str]] | None:
        """Return a shard that an earlier run has finished, and what it left out."""
        path = self._path(self._plan.name(shard))
        try:
            found = _IS_DONE(schema.parse_json(read_file(path + _DONE) or b""), "")
        except schema.MismatchError:  # there is none, or it is damaged
            return None
        skipped = list(found.pop("skipped"))
        sources = [self._plan.files.paths[number] for number in self._plan.files_of(shard)]
        written = Shard(**found)
        if not set(skipped).issubset(sources) or written.records + len(skipped) != len(sources):
            return None
        if (skipped and not self._skips) or difference(path, written):
            return None
        return written, skipped

    def _write(self, shard: int, show: Callable[[int], None], done: int) -> tuple[Shard, list[str]]:
        path = self._path(self._plan.name(shard))
        records, skipped = 0, list[str]()
        with tf.io.TFRecordWriter(path + _TEMPORARY) as file:
            for number, (source, record) in enumerate(self._records(self._plan.files_of(shard))):
                if record is None:
                    skipped.append(source)
                else:
                    file.write(record)
                    records += 1
                show(done + number + 1)
        written = shard_of(path + _TEMPORARY, records)
        # First the counts, then the file itself: a file that exists always has its counts.
        write_atomically(path + _DONE, json.dumps({**dataclasses.asdict(written), "skipped": skipped}))
        tf.io.gfile.rename(path + _TEMPORARY, path, overwrite=True)
        return written, skipped

    def _records(self, numbers: tuple[int, ...]) -> Iterator[tuple[str, bytes | None]]:
        """Yield paths and records in order, some of them made ahead."""
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            ahead: list[Future[tuple[str, bytes | None]]] = []
            for number in numbers:
                ahead.append(pool.submit(self._record, number))
                if len(ahead) > 2 * _PARALLEL_READS:
                    yield ahead.pop(0).result()
            for future in ahead:
                yield future.result()

    def _record(self, number: int) -> tuple[str, bytes | None]:
        files = self._plan.files
        path = files.paths[number]
        needed, fault = "be a whole JPEG, PNG, BMP or GIF image", "is not: {}. Mend or remove it"
        try:
            content = tf.io.read_file(path)
            height, width, pixels = (int(one) for one in _decoding.image_shape(content))
            if 1 <= pixels <= self._max_pixels:
                return path, _example(files, number, self._checked(content))
            cause = "its header is of none of them"
            if pixels:
                needed = f"have at most {self._max_pixels} pixels"
                fault = (
                    f"has {height} x {width} (height x width), {pixels} in all. Write max_pixels={pixels} to take it"
                )
        except tf.errors.OpError as error:
            cause = _cause(error)
        if self._skips:
            return path, None
        raise ArgumentError(
            f"write_tfrecords needs every file to {needed}; {path!r} {fault.format(cause)}, or write "
            'on_error="skip" (--skip-errors) to leave such files out and have them counted.'
        )

    def _checked(self, content: tf.Tensor) -> bytes:
        """Return the bytes of an image, resized if asked for; raises if it cannot be decoded."""
        pixels = tf.io.decode_image(content, channels=3, expand_animations=False)
        short = min(int(side) for side in pixels.shape[:2])
        if self._size is None or short <= self._size:
            return bytes(content.numpy())
        height, width = (max(1, round(int(side) * self._size / short)) for side in pixels.shape[:2])
        floats = tf.image.resize(pixels, (height, width), antialias=True)
        smaller = tf.cast(tf.clip_by_value(tf.round(floats), 0.0, 255.0), tf.uint8)
        return bytes(tf.io.encode_jpeg(smaller, quality=self._quality).numpy())

    def _clean(self) -> None:
        """Remove the files of an unfinished set; the plan last, which claims the others."""
        gfile = tf.io.gfile
        names = [name for name in gfile.listdir(self._folder) if name.endswith((_DONE, _TEMPORARY))]
        for name in [*names, *([PLAN] if gfile.exists(self._path(PLAN)) else [])]:
            gfile.remove(self._path(name))


def _cause(error: tf.errors.OpError) -> str:
    """Return the message of a TensorFlow error, without the names of graphs and operations."""
    return re.sub(r"{{.*?}}|\[Op:.*", "", str(error.message).splitlines()[0]).strip().rstrip(".")


def _example(files: Files, number: int, content: bytes) -> bytes:
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
