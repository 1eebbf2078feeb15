"""Writes files in the form of the competition "Petals to the Metal": `python kaggle_stand_in.py FOLDER`.

Crops of the two photographs that come with scikit-learn, of which one is a flower, stand in for flowers.
"""

import io
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_sample_images

SIZE = 192
IMAGES = {"train": 500, "val": 84, "test": 100}
CLASSES = (28, 67)  # the numbers say nothing: the competition has 104


def jpeg(photograph, random):
    """Return a square crop of any size, as JPEG."""
    side = int(random.integers(SIZE, 400))
    top, left = (int(random.integers(0, length - side + 1)) for length in photograph.shape[:2])
    image = Image.fromarray(photograph[top : top + side, left : left + side]).resize((SIZE, SIZE))
    image.save(buffer := io.BytesIO(), "jpeg")
    return buffer.getvalue()


def record(image, number, label):
    """Return an example as the competition writes it; without a label for the test."""
    features = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))}
    if label is None:
        features["id"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"{number:05x}".encode()]))
    else:
        features["class"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


random = np.random.default_rng(0)
photographs = load_sample_images().images
for part, count in IMAGES.items():
    folder = Path(sys.argv[1]) / part
    folder.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(folder / f"00-{SIZE}x{SIZE}-{count}.tfrec")) as writer:
        for number in range(count):
            kind = int(random.integers(2))
            label = None if part == "test" else CLASSES[kind]
            writer.write(record(jpeg(photographs[kind], random), number, label))
