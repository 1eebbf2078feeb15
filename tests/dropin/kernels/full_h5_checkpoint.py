"""The best model of each fold in a whole .h5 file, loaded with custom_objects; saved again and trained on."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_diabetes
from tensorflow.keras import backend as K
from tensorflow.keras.callbacks import ModelCheckpoint
from tensorflow.keras.layers import Dense, Input, PReLU
from tensorflow.keras.models import Model, load_model
from tensorflow.keras.utils import get_custom_objects

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.MirroredStrategy()


def mish(x):
    return x * K.tanh(K.softplus(x))


get_custom_objects().update({"mish": mish})


def rmse(y_true, y_pred):
    return K.sqrt(K.mean(K.square(y_pred - y_true)))


class ScaleLayer(tf.keras.layers.Layer):
    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, input_shape):
        self.scale = self.add_weight("scale", shape=[input_shape[-1]], initializer="ones", trainable=True)
        super().build(input_shape)

    def call(self, x):
        return x * self.scale * self.factor

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        config = super(ScaleLayer, self).get_config()
        config["factor"] = self.factor
        return config


def make_model(n):
    inp = Input((n,))
    x = ScaleLayer(0.5, name="block/scale")(inp)
    x = Dense(16, activation="mish", name="dense_a")(x)
    x = PReLU(name="prelu")(x)
    x = Dense(8, activation=tf.nn.leaky_relu)(x)
    out = Dense(1)(x)
    model = Model(inp, out)
    model.compile(optimizer=tf.keras.optimizers.Adam(0.001), loss="mean_squared_error", metrics=[rmse])
    return model


X, y = load_diabetes(return_X_y=True)
X, y = X[:320] / X.std(), (y[:320] - y.mean()) / y.std()

with strategy.scope():
    model = make_model(X.shape[1])
rng = np.random.RandomState(3)
model.set_weights([rng.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in model.get_weights()])

ckp = ModelCheckpoint("best_model.h5", monitor="val_loss", verbose=1, save_best_only=True, mode="min")
history = model.fit(
    X[:256], y[:256], batch_size=32, epochs=3, validation_data=(X[256:], y[256:]), callbacks=[ckp], shuffle=False
)

with strategy.scope():
    best = load_model("best_model.h5", custom_objects={"rmse": rmse, "ScaleLayer": ScaleLayer})
restored = best.evaluate(X[256:], y[256:], batch_size=32)
more = best.fit(X[:256], y[:256], batch_size=32, epochs=1, shuffle=False)
best.save("my_model.hdf5")
again = tf.keras.models.load_model(
    "my_model.hdf5", custom_objects={"ScaleLayer": ScaleLayer, "rmse": rmse}, compile=False
)
again.summary()

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "restored": restored,
        "more": more.history,
        "scale": again.get_layer("block/scale").get_weights()[0].tolist(),
        "predictions": again.predict(X[256:]).ravel()[:24].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
