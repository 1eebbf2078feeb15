"""Filters of images of TensorFlow Addons 0.23: on TensorFlow's tensors, for `tf.data`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext.dropin.stand_ins.addons_image import as_before, convolved, images_of


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, (int, float)) else tuple(value)


def _padded(images: Any, filter_shape: tuple[int, int], padding: str, constant_values: Any) -> Any:
    if padding.upper() not in ("REFLECT", "CONSTANT", "SYMMETRIC"):
        raise ValueError('padding should be one of "REFLECT", "CONSTANT", or "SYMMETRIC".')
    around = [[0, 0], *[[(n - 1) // 2, n - 1 - (n - 1) // 2] for n in filter_shape], [0, 0]]
    return tf.pad(images, around, padding, constant_values=tf.cast(constant_values, images.dtype))


def mean_filter2d(
    image: Any,
    filter_shape: Any = (3, 3),
    padding: str = "REFLECT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Any:
    """Return an image of the means of rectangles."""
    del name
    height, width = _pair(filter_shape)
    kernel = tf.ones((height, width)) / (height * width)
    return _filtered(image, kernel, padding, constant_values)


def gaussian_filter2d(
    image: Any,
    filter_shape: Any = (3, 3),
    sigma: Any = 1.0,
    padding: str = "REFLECT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Any:
    """Return an image that is blurred; `sigma` is the width of the blur, or its height and width."""
    del name
    rows = [tf.cast(tf.range(-n // 2 + 1, n // 2 + 1) ** 2, tf.float32) for n in _pair(filter_shape)]
    of_height, of_width = (
        tf.nn.softmax(-row / (2.0 * tf.cast(s, tf.float32) ** 2)) for row, s in zip(rows, _pair(sigma), strict=True)
    )
    return _filtered(image, of_height[:, None] * of_width[None, :], padding, constant_values)


def _filtered(image: Any, kernel: Any, padding: str, constant_values: Any) -> Any:
    images, rank = images_of(image)
    floats = images if images.dtype.is_floating else tf.cast(images, tf.float32)
    around = _padded(floats, tuple(kernel.shape), padding, constant_values)
    return as_before(tf.cast(convolved(around, kernel), images.dtype), rank)


def median_filter2d(
    image: Any,
    filter_shape: Any = (3, 3),
    padding: str = "REFLECT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Any:
    """Return an image of the medians of rectangles."""
    del name
    images, rank = images_of(image)
    height, width = _pair(filter_shape)
    around = _padded(images, (height, width), padding, constant_values)
    patches = tf.image.extract_patches(around, [1, height, width, 1], [1] * 4, [1] * 4, "VALID")
    patches = tf.sort(
        tf.reshape(patches, [*tf.unstack(tf.shape(images)[:3]), height * width, images.shape[-1]]), axis=3
    )
    low, high = (patches[:, :, :, i] for i in ((height * width - 1) // 2, height * width // 2))
    median = low if height * width % 2 else (low + high) / 2
    return as_before(tf.cast(median, images.dtype), rank)
