"""tensorflow_addons: GroupNormalization and WeightNormalization in a CNN, rotate in tf.data, LAMB, triplet loss."""

import json
import os

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa
from sklearn.datasets import load_digits

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

digits = load_digits()
images = (digits.images[:256, ..., None] / 16).astype("float32")
labels = digits.target[:256].astype("int32")


def rotate(image, label):
    angle = tf.cast(label, tf.float32) * np.pi / 36
    return tfa.image.rotate(image, angle, interpolation="BILINEAR"), label


ds = tf.data.Dataset.from_tensor_slices((images, labels)).map(rotate).batch(64)


def build(head, optimizer):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, padding="same", input_shape=(8, 8, 1)),
            tfa.layers.GroupNormalization(groups=4, axis=-1),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Flatten(),
            head,
            tf.keras.layers.Lambda(lambda x: tf.math.l2_normalize(x, axis=1)),
        ]
    )
    model.compile(optimizer=optimizer, loss=tfa.losses.TripletSemiHardLoss(margin=0.5))
    for w in model.trainable_weights:
        if len(w.shape) > 1:
            w.assign(np.random.RandomState(sum(w.shape)).normal(0, 0.3, tuple(w.shape)))
    return model


with strategy.scope():
    plain = build(tf.keras.layers.Dense(16), tfa.optimizers.LAMB(0.01))
    weight_normalised = build(
        tfa.layers.WeightNormalization(tf.keras.layers.Dense(16), data_init=False), tf.keras.optimizers.Adam()
    )

history = plain.fit(ds, epochs=3)
second = weight_normalised.fit(ds, epochs=3)
rotated = next(iter(ds))[0].numpy()

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "second": second.history,
        "rotated": rotated[:3, ::2, ::2, 0].tolist(),
        "predictions": plain.predict(images[:8]).tolist(),
        "normalised": weight_normalised.predict(images[:8]).tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
