"""Clothes on Colab's TPU, as a handbook shows it: COLAB_TPU_ADDR, connect_to_host, a small CNN."""

import json
import os

import numpy as np
import tensorflow as tf

num_epochs = 2
batch_size = 128
learning_rate = 0.001

try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://" + os.environ["COLAB_TPU_ADDR"])
    tf.config.experimental_connect_to_host(resolver.master())
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.experimental.TPUStrategy(resolver)
except KeyError:
    print("No TPU; choose one under Runtime")
    strategy = tf.distribute.get_strategy()
print("Number of devices: %d" % strategy.num_replicas_in_sync)

(x_train, y_train), (x_test, y_test) = tf.keras.datasets.fashion_mnist.load_data()
x_train = np.expand_dims(x_train.astype(np.float32) / 255.0, axis=-1)
x_test = np.expand_dims(x_test.astype(np.float32) / 255.0, axis=-1)

with strategy.scope():
    model = tf.keras.models.Sequential(
        [
            tf.keras.layers.Conv2D(
                8, [5, 5], strides=2, padding="same", activation=tf.nn.relu, input_shape=(28, 28, 1)
            ),
            tf.keras.layers.MaxPooling2D(pool_size=[2, 2], strides=2),
            tf.keras.layers.Conv2D(16, [3, 3], padding="same", activation=tf.nn.relu),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="elu"),
            tf.keras.layers.Dense(10),
            tf.keras.layers.Softmax(),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=learning_rate),
        loss=tf.keras.losses.sparse_categorical_crossentropy,
        metrics=[tf.keras.metrics.sparse_categorical_accuracy],
    )

rng = np.random.RandomState(0)
model.set_weights([rng.normal(0, 0.1, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
model.summary()

history = model.fit(x_train, y_train, epochs=num_epochs, batch_size=batch_size, shuffle=False)
score = model.evaluate(x_test, y_test, batch_size=batch_size)
print(score)

with open(os.environ["KERNEL_OUT"], "w") as f:
    json.dump(
        {
            "replicas": strategy.num_replicas_in_sync,
            "history": history.history,
            "score": score,
            "predictions": model.predict(x_test[:16]).tolist(),
        },
        f,
    )
