"""Super-resolution: sub-pixel convolution, psnr and ssim by names in capitals, a checkpoint of TensorFlow, lr by epoch."""

import json, os
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.keras.preprocessing.image import array_to_img, img_to_array

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()
upscale_factor, crop_size = 2, 16
input_size = crop_size // upscale_factor

rng = np.random.RandomState(0)
base = rng.uniform(0, 255, (48, 4, 4, 3)).astype("float32")
high = tf.image.resize(base, (crop_size, crop_size), method="bicubic").numpy()


def scaling(input_image):
    return input_image / 255.0


def process_input(input, input_size, upscale_factor):
    input = tf.image.rgb_to_yuv(input)
    last_dimension_axis = len(input.shape) - 1
    y, u, v = tf.split(input, 3, axis=last_dimension_axis)
    return tf.image.resize(y, [input_size, input_size], method="area")


def process_target(input):
    input = tf.image.rgb_to_yuv(input)
    last_dimension_axis = len(input.shape) - 1
    y, u, v = tf.split(input, 3, axis=last_dimension_axis)
    return y


train_ds = tf.data.Dataset.from_tensor_slices(high[:32]).batch(8).map(scaling)
valid_ds = tf.data.Dataset.from_tensor_slices(high[32:]).batch(8).map(scaling)
train_ds = train_ds.map(lambda x: (process_input(x, input_size, upscale_factor), process_target(x))).prefetch(
    buffer_size=32
)
valid_ds = valid_ds.map(lambda x: (process_input(x, input_size, upscale_factor), process_target(x))).prefetch(
    buffer_size=32
)


class Standardize(layers.Layer):
    def call(self, images, training=None):
        if training:
            images = tf.image.adjust_contrast(images, 1.1)
            images = tf.image.adjust_brightness(images, 0.05)
        return tf.clip_by_value(images, 0.0, 1.0)


def subpixel(scale):
    return lambda x: tf.nn.depth_to_space(x, scale)


def get_model(upscale_factor=3, channels=1):
    conv_args = {"activation": "relu", "kernel_initializer": "Orthogonal", "padding": "same"}
    inputs = keras.Input(shape=(None, None, channels))
    x = Standardize()(inputs)
    x = layers.Conv2D(8, 5, **conv_args)(x)
    for _ in range(2):
        y = layers.Conv2D(8, 3, **conv_args)(x)
        y = layers.Conv2D(8, 3, padding="same")(y)
        x = layers.Add()([x, layers.Lambda(lambda t: t * 0.1)(y)])
    x = layers.Conv2D(channels * (upscale_factor**2), 3, **conv_args)(x)
    a = tf.nn.depth_to_space(x, upscale_factor)
    b = layers.Lambda(subpixel(upscale_factor))(x)
    outputs = (a + b) / 2 + tf.image.resize(inputs, tf.shape(inputs)[1:3] * upscale_factor, method="nearest") * 0.01
    return keras.Model(inputs, outputs)


def PSNR(y_true, y_pred):
    return tf.image.psnr(y_pred, y_true, max_val=1.0)


def SSIM(y_true, y_pred):
    return tf.reduce_mean(tf.image.ssim(y_true, y_pred, max_val=1.0, filter_size=5))


def edge_loss(y_true, y_pred):
    dy_true, dx_true = tf.image.image_gradients(y_true)
    dy_pred, dx_pred = tf.image.image_gradients(y_pred)
    return tf.reduce_mean(tf.keras.losses.mse(y_true, y_pred)) + 0.1 * tf.reduce_mean(
        tf.abs(dy_true - dy_pred) + tf.abs(dx_true - dx_pred)
    )


class ESPCNCallback(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.psnr = []

    def on_epoch_end(self, epoch, logs=None):
        print("Mean PSNR for epoch: %.2f" % (np.mean(self.psnr)))
        logs["mean_psnr"] = float(np.mean(self.psnr))

    def on_test_batch_end(self, batch, logs=None):
        self.psnr.append(10 * np.log10(1 / logs["loss"]))


with strategy.scope():
    model = get_model(upscale_factor=upscale_factor, channels=1)
    optimizer = keras.optimizers.Adam(learning_rate=0.001)
    model.compile(optimizer=optimizer, loss=edge_loss, metrics=[PSNR, SSIM])
rng = np.random.RandomState(1)
model.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
early_stopping_callback = keras.callbacks.EarlyStopping(monitor="loss", patience=10)
checkpoint_filepath = "ckpt/espcn"
model_checkpoint_callback = keras.callbacks.ModelCheckpoint(
    filepath=checkpoint_filepath,
    save_weights_only=True,
    monitor="loss",
    mode="min",
    save_best_only=True,
)


def schedule(epoch, lr):
    return lr if epoch < 1 else lr * tf.math.exp(-0.1)


h = model.fit(
    train_ds,
    epochs=3,
    validation_data=valid_ds,
    verbose=2,
    callbacks=[
        ESPCNCallback(),
        early_stopping_callback,
        model_checkpoint_callback,
        keras.callbacks.LearningRateScheduler(schedule, verbose=1),
    ],
)
model.load_weights(checkpoint_filepath)
img = array_to_img(np.clip(high[40], 0, 255))
ycbcr = img.convert("YCbCr")
y, cb, cr = ycbcr.split()
y = img_to_array(y)
input = np.expand_dims(y.astype("float32") / 255.0, axis=0)
out = model.predict(input)
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": {k: [float(one) for one in v] for k, v in h.history.items()},
        "shape": list(out.shape),
        "predictions": model.predict(valid_ds)[0, ..., 0].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
