"""Porto in small: a denoising autoencoder fed by a generator with swap noise, its hidden layers as features, a second net."""

import json, os
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_breast_cancer
from tensorflow.keras import Sequential, losses, metrics, regularizers
from tensorflow.keras.callbacks import LambdaCallback, LearningRateScheduler, ReduceLROnPlateau, TerminateOnNaN
from tensorflow.keras.layers import (
    ActivityRegularization,
    AlphaDropout,
    BatchNormalization,
    Dense,
    GaussianNoise,
    Input,
    LeakyReLU,
    PReLU,
)
from tensorflow.keras.models import Model, clone_model
from tensorflow.keras.utils import get_custom_objects

strategy = tf.distribute.get_strategy()
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    pass

X, y = load_breast_cancer(return_X_y=True)
X = ((X - X.mean(0)) / X.std(0)).astype("float32")[:480]
y = y[:480]


def mish(x):
    return x * tf.math.tanh(tf.math.softplus(x))


get_custom_objects().update({"mish": mish})


def x_generator(x, batch_size, shuffle=False):
    batch_index, n = 0, x.shape[0]
    while True:
        if batch_index == 0:
            index_array = np.arange(n)
            if shuffle:
                index_array = np.random.permutation(n)
        current_index = (batch_index * batch_size) % n
        if n >= current_index + batch_size:
            batch_index += 1
            size = batch_size
        else:
            size = n - current_index
            batch_index = 0
        batch = x[index_array[current_index : current_index + size]]
        yield batch


def mix_generator(x, batch_size, swaprate=0.15, shuffle=True):
    np.random.seed(3)
    num_value = x.shape[1]
    num_swap = int(num_value * swaprate)
    gen1 = x_generator(x, batch_size, shuffle)
    gen2 = x_generator(x, batch_size, shuffle)
    while True:
        batch1, batch2 = next(gen1), next(gen2)
        new = batch1.copy()
        for i in range(min(len(batch1), len(batch2))):
            swap_idx = np.random.choice(num_value, num_swap, replace=False)
            new[i, swap_idx] = batch2[i, swap_idx]
        yield (new, batch1)


with strategy.scope():
    inputs = Input((30,))
    x = Dense(
        24,
        activation="relu",
        name="hidden1",
        kernel_initializer=tf.keras.initializers.VarianceScaling(scale=0.5, seed=1),
    )(inputs)
    x = Dense(12, activation="mish", name="code", activity_regularizer=regularizers.l1(1e-4))(x)
    x = ActivityRegularization(l2=1e-4)(x)
    x = Dense(24, activation=tf.nn.relu, name="hidden3")(x)
    outputs = Dense(30, activation="linear")(x)
    dae = Model(inputs=inputs, outputs=outputs)
    dae.compile(
        optimizer=tf.keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        loss="mse",
        metrics=["mae", metrics.RootMeanSquaredError()],
    )
rng = np.random.RandomState(0)
dae.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in dae.get_weights()])
log = []
batch_size = 64
history = dae.fit(
    mix_generator(X, batch_size),
    steps_per_epoch=X.shape[0] // batch_size,
    epochs=3,
    validation_data=(X[:100], X[:100]),
    callbacks=[
        LambdaCallback(on_epoch_end=lambda epoch, logs: log.append(sorted(logs))),
        ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=10.0, verbose=0),
        TerminateOnNaN(),
    ],
    verbose=0,
)
steps = int(np.ceil(len(X) / batch_size))
denoised = dae.predict(x_generator(X, batch_size), steps=steps, verbose=0)
features = Model(dae.input, [dae.get_layer(n).output for n in ("hidden1", "code", "hidden3")])
F = np.hstack(features.predict(X, batch_size=128, verbose=0))

with strategy.scope():
    net = Sequential(name="head")
    net.add(Input(shape=F.shape[1:]))
    net.add(BatchNormalization(renorm=False, momentum=0.9))
    net.add(GaussianNoise(0.0))
    net.add(Dense(8))
    net.add(PReLU(alpha_initializer="zeros", shared_axes=[1]))
    net.add(AlphaDropout(0.0))
    net.add(Dense(4))
    net.add(LeakyReLU(0.2))
    net.add(Dense(1, activation="sigmoid", bias_initializer=tf.keras.initializers.Constant(0.5)))
    net.compile(
        "adam",
        losses.BinaryCrossentropy(label_smoothing=0.05),
        metrics=[metrics.AUC(name="auc", num_thresholds=50), metrics.Precision(), metrics.Recall(name="rec")],
    )
net.set_weights([rng.normal(0, 0.1, w.shape) if w.ndim > 1 else w for w in net.get_weights()])


def lr(epoch, current):
    return current * 0.7 if epoch else current


h2 = net.fit(
    F,
    y,
    epochs=3,
    batch_size=96,
    validation_split=0.2,
    shuffle=False,
    callbacks=[LearningRateScheduler(lr, verbose=1)],
    verbose=0,
)
twin = clone_model(net)
twin.set_weights(net.get_weights())
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": {k: [float(i) for i in v] for k, v in history.history.items()},
        "log": log,
        "second": {k: [float(i) for i in v] for k, v in h2.history.items()},
        "denoised": denoised[:3].tolist(),
        "shape": list(denoised.shape),
        "predictions": twin.predict(F)[:30].ravel().tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
