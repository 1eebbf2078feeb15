"""A U-Net that finds discs; dice loss in K, dice metric in tf, weights of the best epoch from an .h5 file."""

import json
import os

import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K
from tensorflow.keras.callbacks import EarlyStopping, ModelCheckpoint, ReduceLROnPlateau
from tensorflow.keras.layers import (
    BatchNormalization,
    Conv2D,
    Conv2DTranspose,
    Input,
    LeakyReLU,
    MaxPooling2D,
    concatenate,
)
from tensorflow.keras.losses import binary_crossentropy
from tensorflow.keras.models import Model

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])

DIM = 32


def make_data(n, seed):
    rng = np.random.RandomState(seed)
    yy, xx = np.mgrid[:DIM, :DIM]
    images, masks = [], []
    for _ in range(n):
        cy, cx, r = rng.randint(8, 24), rng.randint(8, 24), rng.randint(4, 9)
        mask = ((yy - cy) ** 2 + (xx - cx) ** 2 < r * r).astype("float32")
        images.append(mask * 0.6 + rng.uniform(0, 0.4, (DIM, DIM)))
        masks.append(mask)
    return np.array(images, "float32")[..., None], np.array(masks)[..., None]


def dice_coef(y_true, y_pred, smooth=1):
    y_true_f = K.flatten(y_true)
    y_pred_f = K.flatten(y_pred)
    intersection = K.sum(y_true_f * y_pred_f)
    return (2.0 * intersection + smooth) / (K.sum(y_true_f) + K.sum(y_pred_f) + smooth)


def dice_loss(y_true, y_pred):
    return 1 - dice_coef(y_true, y_pred)


def bce_dice_loss(y_true, y_pred):
    return binary_crossentropy(tf.cast(y_true, tf.float32), y_pred) + 0.5 * dice_loss(y_true, y_pred)


def iou(y_true, y_pred):
    y_pred = tf.cast(tf.math.greater(y_pred, 0.5), tf.float32)
    inter = tf.reduce_sum(tf.multiply(y_true, y_pred), axis=[1, 2, 3])
    union = tf.reduce_sum(y_true + y_pred, axis=[1, 2, 3]) - inter
    return tf.reduce_mean((inter + 1e-6) / (union + 1e-6))


def block(x, filters):
    x = Conv2D(filters, (3, 3), padding="same", kernel_initializer="he_normal")(x)
    x = BatchNormalization()(x)
    return LeakyReLU(alpha=0.1)(x)


def unet(input_size=(DIM, DIM, 1)):
    inputs = Input(input_size)
    conv1 = block(inputs, 4)
    pool1 = MaxPooling2D(pool_size=(2, 2))(conv1)
    conv2 = block(pool1, 8)
    pool2 = MaxPooling2D(pool_size=(2, 2))(conv2)
    conv3 = block(pool2, 16)
    up4 = concatenate([Conv2DTranspose(8, (2, 2), strides=(2, 2), padding="same")(conv3), conv2], axis=3)
    conv4 = block(up4, 8)
    up5 = concatenate([Conv2DTranspose(4, (2, 2), strides=(2, 2), padding="same")(conv4), conv1], axis=3)
    outputs = Conv2D(1, (1, 1), activation="sigmoid")(block(up5, 4))
    return Model(inputs=[inputs], outputs=[outputs])


with strategy.scope():
    model = unet()
    model.compile(
        optimizer=tf.keras.optimizers.legacy.Adam(lr=5e-3), loss=bce_dice_loss, metrics=[dice_coef, iou, "accuracy"]
    )

state = np.random.RandomState(0)
model.set_weights([state.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in model.get_weights()])

x, y = make_data(64, 0)
xv, yv = make_data(32, 1)
callbacks = [
    EarlyStopping(monitor="val_loss", patience=5, verbose=1),
    ReduceLROnPlateau(factor=0.1, patience=3, min_lr=0.00001, verbose=1),
    ModelCheckpoint("model-unet.h5", verbose=1, save_best_only=True, save_weights_only=True),
]
results = model.fit(
    x, y, batch_size=32, epochs=3, callbacks=callbacks, validation_data=(xv, yv), shuffle=False, verbose=2
)
model.load_weights("model-unet.h5")
masks = (model.predict(xv) > 0.5).astype(np.uint8)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": {k: list(map(float, v)) for k, v in results.history.items()},
        "evaluate": model.evaluate(xv, yv, verbose=0, batch_size=32),
        "predictions": model.predict(xv)[:2, ::4, ::4].tolist(),
        "pixels": float(masks.sum()),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
