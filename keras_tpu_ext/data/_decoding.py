"""Decodes the bytes of an image to pixels, without decoding what a crop leaves out, or what is too large."""

from __future__ import annotations

import functools
from collections.abc import Callable

from keras_tpu_ext.data._tensorflow import tf

CROPS = ("center", "random", None)
MAX_PIXELS = 100_000_000  # 300 MB
# In the order in which TensorFlow looks for them.
_JPEG, _PNG, _GIF, _BMP = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM"
# The window of a random crop, as in Szegedy et al., "Going Deeper with Convolutions" (2014).
_AREA, _ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)


def decode_image(
    content: tf.Tensor, size: tuple[int, int], crop: str | None, seed: tf.Tensor, max_pixels: int
) -> tf.Tensor:
    """Decode, crop and resize the bytes of an image to uint8 of shape (*size, 3); the seed of a crop is two int64.

    An image that is none of the four kinds, or has more than `max_pixels`, is an error before it is decoded.
    """

    def within(shape: tf.Tensor) -> tf.Tensor:
        # Decoding nothing is an error, too, and needs no control flow as tf.debugging.Assert does.
        return tf.where((shape[2] >= 1) & (shape[2] <= max_pixels), content, "")

    pixels = tf.cond(
        _begins(content, _JPEG),
        lambda: _cropped_jpeg(content, within(_jpeg_shape(content)), size, crop, seed),
        lambda: _cropped_other(within(_other_shape(content)), size, crop, seed),
    )
    return _resized(pixels, size)


def image_shape(content: tf.Tensor) -> tf.Tensor:
    """Return height, width and number of pixels as the header has them; int64, and 0 pixels if it is no image.

    The pixels of a GIF are those of all its frames, which TensorFlow decodes before it takes the first.
    """
    is_jpeg = _begins(content, _JPEG)
    return tf.cond(is_jpeg, lambda: _jpeg_shape(content), lambda: _other_shape(content))


def blank_image(size: tuple[int, int]) -> tf.Tensor:
    """Return a black image of that shape."""
    return tf.zeros([*size, 3], tf.uint8)


def _begins(content: tf.Tensor, start: bytes) -> tf.Tensor:
    return tf.equal(tf.strings.substr(content, 0, len(start)), start)


def _jpeg_shape(content: tf.Tensor) -> tf.Tensor:
    height, width, _ = tf.unstack(tf.cast(tf.io.extract_jpeg_shape(content), tf.int64))
    return tf.stack([height, width, height * width])


def _other_shape(content: tf.Tensor) -> tf.Tensor:
    head = tf.strings.join([tf.strings.substr(content, 0, 32), bytes(32)])  # long enough for any of them

    def integers(position: int, little_endian: bool) -> tf.Tensor:
        pair = tf.io.decode_raw(tf.strings.substr(head, position, 8), tf.int32, little_endian=little_endian)
        return tf.unstack(tf.cast(pair, tf.int64), 2)

    none = tf.zeros([3], tf.int64)
    width, height = integers(16, False)
    is_png = tf.equal(tf.strings.substr(head, 0, 8), _PNG) & tf.equal(tf.strings.substr(head, 12, 4), b"IHDR")
    png = tf.where(is_png, _shape(height, width), none)
    width, height = integers(18, True)
    bmp = _shape(tf.abs(height), width)  # negative if the first row is the top
    shape = tf.where(_begins(content, _BMP), bmp, png)
    return tf.cond(_begins(content, _GIF), lambda: _gif_shape()(content), lambda: shape)


def _shape(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    return tf.stack([height, width, tf.maximum(height, 0) * tf.maximum(width, 0)])


@functools.cache
def _gif_shape() -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the shape function of GIF, traced once."""
    # Not inlined: its operations would be scheduled for each JPEG too, as dead ones.
    signature, options = [tf.TensorSpec([], tf.string)], {"_noinline": True}
    return tf.function(_walk_gif, signature, autograph=False, experimental_attributes=options)


def _walk_gif(content: tf.Tensor) -> tf.Tensor:
    """Return the shape of the image that TensorFlow makes of a GIF, as large as its largest frame.

    It steps from block to block, as of https://www.w3.org/Graphics/GIF/spec-gif89a.txt
    """
    raw = tf.io.decode_raw(tf.strings.join([content, b"\0"]), tf.uint8)
    size = tf.size(raw, tf.int64) - 1

    def byte(position: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(raw, tf.minimum(position, size)), tf.int64)  # 0 behind the end

    def size_at(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parts = tf.unstack(byte(position + tf.range(4, dtype=tf.int64)))
        return parts[2] + 256 * parts[3], parts[0] + 256 * parts[1]  # height, width

    def colors_at(position: tf.Tensor) -> tf.Tensor:
        flags = byte(position)
        return tf.where(flags < 128, tf.zeros_like(flags), 6 * 2 ** (flags % 8))  # 3 bytes of each

    def next_data(position: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # Nearly all data is in blocks of 255 bytes.
        lengths = byte(position + 256 * tf.range(256, dtype=tf.int64))
        position += 256 * tf.reduce_sum(tf.math.cumprod(tf.cast(tf.equal(lengths, 255), tf.int64)))
        length = byte(position)
        return position + length + 1, length

    def next_block(
        position: tf.Tensor, height: tf.Tensor, width: tf.Tensor, pixels: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        kind = byte(position)
        is_frame, is_extension = tf.equal(kind, 0x2C), tf.equal(kind, 0x21)
        zero = tf.constant(0, tf.int64)
        tall, wide = (tf.where(is_frame, side, zero) for side in size_at(position + 5))
        data = tf.where(is_frame, position + 11 + colors_at(position + 9), position + 2)
        start = tf.where(is_frame | is_extension, data, size)
        one = tf.constant(1, tf.int64)
        after, _ = tf.while_loop(lambda position, length: (length > 0) & (position < size), next_data, (start, one))
        return after, tf.maximum(height, tall), tf.maximum(width, wide), pixels + tall * wide

    first = 13 + colors_at(tf.constant(10, tf.int64))
    begin = (first, *size_at(tf.constant(6, tf.int64)), tf.constant(0, tf.int64))
    _, height, width, pixels = tf.while_loop(lambda position, *_: position < size, next_block, begin)
    return tf.stack([height, width, tf.maximum(pixels, height * width)])


def _cropped_jpeg(
    content: tf.Tensor, bounded: tf.Tensor, size: tuple[int, int], crop: str | None, seed: tf.Tensor
) -> tf.Tensor:
    if crop is None:
        return tf.io.decode_jpeg(bounded, channels=3)
    window = _window(tf.io.extract_jpeg_shape(content), size, crop, seed)
    return tf.io.decode_and_crop_jpeg(bounded, window, channels=3)


def _cropped_other(content: tf.Tensor, size: tuple[int, int], crop: str | None, seed: tf.Tensor) -> tf.Tensor:
    pixels = tf.ensure_shape(tf.io.decode_image(content, channels=3, expand_animations=False), [None, None, 3])
    if crop is None:
        return pixels
    top, left, height, width = tf.unstack(_window(tf.shape(pixels), size, crop, seed))
    return pixels[top : top + height, left : left + width]


def _window(shape: tf.Tensor, size: tuple[int, int], crop: str, seed: tf.Tensor) -> tf.Tensor:
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


def _resized(pixels: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    def resize() -> tf.Tensor:
        return tf.cast(tf.round(tf.image.resize(pixels, size)), tf.uint8)  # means of pixels: 0 to 255

    fits = tf.reduce_all(tf.equal(tf.shape(pixels)[:2], size))
    return tf.ensure_shape(tf.cond(fits, lambda: tf.identity(pixels), resize), [*size, 3])


def describe_fault(content: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Return a sentence about bytes that are not an image, or are one that is too large."""
    length = tf.strings.length(content)
    head = tf.cast(tf.io.decode_raw(tf.strings.substr(content, 0, tf.minimum(length, 4)), tf.uint8), tf.int32)
    needed = "cannot be decoded. It must be a whole JPEG, PNG, BMP or GIF image; what came "
    begins = tf.strings.join(
        ["begins with the bytes ", tf.strings.reduce_join(tf.strings.as_string(head), separator=" ")]
    )
    what = tf.where(_begins(content, _JPEG), "begins as a JPEG does and is damaged or cut off", begins)
    bytes_long = tf.strings.join(["has ", tf.strings.as_string(length), " bytes and ", what, "."])
    text = tf.strings.join([needed, tf.where(length > 0, bytes_long, "is empty, 0 bytes.")])
    too_large = describe_size(tf.data.Dataset.from_tensors(content), max_pixels)
    return tf.where(tf.equal(too_large, ""), text, too_large)


def describe_size(contents: tf.data.Dataset, max_pixels: int) -> tf.Tensor:
    """Return a sentence about an image that is too large; empty if it is not."""
    shapes = contents.map(image_shape).ignore_errors()
    shape = shapes.reduce(tf.zeros([3], tf.int64), lambda before, shape: shape)
    height, width, pixels = tf.unstack(tf.strings.as_string(shape))
    text = tf.strings.join(
        [
            f"is too large to be decoded. It must have at most {max_pixels} pixels; what came has ",
            *(height, " x ", width, " (height x width), ", pixels, " in all. Write max_pixels=", pixels),
            " to decode it.",
        ]
    )
    return tf.where(shape[2] > max_pixels, text, "")
