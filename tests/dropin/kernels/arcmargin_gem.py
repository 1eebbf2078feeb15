"""Landmarks: ArcMargin with get_config and labels as an input, GeM pooling, swish in a file, neighbors by embeddings."""

import json, math, os
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors
from tensorflow.keras import backend as K


try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
except ValueError:
    tpu = None
if tpu:
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
else:
    strategy = tf.distribute.get_strategy()

tf.config.optimizer.set_jit(True)
AUTO = tf.data.experimental.AUTOTUNE
N_CLASSES, BATCH = 10, 32
digits = load_digits()
images = (digits.images[:256] / 16).astype("float32")[..., None]
labels = digits.target[:256].astype("int32")


class ArcMarginProduct(tf.keras.layers.Layer):
    """Implements large margin arc distance."""

    def __init__(self, n_classes, s=30, m=0.50, easy_margin=False, ls_eps=0.0, **kwargs):
        super(ArcMarginProduct, self).__init__(**kwargs)
        self.n_classes = n_classes
        self.s = s
        self.m = m
        self.ls_eps = ls_eps
        self.easy_margin = easy_margin
        self.cos_m = tf.math.cos(m)
        self.sin_m = tf.math.sin(m)
        self.th = tf.math.cos(math.pi - m)
        self.mm = tf.math.sin(math.pi - m) * m

    def get_config(self):
        config = super().get_config().copy()
        config.update(
            {
                "n_classes": self.n_classes,
                "s": self.s,
                "m": self.m,
                "ls_eps": self.ls_eps,
                "easy_margin": self.easy_margin,
            }
        )
        return config

    def build(self, input_shape):
        super(ArcMarginProduct, self).build(input_shape[0])
        self.W = self.add_weight(
            name="W",
            shape=(int(input_shape[0][-1]), self.n_classes),
            initializer="glorot_uniform",
            dtype="float32",
            trainable=True,
            regularizer=None,
        )

    def call(self, inputs):
        X, y = inputs
        y = tf.cast(y, dtype=tf.int32)
        cosine = tf.matmul(tf.math.l2_normalize(X, axis=1), tf.math.l2_normalize(self.W, axis=0))
        sine = tf.math.sqrt(1.0 - tf.math.pow(cosine, 2))
        phi = cosine * self.cos_m - sine * self.sin_m
        if self.easy_margin:
            phi = tf.where(cosine > 0, phi, cosine)
        else:
            phi = tf.where(cosine > self.th, phi, cosine - self.mm)
        one_hot = tf.cast(tf.one_hot(y, depth=self.n_classes), dtype=cosine.dtype)
        if self.ls_eps > 0:
            one_hot = (1 - self.ls_eps) * one_hot + self.ls_eps / self.n_classes
        output = (one_hot * phi) + ((1.0 - one_hot) * cosine)
        output *= self.s
        return output


class GeM(tf.keras.layers.Layer):
    def __init__(self, pool_size=1, init_norm=3.0, normalize=False, **kwargs):
        self.pool_size = pool_size
        self.init_norm = init_norm
        self.normalize = normalize
        super(GeM, self).__init__(**kwargs)

    def get_config(self):
        config = super().get_config()
        config.update({"pool_size": self.pool_size, "init_norm": self.init_norm, "normalize": self.normalize})
        return config

    def build(self, input_shape):
        feature_size = input_shape[-1]
        self.p = self.add_weight(
            name="norms",
            shape=feature_size,
            initializer=tf.keras.initializers.constant(self.init_norm),
            trainable=True,
        )
        super(GeM, self).build(input_shape)

    def call(self, inputs):
        x = tf.math.maximum(inputs, 1e-6)
        x = tf.pow(x, self.p)
        x = tf.nn.avg_pool(x, self.pool_size, self.pool_size, "VALID")
        x = tf.pow(x, 1.0 / self.p)
        if self.normalize:
            x = tf.nn.l2_normalize(x, 1)
        return x


def build_model():
    margin = ArcMarginProduct(n_classes=N_CLASSES, s=10, m=0.3, name="head/arc_margin")
    inp = tf.keras.layers.Input(shape=(8, 8, 1), name="inp1")
    label = tf.keras.layers.Input(shape=(), name="inp2")
    x = tf.keras.layers.Conv2D(8, 3, activation="swish", padding="same")(inp)
    x = tf.keras.layers.Conv2D(12, 3, activation=tf.nn.swish)(x)
    x = GeM(6, name="gem")(x)
    x = tf.keras.layers.Flatten()(x)
    x = tf.keras.layers.Dense(12, name="embedding")(x)
    x = margin([x, label])
    output = tf.keras.layers.Softmax(dtype="float32")(x)
    model = tf.keras.models.Model(inputs=[inp, label], outputs=[output])
    opt = tf.keras.optimizers.Adam(learning_rate=1e-3)
    model.compile(
        optimizer=opt,
        loss=[tf.keras.losses.SparseCategoricalCrossentropy()],
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy(), tf.keras.metrics.SparseTopKCategoricalAccuracy(k=3)],
    )
    return model


def arcface_format(image, label):
    return {"inp1": image, "inp2": label}, label


train = tf.data.Dataset.from_tensor_slices((images[:192], labels[:192])).map(arcface_format, num_parallel_calls=AUTO)
train = train.repeat().batch(BATCH).prefetch(AUTO)
valid = tf.data.Dataset.from_tensor_slices((images[192:], labels[192:])).map(arcface_format).batch(BATCH)

K.clear_session()
with strategy.scope():
    model = build_model()
rng = np.random.RandomState(3)
model.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])


def lrfn(epoch):
    return [1e-2, 6e-3, 1e-3][epoch]


history = model.fit(
    train,
    validation_data=valid,
    steps_per_epoch=192 // BATCH,
    epochs=3,
    callbacks=[tf.keras.callbacks.LearningRateScheduler(lrfn, verbose=True)],
    verbose=2,
)
model.save("arc.h5")
loaded = tf.keras.models.load_model(
    "arc.h5", custom_objects={"ArcMarginProduct": ArcMarginProduct, "GeM": GeM}, compile=False
)
embed = tf.keras.models.Model(inputs=loaded.input[0], outputs=loaded.get_layer("embedding").output)
E = embed.predict(images, batch_size=64)
E /= np.linalg.norm(E, axis=1, keepdims=True)
d, i = NearestNeighbors(n_neighbors=3, metric="cosine").fit(E[:192]).kneighbors(E[192:])
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": {k: [float(i) for i in v] for k, v in history.history.items()},
        "distances": d[:8].tolist(),
        "names": [w.name.split(":")[0].split("/")[-1] for w in model.weights],
        "predictions": model.predict(valid)[:6].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
