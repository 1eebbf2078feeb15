"""Lungs: three quantiles at once, a loss mixed of pinball and a likelihood, legacy Adam with decay, constants of tf."""

import json
import os

import numpy as np
import tensorflow as tf
import tensorflow.keras.backend as K
import tensorflow.keras.layers as L
import tensorflow.keras.models as M
from sklearn.datasets import load_diabetes

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

C1, C2 = tf.constant(70, dtype="float32"), tf.constant(1000, dtype="float32")


def score(y_true, y_pred):
    tf.dtypes.cast(y_true, tf.float32)
    tf.dtypes.cast(y_pred, tf.float32)
    sigma = y_pred[:, 2] - y_pred[:, 0]
    fvc_pred = y_pred[:, 1]
    sigma_clip = tf.maximum(sigma, C1)
    delta = tf.abs(y_true[:, 0] - fvc_pred)
    delta = tf.minimum(delta, C2)
    sq2 = tf.sqrt(tf.dtypes.cast(2, dtype=tf.float32))
    metric = (delta / sigma_clip) * sq2 + tf.math.log(sigma_clip * sq2)
    return K.mean(metric)


def qloss(y_true, y_pred):
    qs = [0.2, 0.50, 0.8]
    q = tf.constant(np.array([qs]), dtype=tf.float32)
    e = y_true - y_pred
    v = tf.maximum(q * e, (q - 1) * e)
    return K.mean(v)


def mloss(_lambda):
    def loss(y_true, y_pred):
        return _lambda * qloss(y_true, y_pred) + (1 - _lambda) * score(y_true, y_pred)

    return loss


def pinball(tau):
    return lambda y_true, y_pred: K.mean(K.maximum(tau * (y_true - y_pred), (tau - 1) * (y_true - y_pred)), axis=-1)


def make_model(nh):
    z = L.Input((nh,), name="Patient")
    x = L.Dense(32, activation="relu", name="d1")(z)
    x = L.Dense(16, activation="relu", name="d2")(x)
    p1 = L.Dense(3, activation="linear", name="p1")(x)
    p2 = L.Dense(3, activation="relu", name="p2")(x)
    preds = L.Lambda(lambda x: x[0] + tf.cumsum(x[1], axis=1), name="preds")([p1, p2])
    model = M.Model(z, preds, name="CNN")
    model.compile(
        loss=mloss(0.8),
        optimizer=tf.keras.optimizers.legacy.Adam(
            lr=0.1, beta_1=0.9, beta_2=0.999, epsilon=None, decay=0.01, amsgrad=False
        ),
        metrics=[score],
    )
    return model


X, y = load_diabetes(return_X_y=True)
X, y = (X / X.std())[:320].astype("float32"), (y[:320].astype("float32") * 20)[:, None]

with strategy.scope():
    net = make_model(X.shape[1])
    simple = M.Sequential([L.Dense(8, activation="softplus", input_shape=(10,)), L.Dense(1)])
    simple.compile(loss=pinball(0.9), optimizer=tf.keras.optimizers.Adagrad(0.5))
for model in (net, simple):
    rng = np.random.RandomState(0)
    model.set_weights([rng.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in model.get_weights()])

history = net.fit(
    X[:256], y[:256], batch_size=64, epochs=4, validation_data=(X[256:], y[256:]), shuffle=False, verbose=0
)
second = simple.fit(X[:256], y[:256] / 1000, batch_size=64, epochs=2, shuffle=False, verbose=0)
print("train", net.evaluate(X[:256], y[:256], verbose=0, batch_size=64))

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "second": second.history,
        "predictions": net.predict(X[256:], batch_size=64)[:8].tolist(),
        "simple": simple.predict(X[256:])[:8].ravel().tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
