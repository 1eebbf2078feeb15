"""Newswires into topics with a 1-D convolution over embedded words, fed by a dataset that is prefetched and cached."""

import json
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras.preprocessing.sequence import pad_sequences

MAX_WORDS, MAX_LEN, BATCH = 2000, 64, 128

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

(x_train, y_train), (x_test, y_test) = keras.datasets.reuters.load_data(num_words=MAX_WORDS, test_split=0.2)
x_train, y_train, x_test, y_test = x_train[:1024], y_train[:1024], x_test[:256], y_test[:256]
x_train = pad_sequences(x_train, maxlen=MAX_LEN)
x_test = pad_sequences(x_test, maxlen=MAX_LEN)
cat_num = int(max(y_train.max(), y_test.max())) + 1

ds_train = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train))
    .batch(BATCH, drop_remainder=True)
    .prefetch(tf.data.experimental.AUTOTUNE)
    .cache()
)
ds_test = (
    tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(BATCH).prefetch(tf.data.experimental.AUTOTUNE).cache()
)


def build_model():
    model = keras.models.Sequential()
    model.add(keras.layers.Embedding(MAX_WORDS, 16, input_length=MAX_LEN))
    model.add(keras.layers.Conv1D(filters=32, kernel_size=5, activation="relu"))
    model.add(keras.layers.MaxPool1D(2))
    model.add(keras.layers.Conv1D(filters=16, kernel_size=3, activation="relu"))
    model.add(keras.layers.MaxPool1D(2))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(cat_num, activation="softmax"))
    return model


with strategy.scope():
    model = build_model()
    model.summary()
    model.compile(
        optimizer=keras.optimizers.Nadam(learning_rate=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy(), keras.metrics.SparseTopKCategoricalAccuracy(5)],
    )
model.set_weights(
    [np.random.RandomState(1).uniform(-0.1, 0.1, w.shape) if w.ndim > 1 else w for w in model.get_weights()]
)
history = model.fit(ds_train, validation_data=ds_test, epochs=6)

result = {"replicas": strategy.num_replicas_in_sync, "history": history.history}
result["predictions"] = model.predict(ds_test)[:4].tolist()
json.dump(result, open(os.environ["KERNEL_OUT"], "w"))
