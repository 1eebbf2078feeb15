"""`images`: batches of image files."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.checks.arguments import integer, one_of
from keras_tpu_ext.data import _decoding, _records
from keras_tpu_ext.data._listing import Files, list_images
from keras_tpu_ext.data._tensorflow import (
    FILE_THREADS,
    READS,
    checked_shard,
    height_and_width,
    require_tensorflow,
    tf,
    without_autograph,
)
from keras_tpu_ext.data.skipped import SkipLog
from keras_tpu_ext.errors import ArgumentError


def images(
    source: Any,
    *,
    batch_size: int,
    size: Any = (224, 224),
    labels: Any = "folder",
    crop: str | None = "center",
    shuffle: bool = False,
    seed: int = 0,
    repeat: bool = False,
    max_pixels: int = _decoding.MAX_PIXELS,
    on_error: str = "raise",
    drop_remainder: bool = False,
    shard: tuple[int, int] | None = None,
) -> Any:
    """Return a `tf.data.Dataset` of batches of images and labels from files, read as fast as the host can.

    Pixels stay uint8 until they are on the device: a float32 image would be four times the bytes to transfer. Begin
    the model with `keras.layers.Rescaling(1 / 255)`. Files are read 64 at a time, which hides the latency of remote
    storage; only the part of a JPEG that the crop needs is decoded; images are decoded on all cores, and batches are
    prefetched.

    The order is the same in every run with the same arguments: with `shuffle` each epoch has a different one, and the
    same `seed` gives the same sequence of orders.

    Several processes that train one model with `fit` each need the whole data, and Keras takes each process's part of
    every batch: leave `shard` at `None`. `shard` is for custom training loops, and for hosts with
    `MultiWorkerMirroredStrategy`, which then each read only their part; `batch_size` is still the size over all of
    them.

    Args:
        source: A folder with one subfolder for each class; a pattern such as `"photos/*/*.jpg"`; or a list of paths.
            JPEG, PNG, BMP and GIF (its first frame); on a disk or on `gs://`.
        batch_size: Number of images in a batch over all replicas, such as `scope.global_batch_size(128)`.
        size: Height and width in pixels, or one number for both. Defaults to `(224, 224)`.
        labels: `"folder"` (default): the names of the images' folders, in their order, are the classes 0, 1, ...; or
            one integer for each file, for a pattern in the order of the paths; or `None` for batches of images alone.
        crop: `"center"` (default) takes the largest central window with the aspect ratio of `size`; `"random"` takes
            one of 8 to 100 % of the area, with an aspect ratio within a factor of 4/3 of it; `None` takes the whole
            image and changes its aspect ratio. The window is then resized, bilinearly.
        shuffle: Whether to shuffle all files in every epoch. Defaults to `False`.
        seed: Seed of the order and the random windows. Defaults to 0: all processes that train together must have the
            same order.
        repeat: Whether to repeat the data endlessly; `fit` then needs `steps_per_epoch`. Defaults to `False`.
        max_pixels: The most pixels of an image, as its header says (of a GIF: in all its frames). A larger one is not
            decoded, and is treated as one that cannot be. Defaults to 100,000,000, which take 300 MB while they are
            decoded; up to 64 images are decoded at once.
        on_error: What to do with a file that cannot be read or decoded: `"raise"` (default), or `"skip"`, which
            leaves it out; `kte.data.skipped(dataset)` reports it, as does a line on the standard error at the end of
            each pass. If nothing at all can be read, that is an error, too.
        drop_remainder: Whether to drop the last batch if it is short. Defaults to `False`.
        shard: `None` (default) for all files; or (index, count) for the part of one of `count` hosts: parts do not
            overlap, and together they are all files.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`, uint8 of shape `(batch, height, width, 3)` and int32 of shape
        `(batch,)`. Its `class_names` are the names of the folders. Its length is known unless it skips.

    Raises:
        ArgumentError: If there are no files, `labels` do not fit them, or an argument is invalid.
        MissingExtraError: If TensorFlow is not installed.
        tensorflow.errors.InvalidArgumentError: While iterating, if a file cannot be read or decoded, or has too many
            pixels; the message names it.

    Example:
        ```python
        import keras
        import numpy as np
        import tensorflow as tf
        import keras_tpu_ext as kte

        for number in range(8):  # photos of two classes: photos/cat/0.jpg, photos/dog/1.jpg, ...
            pixels = np.full((300, 400, 3), 20 * number, "uint8")
            tf.io.write_file(f"photos/{('cat', 'dog')[number % 2]}/{number}.jpg", tf.io.encode_jpeg(pixels))

        train = kte.data.images("photos", batch_size=4, crop="random", shuffle=True)
        print(train.class_names)  # ['cat', 'dog']
        inputs = keras.Input((224, 224, 3), dtype="uint8")
        x = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(x))
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(train, epochs=2)
        ```
    """
    batch_size = integer("images", "batch_size", batch_size, example=128)
    size = height_and_width("images", size)
    one_of("images", "crop", crop, _decoding.CROPS)
    one_of("images", "on_error", on_error, ("raise", "skip"))
    max_pixels = integer("images", "max_pixels", max_pixels, example=_decoding.MAX_PIXELS)
    index, count = checked_shard("images", shard)
    require_tensorflow(READS.format("images"))
    files = list_images("images", source, labels)
    _check_enough(files, batch_size, count, drop_remainder)
    part = files.shard(index, count)
    log = SkipLog() if on_error == "skip" else None
    seed = integer("images", "seed", seed, minimum=0, example=0)
    records = _decoded(_numbered(part, shuffle, seed, crop), part, size, crop, max_pixels)
    dataset = _records.read_batches(
        records,
        batch_size,
        len(part.paths),
        _messages(part, max_pixels),
        log,
        drop_remainder=drop_remainder,
        repeat=repeat,
        shards=count,
        threads=FILE_THREADS,
    )
    dataset.class_names = list(files.class_names)
    return dataset


def _check_enough(files: Files, batch_size: int, count: int, drop_remainder: bool) -> None:
    least = len(files.paths) // count
    needed = batch_size if drop_remainder else 1
    if least < needed:
        raise ArgumentError(
            f"images needs at least {needed} files for each of {count} hosts; there are {len(files.paths)}. "
            f"Write {'drop_remainder=False, a smaller batch_size' if drop_remainder else 'shard=None'}, or give it "
            "more files."
        )


def _numbered(files: Files, shuffle: bool, seed: int, crop: str | None) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(len(files.paths))
    if shuffle:
        numbers = numbers.shuffle(len(files.paths), seed=seed, reshuffle_each_iteration=True)

    def named(number: tf.Tensor, seed: tf.Tensor) -> Nest:
        return tf.stack([number, -tf.ones_like(number)], 1), (number, seed)

    ended = numbers.concatenate(tf.data.Dataset.from_tensors(tf.constant(_records.END, tf.int64)))
    seeded = _records.with_seeds(ended, seed if crop == "random" else None)
    return _records.number_records(seeded.batch(_records.BLOCK).map(named))


def _decoded(
    numbered: tf.data.Dataset, files: Files, size: tuple[int, int], crop: str | None, max_pixels: int
) -> tf.data.Dataset:
    paths = tf.constant(files.paths)
    labels = None if files.labels is None else tf.constant(files.labels, tf.int32)

    def decode(position: tf.Tensor, neighbours: tf.Tensor, content: tuple[tf.Tensor, ...]) -> Nest:
        number, seed = content
        pixels = tf.cond(
            _records.is_end(position, neighbours),
            lambda: _decoding.blank_image(size),
            lambda: _decoding.decode_image(tf.io.read_file(paths[number]), size, crop, seed, max_pixels),
        )
        value = pixels if labels is None else (pixels, labels[tf.maximum(number, 0)])
        return position, neighbours, value

    # Their number is fixed: AUTOTUNE counts cores, and a read that waits for storage needs none. A finished call
    # counts until its image is taken, in order; so there are twice as many calls as threads. A file is decoded by the
    # thread that read it: handing it on to another costs 7 to 12 % of the images per second.
    calls = 2 * FILE_THREADS
    decoded = numbered.map(without_autograph(decode), num_parallel_calls=calls, deterministic=True)
    return decoded.ignore_errors(log_warning=True)


def _messages(files: Files, max_pixels: int) -> _records.Messages:
    paths = tf.constant(files.paths)

    def fault(name: tf.Tensor) -> tf.Tensor:
        content = tf.data.Dataset.from_tensors(paths[name[0]]).map(tf.io.read_file).ignore_errors()
        came, found = content.reduce((tf.constant(""), tf.constant(False)), lambda before, content: (content, True))
        return tf.cond(
            found,
            lambda: _decoding.describe_fault(came, max_pixels),
            lambda: tf.constant("cannot be read: it must be a file that is there and that this process may read."),
        )

    return _records.Messages("images", lambda name: paths[name[0]], fault, lambda names: tf.ones_like(names[:, 0]))
