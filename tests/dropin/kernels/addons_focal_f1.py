"""tensorflow_addons: focal loss, F1 score, RectifiedAdam in Lookahead, weight decay, GELU."""

import json
import os

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa
from sklearn.datasets import load_wine
from tensorflow.keras.layers import Dense, Input
from tensorflow.keras.models import Model

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

X, y = load_wine(return_X_y=True)
X = ((X - X.mean(0)) / X.std(0)).astype("float32")[np.arange(178) * 5 % 178][:160]
y = tf.keras.utils.to_categorical(y[np.arange(178) * 5 % 178][:160])


def build(optimizer):
    with strategy.scope():
        inp = Input(shape=(13,))
        x = Dense(16, activation=tfa.activations.gelu)(inp)
        out = Dense(3, activation="sigmoid")(x)
        model = Model(inp, out)
        model.compile(
            loss=tfa.losses.SigmoidFocalCrossEntropy(alpha=0.25, gamma=2.0),
            optimizer=optimizer(),
            metrics=["accuracy", tfa.metrics.F1Score(num_classes=3, average="macro", name="f1")],
        )
    rng = np.random.RandomState(0)
    model.set_weights([rng.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    return model


OPTIMIZERS = {
    "ranger": lambda: tfa.optimizers.Lookahead(
        tfa.optimizers.RectifiedAdam(learning_rate=0.01, min_lr=1e-5, warmup_proportion=0.1, total_steps=20),
        sync_period=3,
        slow_step_size=0.5,
    ),
    "adamw": lambda: tfa.optimizers.AdamW(weight_decay=1e-3, learning_rate=5e-3),
}
result = {"replicas": strategy.num_replicas_in_sync, "history": {}, "predictions": {}}
for name, optimizer in OPTIMIZERS.items():
    model = build(optimizer)
    history = model.fit(X[:128], y[:128], epochs=3, batch_size=32, validation_data=(X[128:], y[128:]), shuffle=False)
    result["history"][name] = {k: [float(v) for v in vs] for k, vs in history.history.items()}
    result["predictions"][name] = model.predict(X[128:])[:6].tolist()

json.dump(result, open(os.environ["KERNEL_OUT"], "w"))
