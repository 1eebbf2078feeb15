"""Cassava in small: a backbone of keras.applications, frozen first and then not, GlobalAveragePooling, two compiles."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images
from tensorflow.keras import Sequential, optimizers
from tensorflow.keras.applications import MobileNet
from tensorflow.keras.layers import Dense, GlobalAveragePooling2D

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

china, flower = load_sample_images().images
rng = np.random.RandomState(0)
images, labels = [], []
for i in range(64):
    photo = (china, flower)[i % 2]
    top, left = rng.randint(0, 390), rng.randint(0, 600)
    images.append(photo[top : top + 32, left : left + 32])
    labels.append(i % 2)
images = tf.keras.applications.mobilenet.preprocess_input(np.array(images, "float32"))
labels = np.array(labels)

with strategy.scope():
    pretrained_model = MobileNet(input_shape=(32, 32, 3), alpha=0.25, include_top=False, weights=None)
    pretrained_model.trainable = False
    model = Sequential([pretrained_model, GlobalAveragePooling2D(), Dense(2, activation="softmax")])
    model.compile(
        optimizer=optimizers.Adam(lr=0.001),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )
state = np.random.RandomState(1)
fan_in = lambda shape: np.prod(shape[:2]) if shape[-1] == 1 else np.prod(shape[:-1])
model.set_weights(
    [state.normal(0, (2.0 / fan_in(w.shape)) ** 0.5, w.shape) if w.ndim > 1 else w for w in model.get_weights()]
)
print("trainable", len(model.trainable_weights))
frozen = model.fit(images, labels, batch_size=32, epochs=2, shuffle=False, verbose=2)

with strategy.scope():
    pretrained_model.trainable = True
    for layer in pretrained_model.layers[:-12]:
        layer.trainable = False
    model.compile(
        optimizer=optimizers.SGD(learning_rate=0.001, momentum=0.5, nesterov=False),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )
tuned = model.fit(images, labels, batch_size=32, epochs=2, shuffle=False, verbose=2)
model.save("model.h5")
loaded = tf.keras.models.load_model("model.h5")

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": frozen.history,
        "tuned": tuned.history,
        "trainable": len(model.trainable_weights),
        "predictions": loaded.predict(images[:16]).tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
