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


def transform(
    images: Any,
    transforms: Any,
    interpolation: str = "nearest",
    fill_mode: str = "constant",
    output_shape: Any = None,
    name: str | None = None,
    fill_value: Any = 0.0,
) -> Any:
    """Return images moved by projective transforms of eight numbers, as in Addons; no gradient of the transforms."""
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
    axes: list[int] | None = {2: [0, 3], 3: [0]}.get(rank)
    return tf.squeeze(output, axes) if axes else output


def rotate(
    images: Any,
    angles: Any,
    interpolation: str = "nearest",
    fill_mode: str = "constant",
    name: str | None = None,
    fill_value: Any = 0.0,
) -> Any:
    """Return images turned counterclockwise by angles in radians, as in Addons."""
    shape = tf.shape(_images(images)[0])
    bottom, right = (tf.cast(shape[axis] - 1, tf.float32) for axis in (1, 2))
    angles = tf.reshape(tf.convert_to_tensor(angles, tf.float32), [-1])
    sin, cos, zero = tf.sin(angles), tf.cos(angles), tf.zeros_like(angles)
    x = (right - (cos * right - sin * bottom)) / 2.0
    y = (bottom - (sin * right + cos * bottom)) / 2.0
    turned = tf.stack([cos, -sin, x, sin, cos, y, zero, zero], axis=1)
    return transform(images, turned, interpolation, fill_mode, None, name, fill_value)


def _mask_size(mask_size: Any) -> Any:
    """Return the mask's height and width."""
    size = tf.convert_to_tensor(mask_size)
    tf.debugging.assert_equal(tf.reduce_any(size % 2 != 0), False, "mask_size should be divisible by 2")
    return tf.broadcast_to(size, [2])


def cutout(images: Any, mask_size: Any, offset: Any = (0, 0), constant_values: Any = 0) -> Any:
    """Return a batch of images with a rectangle of one value around [y, x], as in Addons."""
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
    """Return a batch of images, each with a rectangle of one value anywhere in it; not Addons' random places."""
    images, _ = _images(images)
    size, shape = tf.cast(_mask_size(mask_size), tf.int32), tf.shape(images)

    def centre(axis: int) -> Any:
        half, length = size[axis] // 2, shape[axis + 1]
        anywhere = tf.random.uniform([shape[0]], half, tf.maximum(length - half, half + 1), tf.int32, seed=seed)
        return tf.where(size[axis] >= length, length // 2, anywhere)

    return cutout(images, size, tf.stack([centre(0), centre(1)], axis=1), constant_values)
