"""Real images for the tests: crops of scikit-learn's two photographs, as JPEG files."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

CLASSES = ("china", "flower")


def photographs():
    return load_sample_images().images


def jpeg(pixels, quality=90):
    return tf.io.encode_jpeg(pixels, quality=quality).numpy()


def claimed_png(height, width=None):
    """Return a PNG of one pixel whose header claims more."""
    whole = tf.io.encode_png(np.zeros((1, 1, 3), "uint8")).numpy()
    header = b"IHDR" + struct.pack(">II", width or height, height) + whole[24:29]
    return whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:]


def gif(*frames, screen=(1, 1)):
    """Return a GIF with frames that claim to be of these heights and widths, and have one pixel."""
    found = b"GIF89a" + struct.pack("<HHBBB", *screen[::-1], 0x80, 0, 0) + bytes(6)
    for height, width in frames:
        found += b"\x21\xfe\x02hi\0" + b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0x80) + bytes(6)
        found += b"\x02\x02\x44\x01\0"
    return found + b";"


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
