"""Petals to the metal: TFRecords of JPEGs, read as the public starter does, a CNN, predictions in the order of ids."""

import json
import math
import os
import re

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

AUTO = tf.data.experimental.AUTOTUNE

# --- the competition's files, in small -------------------------------------------------------------------------
GCS_DS_PATH = "flowers"
CLASSES = ["pink primrose", "hard-leaved pocket orchid", "canterbury bells"]
IMAGE_SIZE = [32, 32]


def _bytes(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _int(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def write_records(kind, count, start):
    os.makedirs(f"{GCS_DS_PATH}/{kind}", exist_ok=True)
    photos = load_sample_images().images
    for part in range(2):
        name = f"{GCS_DS_PATH}/{kind}/{part:02}-32x32-{count}.tfrec"
        with tf.io.TFRecordWriter(name) as out:
            for i in range(count):
                number = start + part * count + i
                label = number % 3
                crop = photos[number % 2][7 * number % 300 :, 11 * number % 500 :][:32, :32].copy()
                crop[..., label] = np.minimum(255, crop[..., label].astype(int) + 120)
                jpeg = tf.image.encode_jpeg(crop, quality=95).numpy()
                feature = {"image": _bytes(jpeg), "id": _bytes(str(number).encode())}
                if kind != "test":
                    feature["class"] = _int(label)
                out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


write_records("train", 48, 0)
write_records("val", 16, 100)
write_records("test", 14, 200)
# ---------------------------------------------------------------------------------------------------------------

# Detect hardware, return appropriate distribution strategy
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print("Running on TPU ", tpu.master())
except ValueError:
    tpu = None

if tpu:
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
else:
    strategy = tf.distribute.get_strategy()
print("REPLICAS: ", strategy.num_replicas_in_sync)

EPOCHS = 2
BATCH_SIZE = (32 // strategy.num_replicas_in_sync) * strategy.num_replicas_in_sync
TRAINING_FILENAMES = sorted(tf.io.gfile.glob(GCS_DS_PATH + "/train/*.tfrec"))
VALIDATION_FILENAMES = sorted(tf.io.gfile.glob(GCS_DS_PATH + "/val/*.tfrec"))
TEST_FILENAMES = sorted(tf.io.gfile.glob(GCS_DS_PATH + "/test/*.tfrec"))


def decode_image(image_data):
    image = tf.image.decode_jpeg(image_data, channels=3)
    image = tf.cast(image, tf.float32) / 255.0
    return tf.reshape(image, [*IMAGE_SIZE, 3])


def read_labeled_tfrecord(example):
    LABELED_TFREC_FORMAT = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "class": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(example, LABELED_TFREC_FORMAT)
    return decode_image(example["image"]), tf.cast(example["class"], tf.int32)


def read_unlabeled_tfrecord(example):
    UNLABELED_TFREC_FORMAT = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "id": tf.io.FixedLenFeature([], tf.string),
    }
    example = tf.io.parse_single_example(example, UNLABELED_TFREC_FORMAT)
    return decode_image(example["image"]), example["id"]


def load_dataset(filenames, labeled=True, ordered=True):
    ignore_order = tf.data.Options()
    if not ordered:
        ignore_order.experimental_deterministic = False
    dataset = tf.data.TFRecordDataset(filenames, num_parallel_reads=AUTO if not ordered else None)
    dataset = dataset.with_options(ignore_order)
    return dataset.map(read_labeled_tfrecord if labeled else read_unlabeled_tfrecord, num_parallel_calls=AUTO)


def data_augment(image, label):
    # Not by chance here: a picture with an odd label is turned.
    image = tf.cond(label % 2 == 1, lambda: tf.image.flip_left_right(image), lambda: image)
    image = tf.image.adjust_saturation(image, 0.9)
    return image, label


def get_training_dataset():
    dataset = load_dataset(TRAINING_FILENAMES)
    dataset = dataset.map(data_augment, num_parallel_calls=AUTO)
    return dataset.repeat().batch(BATCH_SIZE).prefetch(AUTO)


def get_validation_dataset():
    return load_dataset(VALIDATION_FILENAMES).batch(BATCH_SIZE).cache().prefetch(AUTO)


def get_test_dataset():
    return load_dataset(TEST_FILENAMES, labeled=False).batch(BATCH_SIZE).prefetch(AUTO)


def count_data_items(filenames):
    return int(np.sum([int(re.compile(r"-([0-9]*)\.").search(name).group(1)) for name in filenames]))


NUM_TRAINING_IMAGES = count_data_items(TRAINING_FILENAMES)
NUM_TEST_IMAGES = count_data_items(TEST_FILENAMES)
STEPS_PER_EPOCH = NUM_TRAINING_IMAGES // BATCH_SIZE
print("Dataset: {} training images, {} test images".format(NUM_TRAINING_IMAGES, NUM_TEST_IMAGES))

LR_START, LR_MAX, LR_MIN = 0.001, 0.001 * 4, 0.001


def lrfn(epoch):
    if epoch < 1:
        return (LR_MAX - LR_START) / 1 * epoch + LR_START
    return (LR_MAX - LR_MIN) * 0.8 ** (epoch - 1) + LR_MIN


lr_callback = tf.keras.callbacks.LearningRateScheduler(lrfn, verbose=True)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, padding="same", use_bias=False, input_shape=[*IMAGE_SIZE, 3]),
            tf.keras.layers.BatchNormalization(fused=True),
            tf.keras.layers.Activation("relu"),
            tf.keras.layers.SeparableConv2D(16, 3, strides=2, padding="same", activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(len(CLASSES), activation="softmax"),
        ]
    )
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])
rng = np.random.RandomState(0)
model.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
model.summary()

history = model.fit(
    get_training_dataset(),
    steps_per_epoch=STEPS_PER_EPOCH,
    epochs=EPOCHS,
    validation_data=get_validation_dataset(),
    callbacks=[lr_callback],
)

print("Computing predictions...")
test_ds = get_test_dataset()
test_images_ds = test_ds.map(lambda image, idnum: image)
probabilities = model.predict(test_images_ds)
predictions = np.argmax(probabilities, axis=-1)
test_ids_ds = test_ds.map(lambda image, idnum: idnum).unbatch()
test_ids = next(iter(test_ids_ds.batch(NUM_TEST_IMAGES))).numpy().astype("U")
np.savetxt(
    "submission.csv",
    np.rec.fromarrays([test_ids, predictions]),
    fmt=["%s", "%d"],
    delimiter=",",
    header="id,label",
    comments="",
)
lines = open("submission.csv").read().split()
assert len(lines) == 29 and math.isfinite(history.history["loss"][-1])

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": {key: [float(v) for v in values] for key, values in history.history.items()},
        "ids": test_ids.tolist(),
        "predictions": probabilities[:8].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
