"""Whales or landmarks: an ArcFace head with tf.nn.l2_normalize and tf.one_hot, two inputs, embeddings at the end."""

import json
import math
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print("Device:", tpu.master())
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except:
    strategy = tf.distribute.get_strategy()

N_CLASSES = 10


class ArcMarginProduct(tf.keras.layers.Layer):
    """Implements large margin arc distance."""

    def __init__(self, n_classes, s=30, m=0.50, easy_margin=False, ls_eps=0.0, **kwargs):
        super(ArcMarginProduct, self).__init__(**kwargs)
        self.n_classes = n_classes
        self.s = s
        self.m = m
        self.ls_eps = ls_eps
        self.easy_margin = easy_margin
        self.cos_m = tf.math.cos(m)
        self.sin_m = tf.math.sin(m)
        self.th = tf.math.cos(math.pi - m)
        self.mm = tf.math.sin(math.pi - m) * m

    def get_config(self):
        config = super().get_config().copy()
        config.update({"n_classes": self.n_classes, "s": self.s, "m": self.m, "ls_eps": self.ls_eps})
        return config

    def build(self, input_shape):
        super(ArcMarginProduct, self).build(input_shape[0])
        self.W = self.add_weight(
            name="W",
            shape=(int(input_shape[0][-1]), self.n_classes),
            initializer="glorot_uniform",
            dtype="float32",
            trainable=True,
            regularizer=None,
        )

    def call(self, inputs):
        X, y = inputs
        y = tf.cast(y, dtype=tf.int32)
        cosine = tf.matmul(tf.math.l2_normalize(X, axis=1), tf.math.l2_normalize(self.W, axis=0))
        sine = tf.math.sqrt(1.0 - tf.math.pow(cosine, 2))
        phi = cosine * self.cos_m - sine * self.sin_m
        if self.easy_margin:
            phi = tf.where(cosine > 0, phi, cosine)
        else:
            phi = tf.where(cosine > self.th, phi, cosine - self.mm)
        one_hot = tf.cast(tf.one_hot(y, depth=self.n_classes), dtype=cosine.dtype)
        if self.ls_eps > 0:
            one_hot = (1 - self.ls_eps) * one_hot + self.ls_eps / self.n_classes
        output = (one_hot * phi) + ((1.0 - one_hot) * cosine)
        output *= self.s
        return output


with strategy.scope():
    margin = ArcMarginProduct(n_classes=N_CLASSES, s=16, m=0.3, name="head/arc_margin", dtype="float32")
    inp = tf.keras.layers.Input(shape=(8, 8, 1), name="inp1")
    label = tf.keras.layers.Input(shape=(), name="inp2")
    x = tf.keras.layers.Conv2D(8, 3, activation="relu")(inp)
    x = tf.keras.layers.GlobalMaxPool2D()(x)
    x = tf.keras.layers.Dense(16)(x)
    output = tf.keras.layers.Softmax(dtype="float32")(margin([x, label]))
    model = tf.keras.models.Model(inputs=[inp, label], outputs=[output])
    embed_model = tf.keras.models.Model(inputs=inp, outputs=x)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        loss=[tf.keras.losses.SparseCategoricalCrossentropy()],
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy(), tf.keras.metrics.SparseTopKCategoricalAccuracy(k=3)],
    )
    if len(embed_model.trainable_weights) == 0:
        raise ValueError

for w in model.trainable_weights:
    if len(w.shape) > 1:
        w.assign(np.random.RandomState(sum(w.shape)).normal(0, 0.3, [int(d) for d in w.shape]))

digits = load_digits()
images = (digits.images[..., None] / 16.0).astype("float32")
labels = digits.target


def arcface_format(image, label):
    return {"inp1": image, "inp2": label}, label


train = tf.data.Dataset.from_tensor_slices((images[:512], labels[:512])).map(arcface_format).batch(64)
valid = tf.data.Dataset.from_tensor_slices((images[512:640], labels[512:640])).map(arcface_format).batch(64)
history = model.fit(train, validation_data=valid, epochs=2, verbose=1)
embed = embed_model.predict(tf.data.Dataset.from_tensor_slices(images[512:544]).batch(16))
embed = embed / np.linalg.norm(embed, axis=1, keepdims=True)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "predictions": model.predict(valid)[:4].tolist(),
        "similar": (embed @ embed.T)[:6].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
