"""`write_tfrecords`: many image files into a few large shards, which are read from remote storage much faster."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks.arguments import integer, one_of, optional, path
from keras_tpu_ext.data._decoding import MAX_PIXELS
from keras_tpu_ext.data._listing import list_images
from keras_tpu_ext.data._tensorflow import READS, require_tensorflow
from keras_tpu_ext.data.tfrecords.manifest import WrittenRecords
from keras_tpu_ext.data.tfrecords.shard_writer import ShardWriter, make_plan


def write_tfrecords(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    labels: Any = "folder",
    shards: int | None = None,
    size: int | None = None,
    quality: int = 95,
    shuffle: bool = True,
    seed: int = 0,
    max_pixels: int = MAX_PIXELS,
    on_error: str = "raise",
    progress: bool = True,
) -> WrittenRecords:
    """Write image files into TFRecord shards, and a manifest beside them.

    A run that was killed continues with the missing shards when it is called again with the same arguments; the
    result is the same, byte for byte, as without the kill. Every image is decoded once, so that a damaged one is
    found here and not in the middle of training.

    A record is a `tf.train.Example` with `image` (the bytes of the file), `label` (one integer) and `name` (the
    path in `source`).

    Args:
        source: As in `images`: a folder with one subfolder for each class, a pattern, or a list of paths.
        folder: Where to write: an empty or new folder, on a disk or on `gs://`.
        labels: `"folder"` (default), one integer for each file, or `None`, as in `images`.
        shards: Number of files. `None` (default) makes files of about 128 MB, and at least 8.
        size: Pixels of the short side to which larger images are reduced, and encoded as JPEG. `None` (default)
            copies all images as they are.
        quality: Quality of these JPEGs, from 1 to 100. Defaults to 95.
        shuffle: Whether to mix the classes; reading in order does not mix them. Defaults to `True`.
        seed: Seed of that order. Defaults to 0.
        max_pixels: The most pixels of an image, as in `images`. Defaults to 100,000,000.
        on_error: `"raise"` (default), or `"skip"` to leave out images that cannot be decoded or are larger; the
            manifest lists their names.
        progress: Whether to show a progress bar on the standard error. Defaults to `True`.

    Returns:
        A `WrittenRecords`.

    Raises:
        ArgumentError: If there are no images; if one cannot be decoded or is too large; if `folder` has other shards,
            damaged ones, or some of a run with other sources or options; if an argument is invalid.
        MissingExtraError: If TensorFlow is not installed.

    Example:
        ```python
        import numpy as np
        import tensorflow as tf
        import keras_tpu_ext as kte

        for number in range(8):  # photos of two classes: photos/cat/0.jpg, photos/dog/1.jpg, ...
            pixels = np.full((300, 400, 3), 20 * number, "uint8")
            tf.io.write_file(f"photos/{('cat', 'dog')[number % 2]}/{number}.jpg", tf.io.encode_jpeg(pixels))

        written = kte.data.write_tfrecords("photos", "shards", shards=2, size=256)  # or "gs://my-bucket/shards"
        print(written)  # 8 records of 2 classes in 2 shards in shards
        train = kte.data.tfrecords("shards", batch_size=4, shuffle=True)
        ```
    """
    one_of("write_tfrecords", "on_error", on_error, ("raise", "skip"))
    optional(integer, "write_tfrecords", "shards", shards, example=8)
    optional(integer, "write_tfrecords", "size", size, example=256)
    integer("write_tfrecords", "quality", quality, maximum=100, example=95)
    max_pixels = integer("write_tfrecords", "max_pixels", max_pixels, example=MAX_PIXELS)
    require_tensorflow(READS.format("write_tfrecords"))
    files = list_images("write_tfrecords", source, labels)
    options: dict[str, int | bool | None] = {"size": size, "quality": quality, "shuffle": shuffle, "seed": seed}
    if max_pixels != MAX_PIXELS:  # sets that were begun before there was this option stay the same
        options["max_pixels"] = max_pixels
    plan = make_plan(files, shards, options)
    writer = ShardWriter(plan, path(folder), size, quality, max_pixels, on_error == "skip")
    with _bar(len(plan.order), progress) as show:
        return writer.run(show)


@contextlib.contextmanager
def _bar(total: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yield the update function of a progress bar on the standard error."""
    if not wanted:
        yield lambda done: None
        return
    # Keras writes to the standard output, which here is for the report.
    with contextlib.redirect_stdout(sys.stderr):
        seconds = 0.2 if sys.stderr.isatty() else 10.0
        bar = _runtime.keras.utils.Progbar(total, unit_name="image", interval=seconds)
        yield bar.update
