"""Digits: OneCycle through K.set_value on legacy SGD, snapshots of cycles, weights averaged by a callback, K.function."""

import json, os
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
import tensorflow.keras.backend as K
from tensorflow.keras.callbacks import Callback, CSVLogger, EarlyStopping, ModelCheckpoint
from tensorflow.keras.layers import (
    Activation,
    Add,
    BatchNormalization,
    Conv2D,
    DepthwiseConv2D,
    Dense,
    GlobalAveragePooling2D,
    Input,
    SeparableConv2D,
    ZeroPadding2D,
    Cropping2D,
)
from tensorflow.keras.models import Model, load_model
from tensorflow.keras.utils import to_categorical

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

digits = load_digits()
x = (digits.images[:384] / 16.0).astype("float32")[..., None]
y = to_categorical(digits.target[:384])


class OneCycleLR(Callback):
    def __init__(self, max_lr, steps, end_percentage=0.1, maximum_momentum=0.95, minimum_momentum=0.85, verbose=True):
        super(OneCycleLR, self).__init__()
        self.initial_lr, self.steps = max_lr, steps
        self.max_momentum, self.min_momentum = maximum_momentum, minimum_momentum
        self.clr_iterations = 0.0
        self.history = {}
        self.verbose = verbose

    def compute(self, low, high):
        mid = self.steps / 2
        part = 1 - abs(self.clr_iterations - mid) / mid
        return low + (high - low) * part

    def on_train_begin(self, logs={}):
        logs = logs or {}
        K.set_value(self.model.optimizer.lr, self.compute(self.initial_lr / 10, self.initial_lr))

    def on_batch_end(self, epoch, logs=None):
        logs = logs or {}
        self.clr_iterations += 1
        new_lr = self.compute(self.initial_lr / 10, self.initial_lr)
        self.history.setdefault("lr", []).append(float(K.get_value(self.model.optimizer.lr)))
        K.set_value(self.model.optimizer.lr, new_lr)
        self.history.setdefault("momentum", []).append(float(self.compute(self.max_momentum, self.min_momentum)))
        for k, v in logs.items():
            self.history.setdefault(k, []).append(float(v))

    def on_epoch_end(self, epoch, logs=None):
        if self.verbose:
            print(" - lr: %0.5f - momentum: %0.2f " % (self.history["lr"][-1], self.history["momentum"][-1]))


class Snapshot(Callback):
    def __init__(self, nb_cycle, base):
        super().__init__()
        self.nb_cycle, self.base = nb_cycle, base
        self.rates = []

    def on_epoch_begin(self, epoch, logs=None):
        lr = self.base / 2 * (np.cos(np.pi * (epoch % self.nb_cycle) / self.nb_cycle) + 1)
        self.model.optimizer.lr = lr
        self.rates.append(float(tf.keras.backend.get_value(self.model.optimizer.learning_rate)))

    def on_epoch_end(self, epoch, logs={}):
        logs["rate"] = float(self.model.optimizer.lr.numpy())
        if (epoch + 1) % self.nb_cycle == 0:
            self.model.save_weights("weights_cycle_%d.h5" % (epoch // self.nb_cycle), overwrite=True)


class EMA(Callback):
    """Weights averaged exponentially, in place of the model's at each epoch's end."""

    def __init__(self, decay=0.9):
        super(EMA, self).__init__()
        self.decay = decay

    def on_train_begin(self, logs={}):
        self.sym_trainable_weights = self.model.trainable_weights
        self.mv = {i: K.get_value(v) for i, v in enumerate(self.sym_trainable_weights)}

    def on_batch_end(self, batch, logs={}):
        for i, v in enumerate(self.sym_trainable_weights):
            self.mv[i] = self.mv[i] - (1.0 - self.decay) * (self.mv[i] - K.get_value(v))

    def on_train_end(self, logs={}):
        K.batch_set_value(list(zip(self.sym_trainable_weights, self.mv.values())))


def build():
    inp = Input((8, 8, 1))
    h = ZeroPadding2D(1)(inp)
    h = Conv2D(8, 3, use_bias=False)(h)
    h = BatchNormalization(scale=False)(h)
    h = Activation(tf.nn.relu6)(h)
    r = DepthwiseConv2D(3, padding="same", depthwise_initializer="he_uniform")(h)
    r = SeparableConv2D(8, 3, padding="same", activation="elu")(r)
    h = Add()([h, r])
    h = Cropping2D(((1, 1), (0, 2)))(h)
    h = GlobalAveragePooling2D()(h)
    return Model(inp, Dense(10, activation="softmax", name="probs")(h))


with strategy.scope():
    model = build()
    model.compile(
        tf.keras.optimizers.legacy.SGD(learning_rate=0.01, momentum=0.9), "categorical_crossentropy", ["accuracy"]
    )
rng = np.random.RandomState(2)
start = [rng.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in model.get_weights()]
model.set_weights(start)
cycle = OneCycleLR(0.1, 24)
history = model.fit(
    x[:256],
    y[:256],
    batch_size=32,
    epochs=3,
    callbacks=[cycle, CSVLogger("a.csv", append=False)],
    shuffle=False,
    verbose=0,
    validation_data=(x[256:], y[256:]),
)

with strategy.scope():
    second = build()
    second.compile(tf.keras.optimizers.Adam(epsilon=1e-6), loss="categorical_crossentropy", metrics="acc")
second.set_weights(start)
snapshot, ema = Snapshot(2, 0.02), EMA()
h2 = second.fit(
    x[:256],
    y[:256],
    batch_size=64,
    epochs=4,
    callbacks=[
        snapshot,
        ema,
        ModelCheckpoint("best_{epoch:02d}-{acc:.2f}.h5", monitor="acc", save_best_only=True, mode="max", verbose=1),
    ],
    shuffle=False,
    verbose=0,
)
ensemble = []
for c in range(2):
    third = build()
    third.load_weights(f"weights_cycle_{c}.h5")
    ensemble.append(third.predict(x[256:], verbose=0))
get_hidden = K.function([second.input], [second.layers[-2].output])
hidden = get_hidden([x[:4]])[0]
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "cycle": cycle.history,
        "second": {k: [float(i) for i in v] for k, v in h2.history.items()},
        "rates": snapshot.rates,
        "iterations": int(K.get_value(second.optimizer.iterations)),
        "files": sorted(f for f in os.listdir(".") if f.endswith((".h5", ".csv"))),
        "header": open("a.csv").readline().strip().split(","),
        "predictions": np.mean(ensemble, axis=0)[:4].tolist(),
        "hidden": np.asarray(hidden).tolist(),
        "averaged": second.predict(x[:3]).tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
