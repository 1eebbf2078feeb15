"""Graphemes: three outputs with a dict of losses and of weights, one metrics list, a callback that scores recall."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score
from tensorflow.keras.layers import *
from tensorflow.keras.models import Model
from tensorflow.keras.utils import to_categorical

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

digits = load_digits()
images = (digits.images[:256, ..., None] / 16.0).astype("float32")
root = digits.target[:256]
vowel, consonant = root % 3, root // 5


def build_model():
    inp = Input(shape=(8, 8, 1))
    x = Conv2D(8, 3, padding="same", activation="swish")(inp)
    x = DepthwiseConv2D(3, padding="same")(x)
    x = ReLU(max_value=6.0)(x)
    x = MaxPool2D()(x)
    x = Flatten()(x)
    heads = [
        Dense(10, activation="softmax", name="root")(x),
        Dense(3, activation="softmax", name="vowel")(x),
        Dense(2, activation="softmax", name="consonant")(x),
    ]
    return Model(inputs=inp, outputs=heads)


class Recall(tf.keras.callbacks.Callback):
    def __init__(self, x, y):
        super(Recall, self).__init__()
        self.x, self.y = x, y
        self.scores = []

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        predicted = self.model.predict(self.x, batch_size=64, verbose=0)
        parts = [recall_score(t, np.argmax(p, 1), average="macro") for t, p in zip(self.y, predicted)]
        self.scores.append(float(np.average(parts, weights=[2, 1, 1])))
        print("epoch", epoch, "loss", logs["loss"], "recall", self.scores[-1])


with strategy.scope():
    model = build_model()
    model.compile(
        optimizer="adam",
        loss={
            "root": "categorical_crossentropy",
            "vowel": "categorical_crossentropy",
            "consonant": tf.keras.losses.CategoricalCrossentropy(from_logits=False),
        },
        loss_weights={"root": 2, "vowel": 1, "consonant": 1},
        metrics=["accuracy"],
    )
rng = np.random.RandomState(0)
model.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])

targets = {
    "root": to_categorical(root, 10),
    "vowel": to_categorical(vowel, 3),
    "consonant": to_categorical(consonant, 2),
}
train = {k: v[:192] for k, v in targets.items()}
valid = {k: v[192:] for k, v in targets.items()}
recall = Recall(images[192:], [root[192:], vowel[192:], consonant[192:]])
history = model.fit(
    images[:192],
    train,
    batch_size=64,
    epochs=2,
    validation_data=(images[192:], valid),
    callbacks=[recall],
    shuffle=False,
)
scores = model.evaluate(images[192:], valid, batch_size=64)
print(dict(zip(model.metrics_names, scores)))

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "scores": dict(zip(model.metrics_names, scores)),
        "recall": recall.scores,
        "predictions": [p[:4].tolist() for p in model.predict(images[192:])],
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
