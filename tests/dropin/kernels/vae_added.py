"""A VAE of digits: `add_loss` and `add_metric` of tensors of a model, and in the call of a layer inside another one."""

import json, os
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.keras import backend as K
from tensorflow.keras.layers import Dense, Input, Lambda, Layer
from tensorflow.keras.models import Model

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

original_dim, intermediate_dim, latent_dim = 64, 32, 2


def sampling(args):
    z_mean, z_log_var = args
    batch = K.shape(z_mean)[0]
    dim = K.int_shape(z_mean)[1]
    epsilon = 0.0 * K.random_normal(shape=(batch, dim))
    return z_mean + K.exp(0.5 * z_log_var) * (epsilon + 0.1)


class Center(Layer):
    """Adds its own loss and metric."""

    def call(self, x):
        self.add_loss(1e-3 * tf.reduce_sum(tf.square(x)))
        self.add_metric(tf.reduce_mean(tf.abs(x)), name="center", aggregation="mean")
        return x


class Outer(Layer):
    def __init__(self):
        super().__init__()
        self.center = Center()

    def call(self, x):
        return self.center(x)


digits = load_digits()
x = (digits.data[:256] / 16).astype("float32")

with strategy.scope():
    inputs = Input(shape=(original_dim,), name="encoder_input")
    h = Dense(intermediate_dim, activation="relu")(inputs)
    z_mean = Dense(latent_dim, name="z_mean")(h)
    z_log_var = Dense(latent_dim, name="z_log_var")(h)
    z = Lambda(sampling, output_shape=(latent_dim,), name="z")([z_mean, z_log_var])
    encoder = Model(inputs, [z_mean, z_log_var, z], name="encoder")
    latent_inputs = Input(shape=(latent_dim,), name="z_sampling")
    h = Dense(intermediate_dim, activation="relu")(latent_inputs)
    h = Outer()(h)
    outputs = Dense(original_dim, activation="sigmoid")(h)
    decoder = Model(latent_inputs, outputs, name="decoder")
    outputs = decoder(encoder(inputs)[2])
    vae = Model(inputs, outputs, name="vae_mlp")
    reconstruction_loss = tf.keras.losses.binary_crossentropy(inputs, outputs) * original_dim
    kl_loss = 1 + z_log_var - K.square(z_mean) - K.exp(z_log_var)
    kl_loss = K.sum(kl_loss, axis=-1) * -0.5
    vae_loss = K.mean(reconstruction_loss + kl_loss)
    vae.add_loss(vae_loss)
    vae.add_metric(K.mean(reconstruction_loss), name="reconstruction", aggregation="mean")
    vae.add_metric(kl_loss, name="kl", aggregation="mean")
    vae.compile(optimizer="adam")

rng = np.random.RandomState(0)
for model in (encoder, decoder):
    model.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
print(vae.metrics_names)
history = vae.fit(x[:192], epochs=3, batch_size=32, validation_data=(x[192:], None), shuffle=False)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "predictions": vae.predict(x[192:])[:2].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
