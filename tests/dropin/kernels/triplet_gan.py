"""Digits twice: a triplet net by train_on_batch with Lambda(K.abs) and a GAN whose discriminator is frozen; logs by hand."""

import json, os
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
import tensorflow.keras.backend as K
from tensorflow.keras import layers, models, optimizers
from tensorflow.keras.layers import *
from tensorflow.keras.models import Sequential, Model

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

digits = load_digits()
x = (digits.images[:320] / 16.0).astype("float32")[..., None]
y = digits.target[:320]
rng = np.random.RandomState(0)


def fill(model, scale=0.2):
    state = np.random.RandomState(11)
    model.set_weights([state.normal(0, scale, w.shape) if w.ndim > 1 else w for w in model.get_weights()])


def triplet_loss(y_true, y_pred, alpha=0.3):
    total_length = y_pred.shape.as_list()[-1]
    anchor = y_pred[:, 0 : int(total_length * 1 / 3)]
    positive = y_pred[:, int(total_length * 1 / 3) : int(total_length * 2 / 3)]
    negative = y_pred[:, int(total_length * 2 / 3) : int(total_length * 3 / 3)]
    pos_dist = K.sum(K.square(anchor - positive), axis=1)
    neg_dist = K.sum(K.square(anchor - negative), axis=1)
    basic_loss = pos_dist - neg_dist + alpha
    return K.maximum(basic_loss, 0.0)


def closer(y_true, y_pred):
    a, p, n = tf.split(y_pred, 3, axis=1)
    return K.mean(K.cast(K.sum(K.abs(a - p), -1) < K.sum(K.abs(a - n), -1), "float32"))


with strategy.scope():
    base = Sequential(
        [
            Flatten(input_shape=(8, 8, 1)),
            Dense(16, activation="relu"),
            Dense(6),
            Lambda(lambda t: K.l2_normalize(t, axis=1)),
        ],
        name="base",
    )
    a, p, n = [Input((8, 8, 1), name=name) for name in ("anchor_input", "positive_input", "negative_input")]
    merged = concatenate([base(a), base(p), base(n)], axis=-1, name="merged_layer")
    model = Model(inputs=[a, p, n], outputs=merged)
    model.compile(loss=triplet_loss, optimizer=optimizers.Adam(1e-2), metrics=[closer])
    l1 = Lambda(lambda tensors: K.abs(tensors[0] - tensors[1]))([base(a), base(p)])
    verify = Model([a, p], Dense(1, activation="sigmoid")(l1))
fill(model)
losses = []
for step in range(4):
    i = rng.randint(0, 320, 32)
    pos = np.array([rng.choice(np.where(y == y[k])[0]) for k in i])
    neg = np.array([rng.choice(np.where(y != y[k])[0]) for k in i])
    loss = model.train_on_batch([x[i], x[pos], x[neg]], np.zeros(len(i)))
    losses.append([float(v) for v in loss])
    print("step %d loss: %.4f closer: %.4f" % (step, loss[0], loss[1]))
tested = model.test_on_batch([x[:32], x[32:64], x[64:96]], np.zeros(32))
on_batch = model.predict_on_batch([x[:4], x[4:8], x[8:12]])
fill(verify)
distance = verify.predict([x[:8], x[8:16]], batch_size=4)

latent = 5
with strategy.scope():
    d_in = Input((8, 8, 1))
    h = Conv2D(6, 3, strides=2, padding="same")(d_in)
    h = LeakyReLU(alpha=0.2)(h)
    h = Dropout(0.0)(h)
    h = Flatten()(h)
    discriminator = Model(d_in, Dense(1, activation="sigmoid")(h), name="discriminator")
    discriminator.compile(
        loss="binary_crossentropy", optimizer=optimizers.SGD(0.05, momentum=0.5), metrics=["accuracy"]
    )
    generator = Sequential(name="generator")
    generator.add(Dense(4 * 4 * 6, activation="relu", input_dim=latent))
    generator.add(Reshape((4, 4, 6)))
    generator.add(BatchNormalization(momentum=0.8))
    generator.add(UpSampling2D())
    generator.add(Conv2D(1, kernel_size=3, padding="same"))
    generator.add(Activation("tanh"))
    z = Input(shape=(latent,))
    img = generator(z)
    discriminator.trainable = False
    combined = Model(z, discriminator(img))
    combined.compile(loss="binary_crossentropy", optimizer=optimizers.SGD(0.05, 0.5))
fill(discriminator)
fill(generator)
d_log, g_log = [], []
for epoch in range(4):
    idx = rng.randint(0, x.shape[0], 16)
    noise = rng.normal(0, 1, (16, latent))
    fake = generator.predict(noise, verbose=0)
    d_loss_real = discriminator.train_on_batch(x[idx], np.ones((16, 1)))
    d_loss_fake = discriminator.train_on_batch(fake, np.zeros((16, 1)))
    d_loss = 0.5 * np.add(d_loss_real, d_loss_fake)
    g_loss = combined.train_on_batch(noise, np.ones((16, 1)))
    print("%d [D loss: %f, acc.: %.2f%%] [G loss: %f]" % (epoch, d_loss[0], 100 * d_loss[1], g_loss))
    d_log.append(d_loss.tolist())
    g_log.append(float(g_loss))
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "losses": losses,
        "names": [model.metrics_names, discriminator.metrics_names, combined.metrics_names],
        "tested": [float(v) for v in tested],
        "on_batch": np.asarray(on_batch).tolist(),
        "distance": distance.tolist(),
        "d": d_log,
        "g": g_log,
        "predictions": generator.predict(rng.normal(0, 1, (2, latent)))[..., 0].tolist(),
        "trainable": [
            len(discriminator.trainable_weights),
            len(combined.trainable_weights),
            len(generator.trainable_weights),
            len(generator.non_trainable_weights),
        ],
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
