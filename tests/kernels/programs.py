"""Small kernels as people write them for one device; `block` is the one line that is added: `strategy_scope()`."""

from __future__ import annotations

import csv

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import KFold, train_test_split

SEED = 11


def mobile_net():
    return keras.applications.MobileNetV2(input_shape=(32, 32, 3), alpha=0.35, include_top=False, weights=None)


def digits():
    """Return images of digits in three colours, for training, validation and test, and their classes."""
    data = load_digits()
    images = np.repeat(data.images[:271, :, :, None], 3, axis=3).repeat(4, axis=1).repeat(4, axis=2)
    x, x_test, y, ids = train_test_split(images.astype("float32"), data.target[:271], test_size=29, random_state=0)
    x, x_valid, y, y_valid = train_test_split(x, y, test_size=75, random_state=0)
    return (x, y), (x_valid, y_valid), (x_test, ids)


def pretrained(path):
    """Write weights to start from: random ones, and normalizations that know the images.

    Without, each of the 52 normalizations makes rounding errors larger, and one device is not equal to itself.
    """
    (x, _), *_ = digits()
    keras.utils.set_random_seed(SEED)
    body = mobile_net()
    for layer in normalizations(body):
        layer.momentum = 0.0
    body(x[:64] / 16, training=True)
    body.save_weights(path)


def normalizations(body):
    return [layer for layer in body.layers if isinstance(layer, layers.BatchNormalization)]


def flowers(block, folder, weights):
    """Images of classes with a pretrained network, its last block tuned, a schedule, and a submission file."""
    (x, y), (x_valid, y_valid), (x_test, ids) = digits()

    with block:
        keras.utils.set_random_seed(SEED)
        body = mobile_net()
        body.load_weights(weights)
        for layer in [*body.layers[:-12], *normalizations(body)]:
            layer.trainable = False
        model = keras.Sequential(
            [
                layers.Rescaling(1 / 16.0),
                body,
                layers.GlobalAveragePooling2D(),
                layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(momentum=0.9),
            loss="sparse_categorical_crossentropy",
            metrics=["sparse_categorical_accuracy"],
        )

    def rate(epoch):
        return 5e-4 * (epoch + 1) if epoch < 2 else 1e-3 * 0.8 ** (epoch - 2)

    history = model.fit(
        x,
        y,
        batch_size=64,
        epochs=3,
        validation_data=(x_valid, y_valid),
        callbacks=[keras.callbacks.LearningRateScheduler(rate)],
        shuffle=False,
        verbose=0,
    )
    probabilities = model.predict(x_test, batch_size=16, verbose=0)
    with open(folder / "submission.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", "probability"])
        for number, row in zip(ids, probabilities, strict=True):
            writer.writerow([number, row.argmax(), f"{row.max():.3f}"])
    return {**history.history, "probabilities": probabilities}


def folds(block, folder):
    """A table in five folds, early stopping, the best weights of each, and the mean of five predictions."""
    x, y = load_diabetes(return_X_y=True)
    x, y = x.astype("float32"), ((y - y.mean()) / y.std()).astype("float32")
    x, x_test, y, _ = train_test_split(x, y, test_size=41, random_state=0)
    out_of_fold, test, results = np.zeros(len(x)), np.zeros(len(x_test)), {}
    for fold, (train, valid) in enumerate(KFold(5, shuffle=True, random_state=SEED).split(x)):
        keras.backend.clear_session()
        with block:
            keras.utils.set_random_seed(SEED + fold)
            inputs = keras.Input((x.shape[1],))
            hidden = layers.BatchNormalization()(layers.Dense(16, activation="relu")(inputs))
            hidden = layers.Dense(8, activation="relu", kernel_regularizer="l2")(hidden)
            model = keras.Model(inputs, layers.Dense(1)(hidden))
            model.compile(keras.optimizers.SGD(0.05, clipnorm=1.0), "mse", metrics=["mae"])
        best = str(folder / f"fold{fold}.weights.h5")
        history = model.fit(
            x[train],
            y[train],
            batch_size=50,
            epochs=5,
            validation_data=(x[valid], y[valid]),
            callbacks=[
                keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
                keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
                keras.callbacks.ModelCheckpoint(best, save_best_only=True, save_weights_only=True),
            ],
            shuffle=False,
            verbose=0,
        )
        model.load_weights(best)
        out_of_fold[valid] = model.predict(x[valid], verbose=0)[:, 0]
        test += model.predict(x_test, verbose=0)[:, 0] / 5
        results |= {f"{name} of fold {fold}": values for name, values in history.history.items()}
    return {**results, "out of fold": out_of_fold, "test": test}


class TokenAndPosition(layers.Layer):
    def __init__(self, length, words, width):
        super().__init__()
        self.supports_masking = True
        self.of_words = layers.Embedding(words, width, mask_zero=True)
        self.of_places = layers.Embedding(length, width)

    def call(self, x):
        return self.of_words(x) + self.of_places(ops.arange(x.shape[-1]))

    def compute_mask(self, x, mask=None):
        return self.of_words.compute_mask(x)


class Block(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.supports_masking = True
        self.attention = layers.MultiHeadAttention(2, width // 2)
        self.feed_forward = keras.Sequential([layers.Dense(2 * width, activation="gelu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]

    def call(self, x):
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.feed_forward(x))


def texts(block, data):
    """A transformer that tells apart texts of unlike length, which are padded and masked."""
    x, y = data

    with block:
        keras.utils.set_random_seed(SEED)
        inputs = keras.Input((x.shape[1],), dtype="int32")
        embedded = TokenAndPosition(x.shape[1], 1000, 16)(inputs)
        pooled = layers.GlobalAveragePooling1D()(Block(16)(embedded))
        model = keras.Model(inputs, layers.Dense(46, activation="softmax")(pooled))
        model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])

    history = model.fit(
        x,
        y,
        batch_size=32,
        epochs=2,
        validation_split=0.2,
        class_weight={3: 0.5, 4: 2.0},
        shuffle=False,
        verbose=0,
    )
    return {**history.history, "predicted": model.predict(x[:75], verbose=0)}


def networks():
    """Return a generator and a discriminator."""
    generator = keras.Sequential(
        [keras.Input((4,)), layers.Dense(16), layers.LeakyReLU(), layers.Dense(64, activation="sigmoid")]
    )
    discriminator = keras.Sequential([keras.Input((64,)), layers.Dense(16), layers.LeakyReLU(), layers.Dense(1)])
    return generator, discriminator


class TwoNetworks(keras.Model):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]


def adversaries(block, gan_class):
    """A GAN with a `train_step` of its own; noise comes with the data, else each device draws its own."""
    images = (load_digits().data[:103] / 16).astype("float32")
    noise = np.random.default_rng(SEED).normal(size=(103, 4)).astype("float32")

    with block:
        keras.utils.set_random_seed(SEED)
        gan = gan_class(*networks())
        gan.compile(
            keras.optimizers.Adam(0.01),
            keras.optimizers.Adam(0.01),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )

    history = gan.fit(images, noise, batch_size=32, epochs=2, shuffle=False, verbose=0)
    return {**history.history, "drawn": gan.generator.predict(noise[:13], verbose=0)}
