"""An autoencoder whose first layers are those of `layers.experimental.preprocessing`, of the year 2020."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.keras import Input, Model, Sequential, layers
from tensorflow.keras.layers.experimental import preprocessing

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except Exception:
    strategy = tf.distribute.get_strategy()

images = load_digits().images[:320, ..., None].astype("float32")
noise = np.random.RandomState(0).normal(0, 1, images.shape).astype("float32")

normalizer = preprocessing.Normalization(axis=-1)
normalizer.adapt(images)
augment = Sequential([preprocessing.RandomFlip("horizontal"), preprocessing.RandomRotation(0.02)], name="augment")

with strategy.scope():
    inp = Input(shape=(8, 8, 1))
    x = preprocessing.Resizing(16, 16, interpolation="nearest")(inp)
    x = preprocessing.Rescaling(scale=1.0 / 16, offset=0.0)(x)
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Reshape((-1,))(x)
    code = layers.Dense(12, activity_regularizer=tf.keras.regularizers.l1(l=1e-5), name="code")(x)
    x = layers.Dense(4 * 4 * 4, activation="relu")(code)
    x = layers.Reshape((4, 4, 4))(x)
    x = layers.UpSampling2D((2, 2), interpolation="bilinear")(x)
    x = layers.Conv2D(1, 3, padding="same")(x)
    out = layers.Activation("linear", dtype="float32")(x)
    autoencoder = Model(inp, out)
    encoder = Model(inp, code)
    autoencoder.compile(optimizer="adam", loss="mse", metrics=["mae", tf.keras.metrics.RootMeanSquaredError()])

rng = np.random.RandomState(7)
autoencoder.set_weights([rng.normal(0, 0.15, w.shape) if w.ndim > 1 else w for w in autoencoder.get_weights()])

target = normalizer(images)
target = np.array(target)
augmented = augment(images[:16], training=False)
assert np.array_equal(np.array(augmented), images[:16])

history = autoencoder.fit(images + noise, target, batch_size=64, epochs=2, validation_split=0.2, shuffle=False)
codes = encoder.predict(images[:16])

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "codes": codes[:4].tolist(),
        "mean": [float(np.mean(target)), float(np.std(target))],
        "predictions": autoencoder.predict(images[:4])[:, ::2, ::2, 0].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
