"""Custom layers with build and add_weight, a subclassed Model with call(training), trained by train_on_batch and fit."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras.layers import Layer

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    tpu_strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    tpu_strategy = tf.distribute.get_strategy()


class MyDense(Layer):
    def __init__(self, units=32, activation=None, **kwargs):
        super(MyDense, self).__init__(**kwargs)
        self.units = units
        self.activation = keras.activations.get(activation)

    def build(self, input_shape):
        self.w = self.add_weight(
            shape=(input_shape[-1], self.units), initializer="random_normal", trainable=True, name="w"
        )
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", trainable=True, name="b")

    def call(self, inputs):
        return self.activation(tf.matmul(inputs, self.w) + self.b)


class Gem(Layer):
    """Generalised mean pooling."""

    def __init__(self, p=3.0, eps=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.p, self.eps = p, eps

    def build(self, input_shape):
        self.power = self.add_weight(
            name="power", shape=(), initializer=tf.keras.initializers.Constant(self.p), trainable=True
        )

    def call(self, inputs):
        x = tf.math.maximum(inputs, self.eps)
        x = tf.pow(x, self.power)
        x = tf.reduce_mean(x, axis=[1, 2], keepdims=False)
        return tf.pow(x, 1.0 / self.power)


class GlobalAttention(Layer):
    def build(self, input_shape):
        _, steps, dim = input_shape
        self.W = self.add_weight(name="att_weight", shape=(dim, 1), initializer="normal")
        self.b = self.add_weight(name="att_bias", shape=(steps, 1), initializer="zeros")
        super(GlobalAttention, self).build(input_shape)

    def call(self, x, mask=None):
        et = tf.squeeze(tf.tanh(tf.tensordot(x, self.W, axes=1) + self.b), axis=-1)
        at = tf.exp(et)
        if mask is not None:
            at *= tf.cast(mask, tf.float32)
        at /= tf.cast(tf.reduce_sum(at, axis=1, keepdims=True) + tf.keras.backend.epsilon(), tf.float32)
        return tf.reduce_sum(x * tf.expand_dims(at, axis=-1), axis=1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])


class Net(keras.Model):
    def __init__(self, num_classes):
        super(Net, self).__init__(name="net")
        self.conv = keras.layers.Conv2D(8, 3, padding="same", kernel_initializer="he_uniform")
        self.bn = keras.layers.BatchNormalization()
        self.pool = Gem()
        self.rows = MyDense(8, activation="tanh")
        self.attention = GlobalAttention()
        self.classifier = MyDense(num_classes, activation="softmax")

    def call(self, inputs, training=False):
        x = tf.nn.relu(self.bn(self.conv(inputs), training=training))
        pooled = self.pool(x)
        rows = self.attention(self.rows(tf.reshape(inputs, [-1, 8, 8])))
        return self.classifier(tf.concat([pooled, rows], axis=-1))


digits = load_digits()
x = (digits.images[:320, ..., None] / 16).astype("float32")
y = digits.target[:320]

with tpu_strategy.scope():
    model = Net(10)
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
    model.build(input_shape=(None, 8, 8, 1))
for w in model.trainable_weights:
    if len(w.shape) > 1:
        w.assign(np.random.RandomState(sum(w.shape)).normal(0, 0.2, tuple(w.shape)))

history = model.fit(x[:256], y[:256], batch_size=64, epochs=2, validation_data=(x[256:], y[256:]), shuffle=False)
batch = model.train_on_batch(x[:64], y[:64])
tested = model.test_on_batch(x[256:], y[256:])
model.save_weights("net.h5")
other = Net(10)
other.build((None, 8, 8, 1))
other.load_weights("net.h5")

json.dump(
    {
        "replicas": tpu_strategy.num_replicas_in_sync,
        "history": history.history,
        "tested": [float(v) for v in tested],
        "batch": [float(v) for v in batch],
        "power": float(model.pool.power.numpy()),
        "predictions": model.predict(x[256:])[:4].tolist(),
        "loaded": other.predict(x[256:])[:4].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
