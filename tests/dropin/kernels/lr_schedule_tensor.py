"""A schedule of the learning rate that returns tensors, float steps per epoch, a plot of history['lr']."""

import json
import math
import os

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.keras import Sequential
from tensorflow.keras.layers import BatchNormalization, Dense, Flatten

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

AUTO = tf.data.experimental.AUTOTUNE
EPOCHS = 4
BATCH_SIZE = 64 // strategy.num_replicas_in_sync * strategy.num_replicas_in_sync

x, y = load_digits(return_X_y=True)
x = (x / 16.0).astype(np.float32)[:720]
y = tf.keras.utils.to_categorical(y[:720])
x_train, y_train, x_valid, y_valid = x[:560], y[:560], x[560:], y[560:]
STEPS_PER_EPOCH = x_train.shape[0] / BATCH_SIZE  # 8.75

train_dataset = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train))
    .repeat()
    .batch(BATCH_SIZE, drop_remainder=True)
    .prefetch(AUTO)
)
valid_dataset = tf.data.Dataset.from_tensor_slices((x_valid, y_valid)).batch(BATCH_SIZE).cache().prefetch(AUTO)


def get_cosine_schedule_with_warmup(lr, num_warmup_steps, num_training_steps, num_cycles=0.5):
    def lrfn(epoch):
        if epoch < num_warmup_steps:
            return float(epoch + 1) / float(max(1, num_warmup_steps)) * lr
        progress = float(epoch - num_warmup_steps) / float(max(1, num_training_steps - num_warmup_steps))
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * float(num_cycles) * 2.0 * progress))) * lr

    return lrfn


def tensor_schedule(epoch):
    """exponential decay after the second epoch, as in the manual"""
    if epoch < 2:
        return 0.01
    return 0.01 * tf.math.exp(0.1 * (2.0 - epoch))


with strategy.scope():
    model = Sequential()
    model.add(Flatten(input_shape=(64,)))
    model.add(Dense(32, activation="selu", kernel_initializer="lecun_normal"))
    model.add(BatchNormalization(momentum=0.9, epsilon=1e-5))
    model.add(Dense(10, activation="softmax"))
    model.compile(
        optimizer=tf.keras.optimizers.SGD(lr=0.01, momentum=0.9, nesterov=True),
        loss=tf.keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        metrics=["categorical_accuracy"],
    )
rng = np.random.RandomState(0)
model.set_weights([rng.normal(0, 0.1, w.shape) if w.ndim > 1 else w for w in model.get_weights()])

first = model.fit(
    train_dataset,
    epochs=EPOCHS,
    steps_per_epoch=STEPS_PER_EPOCH,
    validation_data=valid_dataset,
    callbacks=[tf.keras.callbacks.LearningRateScheduler(tensor_schedule, verbose=1)],
)
second = model.fit(
    train_dataset,
    epochs=2,
    steps_per_epoch=STEPS_PER_EPOCH,
    validation_data=valid_dataset,
    callbacks=[tf.keras.callbacks.LearningRateScheduler(get_cosine_schedule_with_warmup(0.01, 1, 2))],
)


def display_training_curves(history, name):
    plt.figure(figsize=(4, 3))
    plt.plot(history.history["loss"])
    plt.plot(history.history["val_loss"])
    plt.plot(history.history["lr"])
    plt.legend(["train", "valid", "lr"])
    plt.savefig(name)


display_training_curves(first, "first.png")
display_training_curves(second, "second.png")

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": {k: [float(v) for v in vs] for k, vs in first.history.items()},
        "again": {k: [float(v) for v in vs] for k, vs in second.history.items()},
        "predictions": model.predict(valid_dataset, verbose=1)[:8].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
