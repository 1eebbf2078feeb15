"""Signals: a causal WaveNet with gated units beside Time2Vec written in K, mean column-wise RMSE."""

import json
import os

import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K
from tensorflow.keras.layers import Activation, Add, Concatenate, Conv1D, Dense, Input, Layer, Multiply
from tensorflow.keras.models import Model

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()


class T2V(Layer):
    def __init__(self, output_dim=None, **kwargs):
        self.output_dim = output_dim
        super(T2V, self).__init__(**kwargs)

    def build(self, input_shape):
        self.W = self.add_weight(
            name="W", shape=(input_shape[-1], self.output_dim), initializer="uniform", trainable=True
        )
        self.P = self.add_weight(
            name="P", shape=(input_shape[1], self.output_dim), initializer="uniform", trainable=True
        )
        self.w = self.add_weight(name="w", shape=(input_shape[1], 1), initializer="uniform", trainable=True)
        self.p = self.add_weight(name="p", shape=(input_shape[1], 1), initializer="uniform", trainable=True)
        super(T2V, self).build(input_shape)

    def call(self, x):
        original = self.w * x[..., :1] + self.p
        sin_trans = K.sin(K.dot(x, self.W) + self.P)
        return K.concatenate([sin_trans, original], -1)


def wave_block(x, filters, kernel_size, n):
    dilation_rates = [2**i for i in range(n)]
    x = Conv1D(filters=filters, kernel_size=1, padding="same")(x)
    res_x = x
    for dilation_rate in dilation_rates:
        tanh_out = Conv1D(filters, kernel_size, padding="causal", activation="tanh", dilation_rate=dilation_rate)(x)
        sigm_out = Conv1D(filters, kernel_size, padding="causal", activation="sigmoid", dilation_rate=dilation_rate)(
            x
        )
        x = Multiply()([tanh_out, sigm_out])
        x = Conv1D(filters=filters, kernel_size=1, padding="same")(x)
        res_x = Add()([res_x, x])
    return res_x


def rmse(actual, predicted):
    mse = tf.reduce_mean(tf.square(actual - predicted), axis=1)
    return tf.reduce_mean(tf.sqrt(mse + 1e-7), axis=-1)


def build():
    inp = Input(shape=(16, 2))
    x = wave_block(inp, 8, 3, 3)
    t = T2V(5)(inp)
    x = Concatenate(axis=-1)([x, t])
    x = Dense(8)(x)
    x = Activation("relu")(x)
    out = Dense(2, name="out")(x)
    return Model(inputs=inp, outputs=out)


rng = np.random.RandomState(0)
signal = np.cumsum(rng.normal(0, 0.3, (128, 16, 2)), axis=1).astype("float32")
target = np.stack([np.sin(signal[..., 0]), signal.mean(-1)], axis=-1).astype("float32")

K.clear_session()
with strategy.scope():
    model = build()
    opt = tf.keras.optimizers.Adam(learning_rate=tf.keras.optimizers.schedules.ExponentialDecay(1e-3, 4, 0.5))
    model.compile(loss=rmse, optimizer=opt, metrics=["mae", "mse"])
state = np.random.RandomState(2)
model.set_weights([state.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
history = model.fit(signal, target, epochs=3, batch_size=32, validation_split=0.25, shuffle=False)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "predictions": model.predict(signal[96:])[:2].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
