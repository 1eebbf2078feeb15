"""Parsers of TFRecord records: images, features, or a user's function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.data import _decoding
from keras_tpu_ext.data._tensorflow import tf
from keras_tpu_ext.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Parser:
    """Parses records."""

    values: Callable[[tf.Tensor, tf.Tensor], Nest]  # maps a record and its seed to values
    zeros: Callable[[], Nest]  # returns zeros of the same shapes
    needed: str  # a description of a valid record
    # Maps a record that cannot be used to a sentence; empty if there is nothing to say but `needed`.
    describe: Callable[[tf.Tensor], tf.Tensor]
    features: tuple[str, ...]  # names of the features that a record must have; empty if unknown
    is_image: bool  # whether records are images


def make_parser(
    image: str,
    label: str | None,
    features: dict[str, tf.io.FixedLenFeature] | None,
    parse: Callable[[tf.Tensor], Nest] | None,
    size: tuple[int, int],
    crop: str | None,
    max_pixels: int,
) -> Parser:
    """Return the parser for the arguments of `tfrecords`."""
    if features is not None and parse is not None:
        raise ArgumentError(
            "tfrecords got both features and parse, and each of them says all of how to read a record. "
            "Write one of the two."
        )
    if parse is not None:
        zeros = _zeros_of(parse, "parse", "tf.ensure_shape(x, [28, 28]) in it")
        return Parser(lambda record, _: parse(record), zeros, "what `parse` takes", lambda _: "", (), False)
    if features is not None:
        return _of_features(features)
    return _of_images(image, label, size, crop, max_pixels)


def _of_features(features: dict[str, tf.io.FixedLenFeature]) -> Parser:
    def parse(record: tf.Tensor) -> Nest:
        return tf.io.parse_single_example(record, features)

    zeros = _zeros_of(parse, "features", 'features={"x": tf.io.FixedLenFeature([28, 28], tf.float32)}')
    words = [f"{name!r} ({feature.dtype.name}, shape {tuple(feature.shape)})" for name, feature in features.items()]
    required = tuple(name for name, feature in features.items() if feature.default_value is None)
    needed = f"a tf.train.Example with {' and '.join(words)}"
    return Parser(lambda record, _: parse(record), zeros, needed, lambda _: "", required, False)


def _of_images(image: str, label: str | None, size: tuple[int, int], crop: str | None, max_pixels: int) -> Parser:
    wanted = {image: tf.io.FixedLenFeature([], tf.string)}
    needed = f"a tf.train.Example with {image!r} (the bytes of a JPEG, PNG, BMP or GIF image)"
    if label is not None:
        wanted[label] = tf.io.FixedLenFeature([], tf.int64)
        needed += f" and {label!r} (one whole number)"

    def values(record: tf.Tensor, seed: tf.Tensor) -> Nest:
        found = tf.io.parse_single_example(record, wanted)
        pixels = _decoding.decode_image(found[image], size, crop, seed, max_pixels)
        return pixels if label is None else (pixels, tf.cast(found[label], tf.int32))

    def zeros() -> Nest:
        pixels = _decoding.blank_image(size)
        return pixels if label is None else (pixels, tf.constant(0, tf.int32))

    def describe(record: tf.Tensor) -> tf.Tensor:
        contents = tf.data.Dataset.from_tensors(record).map(
            lambda record: tf.io.parse_single_example(record, wanted)[image]
        )
        return _decoding.describe_size(contents, max_pixels)

    return Parser(values, zeros, needed, describe, tuple(wanted), True)


def _zeros_of(parse: Callable[[tf.Tensor], Nest], name: str, write: str) -> Callable[[], Nest]:
    spec = tf.data.Dataset.from_tensors("").map(parse).element_spec
    for leaf in tf.nest.flatten(spec):
        if not isinstance(leaf, tf.TensorSpec) or not leaf.shape.is_fully_defined():
            raise ArgumentError(
                f"tfrecords needs {name} to give dense tensors whose shapes are all known, so that a TPU compiles "
                f"one step; got {leaf}. Write {write}."
            )
    return lambda: tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), spec)


def check_first_record(path: str, compression: str, parser: Parser) -> None:
    """Check that the first record of a file has the features, if it can be read at all."""
    try:
        records = [record.numpy() for record in tf.data.TFRecordDataset(path, compression).take(1)]
        example = tf.train.Example.FromString(records[0]) if records else None
    except Exception:  # a damaged file, or no tf.train.Example: reported while iterating, with the record's number
        return
    if example is None or all(name in example.features.feature for name in parser.features):
        return
    came = [f"{name!r} ({value.WhichOneof('kind')})" for name, value in sorted(example.features.feature.items())]
    missing = next(name for name in parser.features if name not in example.features.feature)
    write = 'image="...", label="..." with the names that it has' if parser.is_image else "features with its names"
    raise ArgumentError(
        f"tfrecords needs each record to be {parser.needed}; the first one of {path!r} has no {missing!r}. "
        f"It has {', '.join(came) or 'no features at all'}. Write {write}, or parse=... for another format."
    )
