"""Sequences of unequal length: Masking before an LSTM, mask_zero before a GRU, a TimeDistributed head, class weights."""

import json
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.keras.preprocessing.sequence import pad_sequences

try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
except Exception as e:
    print(e)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")

rng = np.random.RandomState(5)
lengths = rng.randint(3, 11, 128)
words = [rng.randint(1, 30, n) for n in lengths]
numbers = [rng.normal(0, 1, (n, 3)) for n in lengths]
labels = np.array([float(w.mean() > 15) for w in words])
words = pad_sequences(words, maxlen=10, padding="post", truncating="post")
numbers = pad_sequences(numbers, maxlen=10, padding="post", dtype="float32", value=-1.0)

with strategy.scope():
    word_input = keras.Input(shape=(10,), dtype="int32", name="words")
    number_input = keras.Input(shape=(10, 3), name="numbers")
    a = layers.Embedding(30, 8, mask_zero=True, name="emb")(word_input)
    a = layers.GRU(8, return_sequences=True, reset_after=True, name="gru")(a)
    a = layers.TimeDistributed(layers.Dense(4, activation="tanh"), name="td")(a)
    a = layers.GRU(6, name="gru2")(a)
    b = layers.Masking(mask_value=-1.0, name="mask")(number_input)
    b = layers.LSTM(8, recurrent_initializer="glorot_uniform", name="lstm")(b)
    x = layers.Concatenate()([a, b])
    out = layers.Dense(1, activation="sigmoid")(x)
    model = keras.Model([word_input, number_input], out)
    model.compile(
        loss=keras.losses.BinaryCrossentropy(),
        optimizer=keras.optimizers.RMSprop(lr=0.001),
        metrics=["acc", keras.metrics.Precision(name="precision"), keras.metrics.Recall(name="recall")],
    )

for layer in model.layers:
    r = np.random.RandomState(len(layer.name))
    layer.set_weights([r.uniform(-0.3, 0.3, w.shape) for w in layer.get_weights()])

history = model.fit(
    {"words": words, "numbers": numbers},
    labels,
    batch_size=32,
    epochs=3,
    validation_split=0.25,
    class_weight={0: 1.0, 1: 2.0},
    shuffle=False,
)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "predictions": model.predict([words[:32], numbers[:32]]).ravel().tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
