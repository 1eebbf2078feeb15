"""Functions on images of TensorFlow Addons 0.23: on TensorFlow's tensors, for `tf.data`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.tensors import has_jax_value


def _images(image: Any) -> tuple[Any, int]:
    """Return images with a batch and channels, and how many axes they had."""
    if has_jax_value(image):
        raise out_of_reach(
            what="tfa.image on a tensor of a model",
            why="these functions are TensorFlow's",
            write="keras.ops.image, or the function in the tf.data pipeline",
        )
    image = tf.convert_to_tensor(image)
    rank = image.shape.rank
    if rank not in (2, 3, 4):
        raise ValueError(
            f"an image needs 2, 3 or 4 axes, known when a function is traced; this has the shape {image.shape}"
        )
    return {2: lambda: image[None, :, :, None], 3: lambda: image[None], 4: lambda: image}[rank](), rank


def _as_before(images: Any, rank: int) -> Any:
    return {2: lambda: tf.squeeze(images, [0, 3]), 3: lambda: tf.squeeze(images, [0]), 4: lambda: images}[rank]()


def transform(
    images: Any,
    transforms: Any,
    interpolation: str = "nearest",
    fill_mode: str = "constant",
    output_shape: Any = None,
    name: str | None = None,
    fill_value: Any = 0.0,
) -> Any:
    """Return images whose pixel (x, y) comes from ((a0 x + a1 y + a2) / k, (b0 x + b1 y + b2) / k).

    Args:
        images: One or more, of shape (height, width), (height, width, channels) or with a batch.
        transforms: [a0, a1, a2, b0, b1, b2, c0, c1], one or one for each image; k is c0 x + c1 y + 1.
        interpolation: "nearest" or "bilinear".
        fill_mode: "constant", "reflect", "wrap" or "nearest".
        output_shape: [height, width] of the outputs; by default those of the inputs.
        name: The name of the operation.
        fill_value: What "constant" fills with.
    """
    images, rank = _images(images)
    transforms = tf.convert_to_tensor(transforms, tf.float32)
    size = tf.shape(images)[1:3] if output_shape is None else tf.convert_to_tensor(output_shape, tf.int32)
    output = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms[None] if transforms.shape.rank == 1 else transforms,
        output_shape=size,
        interpolation=interpolation.upper(),
        fill_mode=fill_mode.upper(),
        fill_value=tf.convert_to_tensor(fill_value, tf.float32),
        name=name,
    )
    return _as_before(output, rank)


def compose_transforms(transforms: Any, name: str | None = None) -> Any:
    """Return the transform that is all of these, one after the other."""
    del name
    first, *others = (
        tf.reshape(tf.pad(tf.reshape(one, [-1, 8]), [[0, 0], [0, 1]], constant_values=1), [-1, 3, 3])
        for one in map(tf.convert_to_tensor, transforms)
    )
    for one in others:
        first = tf.matmul(first, one)
    flat = tf.reshape(first, [-1, 9])
    return (flat / flat[:, 8:])[:, :8]


def angles_to_projective_transforms(angles: Any, image_height: Any, image_width: Any, name: str | None = None) -> Any:
    """Return the transforms that turn images of this size by angles in radians."""
    del name
    angles = tf.reshape(tf.convert_to_tensor(angles, tf.float32), [-1])
    sin, cos = tf.sin(angles), tf.cos(angles)
    right, bottom = image_width - 1, image_height - 1
    x = (right - (cos * right - sin * bottom)) / 2.0
    y = (bottom - (sin * right + cos * bottom)) / 2.0
    zero = tf.zeros_like(angles)
    return tf.stack([cos, -sin, x, sin, cos, y, zero, zero], axis=1)


def rotate(
    images: Any,
    angles: Any,
    interpolation: str = "nearest",
    fill_mode: str = "constant",
    name: str | None = None,
    fill_value: Any = 0.0,
) -> Any:
    """Return images turned counterclockwise.

    Args:
        images: One or more; see `transform`.
        angles: In radians, one or one for each image.
        interpolation: "nearest" or "bilinear".
        fill_mode: See `transform`.
        name: The name of the operation.
        fill_value: See `transform`.
    """
    images, rank = _images(images)
    height, width = (tf.cast(tf.shape(images)[i], tf.float32) for i in (1, 2))
    turned = angles_to_projective_transforms(angles, height, width)
    return _as_before(transform(images, turned, interpolation, fill_mode, None, name, fill_value), rank)


def translations_to_projective_transforms(translations: Any, name: str | None = None) -> Any:
    """Return the transforms that move images by [dx, dy]."""
    del name
    translations = tf.reshape(tf.convert_to_tensor(translations, tf.float32), [-1, 2])
    one = tf.ones_like(translations[:, 0])
    zero = tf.zeros_like(one)
    return tf.stack([one, zero, -translations[:, 0], zero, one, -translations[:, 1], zero, zero], axis=1)


def translate(
    images: Any,
    translations: Any,
    interpolation: str = "nearest",
    fill_mode: str = "constant",
    name: str | None = None,
    fill_value: Any = 0.0,
) -> Any:
    """Return images moved by [dx, dy]; see `transform` for the other arguments."""
    moved = translations_to_projective_transforms(translations)
    return transform(images, moved, interpolation, fill_mode, None, name, fill_value)


def _filled(image: Any, replace: Any, function: Any) -> Any:
    """Return what a function makes of one image of three channels, with `replace` where nothing of it is."""
    image, _ = tf.convert_to_tensor(image), _images(image)
    inside = tf.ones_like(image[:, :, :1])
    moved = function(tf.concat([image, inside], axis=2))
    color = tf.broadcast_to(tf.cast(replace, image.dtype), [3])
    return tf.where(moved[:, :, 3:] == 1, moved[:, :, :3], color)


def translate_xy(image: Any, translate_to: Any, replace: Any) -> Any:
    """Return an image of three channels moved by [dx, dy], with `replace` where nothing of it is."""
    return _filled(image, replace, lambda wrapped: translate(wrapped, translate_to))


def shear_x(image: Any, level: float, replace: Any) -> Any:
    """Return an image of three channels whose rows are moved, with `replace` where nothing of it is."""
    return _filled(image, replace, lambda wrapped: transform(wrapped, [1.0, level, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]))


def shear_y(image: Any, level: float, replace: Any) -> Any:
    """Return an image of three channels whose columns are moved, with `replace` where nothing of it is."""
    return _filled(image, replace, lambda wrapped: transform(wrapped, [1.0, 0.0, 0.0, level, 1.0, 0.0, 0.0, 0.0]))


def _mask_size(mask_size: Any) -> Any:
    """Return the mask's height and width."""
    size = tf.convert_to_tensor(mask_size)
    tf.debugging.assert_equal(tf.reduce_any(size % 2 != 0), False, "mask_size should be divisible by 2")
    return tf.broadcast_to(size, [2])


def cutout(images: Any, mask_size: Any, offset: Any = (0, 0), constant_values: Any = 0) -> Any:
    """Return images with a rectangle of one value.

    Args:
        images: A batch.
        mask_size: The rectangle's height and width, or one number for both; even.
        offset: The rectangle's centre, [y, x], one or one for each image.
        constant_values: The value.
    """
    images, rank = _images(images)
    if rank != 4:
        raise ValueError(
            f"cutout needs a batch of images: write tfa.image.cutout(image[None], ...)[0]; {rank} axes came"
        )
    half = _mask_size(mask_size) // 2
    centre = tf.cast(tf.reshape(tf.convert_to_tensor(offset), [-1, 2]), half.dtype)
    inside = []
    for axis in (0, 1):
        places = tf.range(tf.cast(tf.shape(images)[axis + 1], half.dtype))[None]
        middle = centre[:, axis : axis + 1]
        inside.append((places >= middle - half[axis]) & (places < middle + half[axis]))
    mask = inside[0][:, :, None, None] & inside[1][:, None, :, None]
    return tf.where(mask, tf.cast(constant_values, images.dtype), images)


def random_cutout(images: Any, mask_size: Any, constant_values: Any = 0, seed: int | None = None) -> Any:
    """Return images, each with a rectangle of one value anywhere in it; see `cutout`."""
    images, _ = _images(images)
    size = tf.cast(_mask_size(mask_size), tf.int32)
    shape = tf.shape(images)

    def centre(axis: int) -> Any:
        half, length = size[axis] // 2, shape[axis + 1]
        anywhere = tf.random.uniform([shape[0]], half, tf.maximum(length - half, half + 1), tf.int32, seed=seed)
        return tf.where(size[axis] >= length, length // 2, anywhere)

    return cutout(images, size, tf.stack([centre(0), centre(1)], axis=1), constant_values)


def blend(image1: Any, image2: Any, factor: float) -> Any:
    """Return image1 + factor * (image2 - image1), rounded, and clipped if the factor is outside of [0, 1]."""
    if factor in (0.0, 1.0):
        return tf.convert_to_tensor(image2 if factor else image1)
    image1, image2 = tf.cast(image1, tf.float32), tf.cast(image2, tf.float32)
    blended = image1 + factor * (image2 - image1)
    return tf.round(blended if 0.0 < factor < 1.0 else tf.clip_by_value(blended, 0.0, 255.0))


def _convolved(images: Any, kernel: Any) -> Any:
    channels = images.shape[-1]
    kernel = tf.tile(tf.cast(kernel, images.dtype)[:, :, None, None], [1, 1, channels, 1])
    return tf.nn.depthwise_conv2d(images, kernel, strides=[1, 1, 1, 1], padding="VALID")


def sharpness(image: Any, factor: float, name: str | None = None) -> Any:
    """Return a sharper image (factor above 1) or a smoother one."""
    del name
    images, rank = _images(image)
    kernel = tf.constant([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13.0
    smooth = tf.cast(_convolved(tf.cast(images, tf.float32), kernel), images.dtype)
    border = [[0, 0], [1, 1], [1, 1], [0, 0]]
    smooth = tf.where(tf.pad(tf.ones_like(smooth), border) == 1, tf.pad(smooth, border), images)
    return _as_before(tf.cast(blend(smooth, images, factor), images.dtype), rank)


def equalize(image: Any, bins: int = 256, name: str | None = None) -> Any:
    """Return an image whose values are all about as frequent."""
    del name
    images, rank = _images(image)
    channels = tf.transpose(tf.cast(images, tf.int32), [0, 3, 1, 2])
    planes = tf.reshape(channels, [-1, tf.shape(images)[1] * tf.shape(images)[2]])

    def plane(values: Any) -> Any:
        counts = tf.histogram_fixed_width(values, [0, bins - 1], nbins=bins)
        seen = tf.boolean_mask(counts, counts != 0)
        step = (tf.reduce_sum(seen) - seen[-1]) // (bins - 1)
        divisor = tf.maximum(step, 1)
        table = tf.clip_by_value((tf.cumsum(counts, exclusive=True) + step // 2) // divisor, 0, bins - 1)
        return tf.where(step == 0, values, tf.gather(table, values))

    equal = tf.transpose(tf.reshape(tf.map_fn(plane, planes), tf.shape(channels)), [0, 2, 3, 1])
    return _as_before(tf.cast(equal, images.dtype), rank)


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
    images, rank = _images(image)
    floats = images if images.dtype.is_floating else tf.cast(images, tf.float32)
    around = _padded(floats, tuple(kernel.shape), padding, constant_values)
    return _as_before(tf.cast(_convolved(around, kernel), images.dtype), rank)


def median_filter2d(
    image: Any,
    filter_shape: Any = (3, 3),
    padding: str = "REFLECT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Any:
    """Return an image of the medians of rectangles."""
    del name
    images, rank = _images(image)
    height, width = _pair(filter_shape)
    around = _padded(images, (height, width), padding, constant_values)
    patches = tf.image.extract_patches(around, [1, height, width, 1], [1] * 4, [1] * 4, "VALID")
    patches = tf.sort(
        tf.reshape(patches, [*tf.unstack(tf.shape(images)[:3]), height * width, images.shape[-1]]), axis=3
    )
    low, high = (patches[:, :, :, i] for i in ((height * width - 1) // 2, height * width // 2))
    median = low if height * width % 2 else (low + high) / 2
    return _as_before(tf.cast(median, images.dtype), rank)
