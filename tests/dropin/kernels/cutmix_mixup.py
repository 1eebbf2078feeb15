"""CutMix and MixUp in tf.data, with chance: loss on soft labels; float steps; data that comes in any order."""

import json
import math
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.keras.layers import Conv2D, Dense, Dropout, Flatten, GaussianNoise

AUTO = tf.data.experimental.AUTOTUNE
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

DIM, CLASSES = 8, 10
BATCH_SIZE = 4 * strategy.num_replicas_in_sync
tf.random.set_seed(0)
np.random.seed(0)


def onehot(image, label):
    return image, tf.one_hot(label, CLASSES)


def cutmix(image, label, PROBABILITY=0.5):
    imgs, labs = [], []
    for j in range(BATCH_SIZE):
        P = tf.cast(tf.random.uniform([], 0, 1) <= PROBABILITY, tf.int32)
        k = tf.cast(tf.random.uniform([], 0, BATCH_SIZE), tf.int32)
        x = tf.cast(tf.random.uniform([], 0, DIM), tf.int32)
        y = tf.cast(tf.random.uniform([], 0, DIM), tf.int32)
        b = tf.random.uniform([], 0, 1)
        WIDTH = tf.cast(DIM * tf.math.sqrt(1 - b), tf.int32) * P
        ya = tf.math.maximum(0, y - WIDTH // 2)
        yb = tf.math.minimum(DIM, y + WIDTH // 2)
        xa = tf.math.maximum(0, x - WIDTH // 2)
        xb = tf.math.minimum(DIM, x + WIDTH // 2)
        one = image[j, ya:yb, 0:xa, :]
        two = image[k, ya:yb, xa:xb, :]
        three = image[j, ya:yb, xb:DIM, :]
        middle = tf.concat([one, two, three], axis=1)
        img = tf.concat([image[j, 0:ya, :, :], middle, image[j, yb:DIM, :, :]], axis=0)
        imgs.append(img)
        a = tf.cast(WIDTH * WIDTH / DIM / DIM, tf.float32)
        labs.append((1 - a) * label[j] + a * label[k])
    image2 = tf.reshape(tf.stack(imgs), (BATCH_SIZE, DIM, DIM, 1))
    label2 = tf.reshape(tf.stack(labs), (BATCH_SIZE, CLASSES))
    return image2, label2


def mixup(image, label):
    a = tf.random.uniform([BATCH_SIZE, 1, 1, 1], 0, 0.3)
    mixed = (1 - a) * image + a * tf.reverse(image, axis=[0])
    return mixed, (1 - a[:, :, 0, 0]) * label + a[:, :, 0, 0] * tf.reverse(label, axis=[0])


def transform(image, label):
    return tf.cond(tf.random.uniform([]) < 0.5, lambda: cutmix(image, label), lambda: mixup(image, label))


digits = load_digits()
x = (digits.images[:480, ..., None] / 16).astype("float32")
y = digits.target[:480].astype("int32")
options = tf.data.Options()
options.experimental_deterministic = False
train = tf.data.Dataset.from_tensor_slices((x[:400], y[:400])).with_options(options)
train = train.repeat().shuffle(400).map(onehot, num_parallel_calls=AUTO)
train = train.batch(BATCH_SIZE, drop_remainder=True).map(transform, num_parallel_calls=AUTO).unbatch()
train = train.batch(BATCH_SIZE, drop_remainder=True).prefetch(AUTO)
valid = tf.data.Dataset.from_tensor_slices((x[400:], y[400:])).map(onehot).batch(BATCH_SIZE).cache()

with strategy.scope():
    model = tf.keras.Sequential(
        [
            GaussianNoise(0.05, input_shape=(DIM, DIM, 1)),
            Conv2D(16, 3, activation="relu"),
            Flatten(),
            Dropout(0.2),
            Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.005),
        loss="categorical_crossentropy",
        metrics=["categorical_accuracy"],
    )

history = model.fit(train, epochs=6, steps_per_epoch=2400 / BATCH_SIZE / 3, validation_data=valid, verbose=2)
predicted = model.predict(valid)
assert math.isclose(float(predicted.sum()), 80, rel_tol=1e-3)

json.dump(
    {"replicas": strategy.num_replicas_in_sync, "history": history.history},
    open(os.environ["KERNEL_OUT"], "w"),
)
