"""`tfrecords`: batches of the records of TFRecord shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.checks.arguments import integer, one_of
from keras_tpu_ext.data import _decoding, _records
from keras_tpu_ext.data._tensorflow import READS, checked_shard, height_and_width, require_tensorflow, tf
from keras_tpu_ext.data.skipped import SkipLog
from keras_tpu_ext.data.tfrecords.parsing import Parser, check_first_record, make_parser
from keras_tpu_ext.data.tfrecords.shards import (
    CYCLE_LENGTH,
    Shards,
    find_shards,
    make_shards,
    one_record,
    records_of,
)

_BUFFER = 1024  # records in the shuffle buffer


def tfrecords(
    source: Any,
    *,
    batch_size: int,
    size: Any = (224, 224),
    image: str = "image",
    label: str | None = "label",
    crop: str | None = "center",
    features: dict[str, Any] | None = None,
    parse: Callable[[Any], Any] | None = None,
    shuffle: bool | int = False,
    seed: int = 0,
    repeat: bool = False,
    max_pixels: int = _decoding.MAX_PIXELS,
    on_error: str = "raise",
    drop_remainder: bool = False,
    shard: tuple[int, int] | None = None,
    compression: str | None = None,
) -> Any:
    """Return a `tf.data.Dataset` of batches from TFRecord shards, read as fast as the host can.

    Without `features` and `parse`, records are images, as `write_tfrecords` writes them, and batches are those of
    `images`. 16 files are read at once, which hides the latency of remote storage, and their records come in an order
    that is the same in every run with the same arguments.

    A damaged file is detected, even a truncated one: TensorFlow takes some truncations for the end of the file. It
    gives up the rest of a file after the damage; how many records that is can be known only if the manifest of
    `write_tfrecords` is beside the shards. With it, a shard that is missing, added, changed or swapped with another
    is detected too, when the folder is opened.

    Args:
        source: A folder of shards (`*.tfrecord`, `*.tfrecords`, `*.tfrec`), a pattern, or a list of paths; on a disk
            or on `gs://`.
        batch_size: Number of records in a batch over all replicas, such as `scope.global_batch_size(128)`.
        size: Height and width in pixels, or one number for both. Defaults to `(224, 224)`.
        image: Name of the feature with the bytes of an image file. Defaults to `"image"`.
        label: Name of the feature with one integer; `None` for batches of images alone. Defaults to `"label"`.
        crop: `"center"` (default), `"random"` or `None`, as in `images`.
        features: For data other than images: what to read from each `tf.train.Example`, such as
            `{"x": tf.io.FixedLenFeature([28, 28], tf.float32)}`. Batches are then dicts with these names.
        parse: For custom formats: a function from a record, a scalar string tensor, to tensors whose shapes are all
            known.
        shuffle: Whether to shuffle the files, and the records in a buffer of 1024; a number sets another buffer size.
            Defaults to `False`.
        seed: Seed of the order and the random windows. Defaults to 0.
        repeat: Whether to repeat the data endlessly; `fit` then needs `steps_per_epoch`. Defaults to `False`.
        max_pixels: The most pixels of an image, as in `images`; it does not bound `features` and `parse`. Defaults to
            100,000,000.
        on_error: What to do with a record that cannot be read, or lacks what was requested: `"raise"` (default), or
            `"skip"`, which leaves it out and counts it, as in `images`.
        drop_remainder: Whether to drop the last batch if it is short. Defaults to `False`.
        shard: `None` (default) for all files, which is right for `fit`, as in `images`; or (index, count) for the
            files of one of `count` hosts.
        compression: `None` (default), `"GZIP"` or `"ZLIB"`. TensorFlow does not report truncated ZLIB files: only a
            manifest reveals them.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`, uint8 of shape `(batch, height, width, 3)` and int32 of shape
        `(batch,)`; or of what `features` or `parse` give. Its length is known if there is a manifest and it does not
        skip.

    Raises:
        ArgumentError: If there are no files, or fewer than hosts; if the manifest is damaged, or the shards are not
            those that it describes; if the first record lacks the features; if an argument is invalid.
        MissingExtraError: If TensorFlow is not installed.
        tensorflow.errors.InvalidArgumentError: While iterating, if something cannot be read; the message names file
            and record.

    Example:
        ```python
        import numpy as np
        import tensorflow as tf
        import keras_tpu_ext as kte

        for number in range(8):  # photos of two classes: photos/cat/0.jpg, photos/dog/1.jpg, ...
            pixels = np.full((300, 400, 3), 20 * number, "uint8")
            tf.io.write_file(f"photos/{('cat', 'dog')[number % 2]}/{number}.jpg", tf.io.encode_jpeg(pixels))

        kte.data.write_tfrecords("photos", "shards", shards=2)  # once; it may be gs://my-bucket/shards
        train = kte.data.tfrecords("shards", batch_size=4, crop="random", shuffle=True)
        print(len(train), train.class_names)  # 2 ['cat', 'dog']
        for images, labels in train:  # or model.fit(train)
            print(images.shape, labels.numpy())  # (4, 224, 224, 3) and 4 labels
        ```
    """
    batch_size = integer("tfrecords", "batch_size", batch_size, example=128)
    pixels = height_and_width("tfrecords", size)
    one_of("tfrecords", "crop", crop, _decoding.CROPS)
    one_of("tfrecords", "on_error", on_error, ("raise", "skip"))
    one_of("tfrecords", "compression", compression, (None, "GZIP", "ZLIB"))
    max_pixels = integer("tfrecords", "max_pixels", max_pixels, example=_decoding.MAX_PIXELS)
    buffer = _BUFFER if shuffle is True else integer("tfrecords", "shuffle", int(shuffle), minimum=0, example=True)
    require_tensorflow(READS.format("tfrecords"))
    paths, manifest = find_shards(source)
    log = SkipLog() if on_error == "skip" else None
    part = checked_shard("tfrecords", shard)
    shards = make_shards(paths, manifest, part, compression or "", skips=log is not None)
    parser = make_parser(image, label, features, parse, pixels, crop, max_pixels)
    if log is None:
        check_first_record(shards.paths[0], shards.compression, parser)
    seed = integer("tfrecords", "seed", seed, minimum=0, example=0)
    draws = crop == "random" and parser.is_image
    records = _parsed(_numbered(shards, buffer, seed, draws), parser)
    dataset = _records.read_batches(
        records,
        batch_size,
        shards.records,
        _messages(shards, parser),
        log,
        drop_remainder=drop_remainder,
        repeat=repeat,
        shards=part[1],
        threads=CYCLE_LENGTH,
    )
    dataset.class_names = [] if manifest is None else list(manifest.class_names)
    return dataset


def _numbered(shards: Shards, buffer: int, seed: int, draws: bool) -> tf.data.Dataset:
    files = tf.data.Dataset.range(len(shards.paths))
    if buffer:
        files = files.shuffle(len(shards.paths), seed=seed, reshuffle_each_iteration=True)
    records = records_of(shards, files)
    if buffer:
        records = records.shuffle(buffer, seed=seed, reshuffle_each_iteration=True)

    def named(block: tuple[tf.Tensor, ...], seeds: tf.Tensor) -> Nest:
        names, contents = block
        return names, (contents, seeds)

    end = (tf.fill([2], tf.constant(_records.END, tf.int64)), "")
    ended = records.concatenate(tf.data.Dataset.from_tensors(end))
    seeded = _records.with_seeds(ended, seed if draws else None)
    return _records.number_records(seeded.batch(_records.BLOCK).map(named))


def _parsed(numbered: tf.data.Dataset, parser: Parser) -> tf.data.Dataset:
    def parse(position: tf.Tensor, neighbours: tf.Tensor, content: tuple[tf.Tensor, ...]) -> Nest:
        record, seed = content
        number = neighbours[_records.BLOCK + position % _records.BLOCK, 1]

        def parsed() -> Nest:
            # Negative if the rest of a file is lost.
            with tf.control_dependencies([tf.debugging.assert_non_negative(number)]):
                return parser.values(tf.identity(record), seed)

        value = tf.cond(_records.is_end(position, neighbours), parser.zeros, parsed)
        return position, neighbours, value

    return numbered.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).ignore_errors(
        log_warning=True
    )


def _messages(shards: Shards, parser: Parser) -> _records.Messages:
    paths, counts = tf.constant(shards.paths), tf.constant(shards.counts, tf.int64)
    text = tf.strings.as_string

    def location(name: tf.Tensor) -> tf.Tensor:
        path, number = paths[name[0]], name[1]
        one = tf.strings.join([path, ", record ", text(number)])
        rest = tf.strings.join([path, ", from record ", text(-1 - number), " on"])
        return tf.where(number >= 0, one, rest)

    def fault(name: tf.Tensor) -> tf.Tensor:
        return tf.cond(name[1] >= 0, lambda: of_record(name), lambda: of_rest(name))

    def of_record(name: tf.Tensor) -> tf.Tensor:
        record = one_record(shards, name)
        length, cause = text(tf.strings.length(record)), parser.describe(record)
        needed = f"cannot be used. It must be {parser.needed}; what came is a record of"
        plain = tf.strings.join([needed, length, "bytes that is not that."], separator=" ")
        return tf.where(tf.equal(cause, ""), plain, cause)

    def of_rest(name: tf.Tensor) -> tf.Tensor:
        count = counts[name[0]]
        came = text(-1 - name[1])
        known = tf.strings.join(["The manifest needs ", text(count), " records, and ", came, " came."])
        unknown = tf.strings.join([came, " records came; how many are lost is not known without a manifest."])
        what = "cannot be read: the file is damaged or cut off there, was changed, or is gone."
        return tf.strings.join([what, tf.where(count >= 0, known, unknown)], separator=" ")

    def lost(names: tf.Tensor) -> tf.Tensor:
        rest = tf.gather(counts, tf.maximum(names[:, 0], 0)) - (-1 - names[:, 1])
        known = (names[:, 0] < 0) | (names[:, 1] >= 0)
        return tf.where(known, tf.ones_like(rest), tf.where(rest > 0, rest, -tf.ones_like(rest)))

    return _records.Messages("tfrecords", location, fault, lost)
