"""Real images for the tests: crops of scikit-learn's two photographs, as JPEG files."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

CLASSES = ("china", "flower")


def photographs():
    return load_sample_images().images


def jpeg(pixels, quality=90):
    return tf.io.encode_jpeg(pixels, quality=quality).numpy()


def write_crops(folder, per_class, *, height=72, width=96, seed=0):
    """Write crops into a folder for each class; return the paths in the order of their names."""
    rng = np.random.default_rng(seed)
    paths = []
    for name, photograph in zip(CLASSES, photographs(), strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            top = rng.integers(0, photograph.shape[0] - height)
            left = rng.integers(0, photograph.shape[1] - width)
            path = folder / name / f"{number:03d}.jpg"
            path.write_bytes(jpeg(photograph[top : top + height, left : left + width]))
            paths.append(str(path))
    return paths


def plain_pixels(content, size, crop="center"):
    """Return what `images` is to make of a file, done one step after the other."""
    pixels = tf.io.decode_image(content, channels=3, expand_animations=False).numpy()
    if crop == "center":
        height = min(pixels.shape[0], pixels.shape[1] * size[0] // size[1])
        width = min(pixels.shape[1], pixels.shape[0] * size[1] // size[0])
        top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
        pixels = pixels[top : top + height, left : left + width]
    resized = tf.image.resize(pixels, size).numpy()
    return np.clip(np.round(resized), 0, 255).astype("uint8")


def in_time(dataset, seconds=60):
    """Return all batches; a test fails where they do not come in time."""
    import concurrent.futures

    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        return pool.submit(lambda: list(dataset)).result(seconds)
    finally:
        pool.shutdown(wait=False)


def rows(batches):
    """Return the images and labels of all batches."""
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])
