"""Pairs of digits: a shared tower, Lambda distances in K, contrastive loss, a generator of pairs."""

import json
import os

import keras.backend as K
import numpy as np
import tensorflow as tf
from keras.layers import Dense, Flatten, Input, Lambda, concatenate
from keras.models import Model, Sequential
from keras.optimizers import RMSprop
from keras.regularizers import l2
from sklearn.datasets import load_digits

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()


def euclidean_distance(vects):
    x, y = vects
    return K.sqrt(K.maximum(K.sum(K.square(x - y), axis=1, keepdims=True), K.epsilon()))


def eucl_dist_output_shape(shapes):
    shape1, shape2 = shapes
    return (shape1[0], 1)


def contrastive_loss(y_true, y_pred):
    margin = 1
    y_true = K.cast(y_true, y_pred.dtype)
    return K.mean(y_true * K.square(y_pred) + (1 - y_true) * K.square(K.maximum(margin - y_pred, 0)))


def accuracy(y_true, y_pred):
    return K.mean(K.equal(y_true, K.cast(y_pred < 0.5, y_true.dtype)))


def base_network():
    seq = Sequential()
    seq.add(Flatten(input_shape=(8, 8)))
    seq.add(Dense(24, activation="relu", kernel_regularizer=l2(1e-4)))
    seq.add(Dense(12, activation="sigmoid"))
    return seq


def fill(model, seed):
    rng = np.random.RandomState(seed)
    model.set_weights([rng.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in model.get_weights()])


digits = load_digits()
x = (digits.images[:256] / 16).astype("float32")
left, right = x, np.roll(x, 1, axis=0)
same = (digits.target[:256] % 2 == np.roll(digits.target[:256], 1) % 2).astype("float32").reshape(-1, 1)

with strategy.scope():
    base = base_network()
    input_a, input_b = Input(shape=(8, 8)), Input(shape=(8, 8))
    a, b = base(input_a), base(input_b)
    distance = Lambda(euclidean_distance, output_shape=eucl_dist_output_shape)([a, b])
    model = Model([input_a, input_b], distance)
    model.compile(loss=contrastive_loss, optimizer=RMSprop(), metrics=[accuracy])

    tower = base_network()
    p, q = tower(input_a), tower(input_b)
    parts = [
        Lambda(lambda t: K.abs(t[0] - t[1]))([p, q]),
        Lambda(lambda t: t[0] * t[1])([p, q]),
        Lambda(lambda t: K.square(t[0] - t[1]), output_shape=(12,))([p, q]),
    ]
    head = Dense(1, activation="sigmoid")(concatenate(parts))
    joined = Model([input_a, input_b], head)
    joined.compile(loss="binary_crossentropy", optimizer="adam", metrics=["acc"])
fill(model, 0)
fill(joined, 1)

history = model.fit([left, right], same, batch_size=32, epochs=2, validation_split=0.25, shuffle=False)


def pairs():
    while True:
        for i in range(0, 256, 64):
            yield [left[i : i + 64], right[i : i + 64]], same[i : i + 64]


def as_dataset():
    for (a, b), y in pairs():
        yield (a, b), y


data = tf.data.Dataset.from_generator(
    as_dataset,
    output_types=((tf.float32, tf.float32), tf.float32),
    output_shapes=((tf.TensorShape([None, 8, 8]), tf.TensorShape([None, 8, 8])), tf.TensorShape([None, 1])),
)
second = joined.fit(data, steps_per_epoch=4, epochs=2)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "second": second.history,
        "predictions": model.predict([left, right])[:16].ravel().tolist(),
        "joined": joined.predict([left, right])[:16].ravel().tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
