"""Decodes the bytes of an image to pixels, without decoding what a crop leaves out."""

from __future__ import annotations

from typing import Any

CROPS = ("center", "random", None)
_JPEG = b"\xff\xd8\xff"
# The window of a random crop, as in Szegedy et al., "Going Deeper with Convolutions" (2014).
_AREA, _ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)


def decode_image(tf: Any, content: Any, size: tuple[int, int], crop: str | None, seed: Any) -> Any:
    """Decode, crop and resize an image to uint8 of shape (*size, 3).

    Args:
        tf: TensorFlow.
        content: The bytes of the file, a string tensor.
        size: Height and width.
        crop: One of `CROPS`.
        seed: Two int64, the seed of a random crop.
    """
    is_jpeg = tf.equal(tf.strings.substr(content, 0, len(_JPEG)), _JPEG)
    pixels = tf.cond(
        is_jpeg,
        lambda: _cropped_jpeg(tf, content, size, crop, seed),
        lambda: _cropped_other(tf, content, size, crop, seed),
    )
    return _resized(tf, pixels, size)


def blank_image(tf: Any, size: tuple[int, int]) -> Any:
    """Return a black image of that shape."""
    return tf.zeros([*size, 3], tf.uint8)


def _cropped_jpeg(tf: Any, content: Any, size: tuple[int, int], crop: str | None, seed: Any) -> Any:
    if crop is None:
        return tf.io.decode_jpeg(content, channels=3)
    window = _window(tf, tf.io.extract_jpeg_shape(content), size, crop, seed)
    return tf.io.decode_and_crop_jpeg(content, window, channels=3)


def _cropped_other(tf: Any, content: Any, size: tuple[int, int], crop: str | None, seed: Any) -> Any:
    pixels = tf.ensure_shape(tf.io.decode_image(content, channels=3, expand_animations=False), [None, None, 3])
    if crop is None:
        return pixels
    top, left, height, width = tf.unstack(_window(tf, tf.shape(pixels), size, crop, seed))
    return pixels[top : top + height, left : left + width]


def _window(tf: Any, shape: Any, size: tuple[int, int], crop: str, seed: Any) -> Any:
    """Return the crop as top, left, height and width."""
    if crop == "random":
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=[size[1] / size[0] * ratio for ratio in _ASPECT],
            area_range=_AREA,
        )
        return tf.concat([begin[:2], extent[:2]], 0)
    # In integers, so that a window is the same on every machine.
    full = tf.cast(shape[:2], tf.int64)
    height = tf.minimum(full[0], tf.maximum(full[1] * size[0] // size[1], 1))
    width = tf.minimum(full[1], tf.maximum(full[0] * size[1] // size[0], 1))
    extent = tf.stack([height, width])
    return tf.cast(tf.concat([(full - extent) // 2, extent], 0), tf.int32)


def _resized(tf: Any, pixels: Any, size: tuple[int, int]) -> Any:
    def resize() -> Any:
        return tf.cast(tf.round(tf.image.resize(pixels, size)), tf.uint8)  # means of pixels: 0 to 255

    fits = tf.reduce_all(tf.equal(tf.shape(pixels)[:2], size))
    return tf.ensure_shape(tf.cond(fits, lambda: tf.identity(pixels), resize), [*size, 3])


def describe_fault(tf: Any, content: Any) -> Any:
    """Return a sentence about bytes that are not an image."""
    length = tf.strings.length(content)
    head = tf.cast(tf.io.decode_raw(tf.strings.substr(content, 0, tf.minimum(length, 4)), tf.uint8), tf.int32)
    known = tf.equal(tf.strings.substr(content, 0, len(_JPEG)), _JPEG)
    needed = "cannot be decoded. It must be a whole JPEG, PNG, BMP or GIF image; what came "
    begins = tf.strings.join(
        ["begins with the bytes ", tf.strings.reduce_join(tf.strings.as_string(head), separator=" ")]
    )
    what = tf.where(known, "begins as a JPEG does and is damaged or cut off", begins)
    bytes_long = tf.strings.join(["has ", tf.strings.as_string(length), " bytes and ", what, "."])
    return tf.strings.join([needed, tf.where(length > 0, bytes_long, "is empty, 0 bytes.")])
