"""Own callbacks that set the learning rate through K, a metric as a function and one as a class, OneCycle."""

import json
import os

import numpy as np
import tensorflow as tf
import tensorflow.keras.backend as K
from sklearn.datasets import load_breast_cancer
from tensorflow.keras.callbacks import Callback, LambdaCallback
from tensorflow.keras.layers import Dense, Dropout
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import SGD

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()


class OneCycle(Callback):
    def __init__(self, max_lr, steps):
        self.max_lr = max_lr
        self.steps = steps
        self.iteration = 0
        self.lrs = []

    def on_train_begin(self, logs={}):
        K.set_value(self.model.optimizer.lr, self.max_lr / 10.0)

    def on_batch_end(self, batch, logs={}):
        self.iteration += 1
        part = self.iteration / self.steps
        lr = self.max_lr * (0.1 + 0.9 * (1 - abs(2 * part - 1)))
        K.set_value(self.model.optimizer.lr, lr)
        self.lrs.append(float(K.get_value(self.model.optimizer.lr)))


class StepDecay(Callback):
    def on_epoch_end(self, epoch, logs=None):
        old = float(tf.keras.backend.get_value(self.model.optimizer.learning_rate))
        tf.keras.backend.set_value(self.model.optimizer.learning_rate, old * 0.5)


def accuracy_at(y_true, y_pred):
    hits = tf.equal(tf.cast(y_true, tf.float32), tf.round(y_pred))
    return tf.reduce_mean(tf.cast(hits, tf.float32))


def f1_m(y_true, y_pred):
    true_positives = K.sum(K.round(K.clip(y_true * y_pred, 0, 1)))
    possible_positives = K.sum(K.round(K.clip(y_true, 0, 1)))
    predicted_positives = K.sum(K.round(K.clip(y_pred, 0, 1)))
    precision = true_positives / (predicted_positives + K.epsilon())
    recall = true_positives / (possible_positives + K.epsilon())
    return 2 * ((precision * recall) / (precision + recall + K.epsilon()))


class Specificity(tf.keras.metrics.Metric):
    def __init__(self, name="specificity", **kwargs):
        super(Specificity, self).__init__(name=name, **kwargs)
        self.tn = self.add_weight("tn", initializer="zeros")
        self.negatives = self.add_weight(name="negatives", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = tf.cast(y_true, tf.bool)
        y_pred = tf.greater(y_pred, 0.5)
        values = tf.logical_and(tf.equal(y_true, False), tf.equal(y_pred, False))
        values = tf.cast(values, self.dtype)
        if sample_weight is not None:
            values = tf.multiply(values, tf.cast(sample_weight, self.dtype))
        self.tn.assign_add(tf.reduce_sum(values))
        self.negatives.assign_add(tf.reduce_sum(tf.cast(tf.logical_not(y_true), self.dtype)))

    def result(self):
        return tf.math.divide_no_nan(self.tn, self.negatives)

    def reset_states(self):
        self.tn.assign(0.0)
        self.negatives.assign(0.0)


X, y = load_breast_cancer(return_X_y=True)
X = ((X - X.mean(0)) / X.std(0))[:512].astype("float32")
y = y[:512].reshape(-1, 1).astype("float32")

with strategy.scope():
    model = Sequential([Dense(16, activation="relu", input_dim=30), Dropout(0.0), Dense(1, activation="sigmoid")])
    model.compile(
        loss="binary_crossentropy", optimizer=SGD(0.01, momentum=0.9), metrics=[accuracy_at, f1_m, Specificity()]
    )
rng = np.random.RandomState(1)
model.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])

seen = []
cycle = OneCycle(0.05, 24)
printer = LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch))
history = model.fit(
    X[:384],
    y[:384],
    batch_size=64,
    epochs=4,
    validation_data=(X[384:], y[384:]),
    callbacks=[cycle, printer],
    shuffle=False,
)
last = model.fit(X[:384], y[:384], batch_size=64, epochs=2, callbacks=[StepDecay()], shuffle=False, verbose=0)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "again": last.history,
        "lrs": cycle.lrs,
        "lr": float(K.get_value(model.optimizer.lr)),
        "seen": seen,
        "predictions": model.predict(X[384:]).ravel()[:24].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
