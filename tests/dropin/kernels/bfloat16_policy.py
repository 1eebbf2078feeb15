"""The TPU's bfloat16 through `mixed_precision`, in the words of 2020 with those of 2021 behind them; XLA switched on."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

MIXED_PRECISION = True
XLA_ACCELERATE = True

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    tpu = None
    strategy = tf.distribute.get_strategy()

if MIXED_PRECISION:
    try:
        from tensorflow.keras.mixed_precision import experimental as mixed_precision

        policy = mixed_precision.Policy("mixed_bfloat16")
        mixed_precision.set_policy(policy)
    except ImportError:
        policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
        tf.keras.mixed_precision.set_global_policy(policy)
    print("Mixed precision enabled:", policy.compute_dtype, policy.variable_dtype)
if XLA_ACCELERATE:
    tf.config.optimizer.set_jit(True)

digits = load_digits()
x = (digits.images[:320, ..., None] / 16).astype("float32")
y = digits.target[:320].astype("int64")

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax", dtype="float32"),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=1e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
        steps_per_execution=2,
    )
rng = np.random.RandomState(0)
model.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
assert model.layers[0].kernel.dtype == tf.float32

history = model.fit(x[:256], y[:256], batch_size=64, epochs=2, validation_data=(x[256:], y[256:]), shuffle=False)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "dtypes": [str(np.dtype(policy.variable_dtype)), policy.compute_dtype],
        "predictions": model.predict(x[256:])[:8].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
