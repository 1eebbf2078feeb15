"""Salt: a U-Net with UpSampling, a Sequence with on_epoch_end, a Loss class of Dice and BCE, MeanIoU of one's own, SWA."""

import json, os, random
import numpy as np
import tensorflow as tf
from tensorflow import keras
import tensorflow.keras.backend as K
from tensorflow.keras.layers import *
from tensorflow.keras.models import Model, load_model

K.set_image_data_format("channels_last")
np.random.seed(42)
random.seed(42)
tf.random.set_seed(42)

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print("Running on TPU ", tpu.cluster_spec().as_dict()["worker"] and "worker")
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
print("REPLICAS: ", strategy.num_replicas_in_sync > 0)

SIZE = 16


class SaltSequence(keras.utils.Sequence):
    def __init__(self, n, batch_size, seed, shuffle=True):
        self.rng = np.random.RandomState(seed)
        yy, xx = np.mgrid[:SIZE, :SIZE]
        self.images, self.masks = [], []
        for _ in range(n):
            cy, cx, r = self.rng.randint(4, 12), self.rng.randint(4, 12), self.rng.randint(2, 5)
            mask = ((yy - cy) ** 2 + (xx - cx) ** 2 < r * r).astype("float32")
            self.images.append(mask * 0.7 + self.rng.uniform(0, 0.3, (SIZE, SIZE)))
            self.masks.append(mask)
        self.batch_size, self.shuffle = batch_size, shuffle
        self.epochs = 0
        self.indexes = np.arange(n)

    def __len__(self):
        return int(np.ceil(len(self.indexes) / float(self.batch_size)))

    def __getitem__(self, index):
        take = self.indexes[index * self.batch_size : (index + 1) * self.batch_size]
        X = np.array([self.images[k] for k in take], dtype="float32")[..., np.newaxis]
        y = np.array([self.masks[k] for k in take], dtype="float32")[..., np.newaxis]
        return X, y

    def on_epoch_end(self):
        self.epochs += 1
        if self.shuffle:
            self.rng.shuffle(self.indexes)


class DiceBCE(keras.losses.Loss):
    def __init__(self, alpha=0.5, name="dice_bce", **kwargs):
        super().__init__(name=name, **kwargs)
        self.alpha = alpha

    def call(self, y_true, y_pred):
        y_true = tf.cast(y_true, tf.float32)
        bce = K.mean(K.binary_crossentropy(y_true, y_pred), axis=[1, 2, 3])
        inter = K.sum(y_true * y_pred, axis=[1, 2, 3])
        dice = (2.0 * inter + 1.0) / (K.sum(y_true, axis=[1, 2, 3]) + K.sum(y_pred, axis=[1, 2, 3]) + 1.0)
        return self.alpha * bce + (1 - self.alpha) * (1 - dice)

    def get_config(self):
        config = super().get_config()
        config.update({"alpha": self.alpha})
        return config


class ThresholdIoU(tf.keras.metrics.MeanIoU):
    def __init__(self, threshold=0.5, num_classes=2, name="miou", dtype=None, **kwargs):
        super(ThresholdIoU, self).__init__(num_classes=num_classes, name=name, dtype=dtype)
        self.threshold = threshold

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = tf.cast(y_pred > self.threshold, tf.int32)
        return super().update_state(tf.cast(y_true, tf.int32), y_pred, sample_weight)


class SWA(keras.callbacks.Callback):
    def __init__(self, filepath, swa_epoch):
        super(SWA, self).__init__()
        self.filepath = filepath
        self.swa_epoch = swa_epoch

    def on_train_begin(self, logs=None):
        self.nb_epoch = self.params["epochs"]
        print("Stochastic weight averaging selected for last {} epochs.".format(self.nb_epoch - self.swa_epoch))

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.swa_epoch:
            self.swa_weights = self.model.get_weights()
        elif epoch > self.swa_epoch:
            for i, layer in enumerate(self.model.layers):
                pass
            now = self.model.get_weights()
            for i in range(len(self.swa_weights)):
                self.swa_weights[i] = (self.swa_weights[i] * (epoch - self.swa_epoch) + now[i]) / (
                    (epoch - self.swa_epoch) + 1
                )

    def on_train_end(self, logs=None):
        self.model.set_weights(self.swa_weights)
        print("Final model parameters set to stochastic weight average.")
        self.model.save_weights(self.filepath)
        print("Final stochastic averaged weights saved to file.")


def conv_block(x, f, name):
    x = Conv2D(f, 3, padding="same", use_bias=False, name=name + "_conv")(x)
    x = BatchNormalization(name=name + "_bn")(x)
    x = Activation("elu", name=name + "_act")(x)
    return SpatialDropout2D(0.0)(x)


def build():
    inp = Input((SIZE, SIZE, 1), name="img")
    c1 = conv_block(inp, 4, "enc1")
    p1 = MaxPooling2D()(c1)
    c2 = conv_block(p1, 8, "enc2")
    p2 = AveragePooling2D()(c2)
    c3 = conv_block(p2, 8, "mid")
    u2 = UpSampling2D(size=(2, 2), interpolation="bilinear")(c3)
    u2 = conv_block(Concatenate(axis=-1)([u2, c2]), 8, "dec2")
    u1 = UpSampling2D()(u2)
    u1 = conv_block(concatenate([u1, c1]), 4, "dec1")
    se = GlobalAveragePooling2D()(u1)
    se = Reshape((1, 1, 4))(Dense(4, activation="sigmoid")(se))
    u1 = multiply([u1, se])
    out = Conv2D(1, 1, activation="sigmoid", name="mask")(u1)
    return Model(inp, out, name="unet")


train, valid = SaltSequence(60, 16, 0), SaltSequence(24, 16, 1, shuffle=False)
with strategy.scope():
    model = build()
    model.compile(
        optimizer=keras.optimizers.RMSprop(learning_rate=2e-3),
        loss=DiceBCE(0.3),
        metrics=[ThresholdIoU(), keras.metrics.BinaryAccuracy(name="acc"), "mse"],
    )
rng = np.random.RandomState(5)
model.set_weights([rng.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
lines = []
model.summary(print_fn=lambda x, **kw: lines.append(x))
print("parameters", model.count_params(), len(model.layers), [l.name for l in model.layers if isinstance(l, Conv2D)])

history = model.fit(train, validation_data=valid, epochs=4, verbose=2, shuffle=False, callbacks=[SWA("swa.h5", 2)])
model.save("unet.h5")
with strategy.scope():
    loaded = load_model("unet.h5", custom_objects={"DiceBCE": DiceBCE, "ThresholdIoU": ThresholdIoU})
scores = dict(zip(loaded.metrics_names, loaded.evaluate(valid, verbose=0)))
scores2 = dict(zip(model.metrics_names, model.evaluate(valid, verbose=0)))
fresh = build()
fresh.load_weights("swa.h5")
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": {k: [float(i) for i in v] for k, v in history.history.items()},
        "params": model.count_params(),
        "epochs": [train.epochs, valid.epochs],
        "scores": scores,
        "scores2": scores2,
        "alpha": loaded.loss.alpha if hasattr(loaded.loss, "alpha") else None,
        "predictions": fresh.predict(valid)[:2, ::3, ::3].tolist(),
        "summary": any("Total params" in l for l in lines),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
