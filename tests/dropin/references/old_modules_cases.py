"""The cases of old_modules.json: make_old_modules.py runs them on Keras 2, test_old_modules.py with the drop-in."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

TEXTS = ["The cat sat on the mat.", "A dog -- a big dog! -- ate the cat's food", "", "Mat and cat; cat and mat"]


def _normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def tokenizer():
    text = tf.keras.preprocessing.text
    words = text.Tokenizer(num_words=6, oov_token="<oov>")
    words.fit_on_texts(TEXTS)
    chars = text.Tokenizer(char_level=True, lower=False, filters="")
    chars.fit_on_texts(TEXTS)
    again = text.tokenizer_from_json(words.to_json())
    return {
        "index": words.word_index,
        "counts": dict(words.word_counts),
        "sequences": words.texts_to_sequences([*TEXTS, "an unknown cat"]),
        "texts": again.sequences_to_texts([[1, 2, 3, 5, 9]]),
        "chars": chars.texts_to_sequences(["mat?"]),
        "matrix": {mode: words.texts_to_matrix(TEXTS, mode) for mode in ("binary", "count", "freq", "tfidf")},
        "words": text.text_to_word_sequence("To be, or not to-be?", filters=",?", lower=False),
        "hashes": text.hashing_trick("The cat sat.", 50, hash_function="md5"),
    }


def sequences():
    sequence = tf.keras.preprocessing.sequence
    rows = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9]]
    series = sequence.TimeseriesGenerator(np.arange(20.0).reshape(10, 2), np.arange(10), 3, stride=2, batch_size=2)
    return {
        "padded": sequence.pad_sequences(rows, 4),
        "after": sequence.pad_sequences(rows, 4, padding="post", truncating="post", value=-1.0, dtype="float32"),
        "longest": sequence.pad_sequences(rows),
        "skipgrams": random.seed(5) or sequence.skipgrams([1, 2, 0, 3, 4], 5, window_size=2, seed=7),
        "table": sequence.make_sampling_table(6),
        "series": [list(series[i]) for i in range(len(series))],
    }


def _images():
    return np.random.default_rng(0).integers(0, 256, (7, 6, 5, 3)).astype("float32")


def generator():
    image = tf.keras.preprocessing.image
    plain = image.ImageDataGenerator(rescale=1 / 255, validation_split=0.3)
    train = plain.flow(_images(), np.arange(7) % 2, batch_size=2, shuffle=False, subset="training")
    valid = plain.flow(_images(), np.arange(7) % 2, batch_size=2, shuffle=False, subset="validation")
    fitted = image.ImageDataGenerator(featurewise_center=True, featurewise_std_normalization=True)
    fitted.fit(_images())
    return {
        "train": [[x.sum((1, 2)), y] for x, y in (train[i] for i in range(len(train)))],
        "next": next(train)[1],
        "valid": [[x.sum((1, 2)), y] for x, y in (valid[i] for i in range(len(valid)))],
        "fitted": fitted.flow(_images(), batch_size=7, shuffle=False)[0][:, ::3, ::2],
    }


def augmented():
    image = tf.keras.preprocessing.image
    options = {"rotation_range": 30, "zoom_range": 0.2, "width_shift_range": 0.2, "shear_range": 5}
    made = image.ImageDataGenerator(horizontal_flip=True, channel_shift_range=9.0, **options)
    x, y = made.flow(_images(), np.arange(7), batch_size=4, seed=3)[0]
    return {"x": x[:, ::2, ::2], "y": y}


def directory():
    image = tf.keras.preprocessing.image
    with tempfile.TemporaryDirectory() as folder:
        for i, pixels in enumerate(_images()):
            path = Path(folder, "cats" if i % 3 else "dogs")
            path.mkdir(exist_ok=True)
            image.save_img(path / f"{i}.png", pixels, scale=False)
        made = image.ImageDataGenerator(rescale=1 / 255)
        results = {}
        for mode in ("categorical", "binary", "sparse", None):
            found = made.flow_from_directory(folder, (4, 4), class_mode=mode, batch_size=3, shuffle=False)
            results[str(mode)] = [found[i] for i in range(len(found))]
        loaded = image.img_to_array(image.load_img(Path(folder, "dogs", "0.png"), target_size=(3, 3)))
        return {**results, "indices": found.class_indices, "files": found.filenames, "loaded": loaded}


def utils():
    utils = tf.keras.utils
    return {
        "categorical": utils.to_categorical([0, 2, 1], 4),
        "normalized": utils.normalize(np.array([[3.0, 4.0], [0.0, 0.0]])),
        "ordinal": utils.to_ordinal([0, 2, 1], 4),
    }


def losses():
    y_true, y_pred = np.abs(_normal(3, 4)), np.abs(_normal(3, 4) + 0.5)
    names = ["MSE", "mae", "MAPE", "msle", "KLD", "kullback_leibler_divergence", "logcosh", "cosine_similarity"]
    return {name: np.asarray(getattr(tf.keras.losses, name)(y_true, y_pred)) for name in names}


def _layer(layer, shape):
    inputs = tf.keras.Input(shape)
    model = tf.keras.Model(inputs, layer(inputs))
    model.set_weights([_normal(*w.shape) for w in model.get_weights()])
    return {
        "weights": [list(w.shape) for w in model.get_weights()],
        "y": model.predict(_normal(2, *shape), verbose=0),
    }


def layers():
    made = tf.keras.layers
    return {
        "threshold": _layer(made.ThresholdedReLU(0.3), (5,)),
        "batch": _layer(made.experimental.SyncBatchNormalization(epsilon=0.1, beta_initializer="ones"), (4,)),
        "rescaling": _layer(made.experimental.preprocessing.Rescaling(1 / 255, offset=-1), (4,)),
    }


CASES = {f.__name__: f for f in (tokenizer, sequences, generator, augmented, directory, utils, losses, layers)}


def listed(values):
    """Return what JSON can hold: arrays as lists, with what a float32 needs."""
    if isinstance(values, dict):
        return {name: listed(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [listed(value) for value in values]
    if isinstance(values, np.ndarray):
        return listed(values.tolist())
    return float(f"{values:.7g}") if isinstance(values, float) else values
