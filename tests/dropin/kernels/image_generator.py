"""Digits through ImageDataGenerator and fit_generator, in the words of standalone Keras; old merge and optimizer names."""

import json
import os

import numpy as np
import tensorflow as tf
from keras.callbacks import CSVLogger, ReduceLROnPlateau
from keras.layers import Activation, Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from keras.models import Sequential
from keras.preprocessing.image import ImageDataGenerator
from keras.utils import to_categorical
from sklearn.datasets import load_digits

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

digits = load_digits()
X_train = digits.images[:384].reshape(-1, 8, 8, 1)
Y_train = to_categorical(digits.target[:384], num_classes=10)
X_val = digits.images[384:480].reshape(-1, 8, 8, 1)
Y_val = to_categorical(digits.target[384:480], num_classes=10)
batch_size = 32
epochs = 2

with strategy.scope():
    model = Sequential()
    model.add(Conv2D(filters=8, kernel_size=(3, 3), padding="Same", activation="relu", input_shape=(8, 8, 1)))
    model.add(Conv2D(filters=8, kernel_size=(3, 3), padding="Same"))
    model.add(Activation("relu"))
    model.add(MaxPooling2D(pool_size=(2, 2)))
    model.add(Dropout(0.0))
    model.add(Flatten())
    model.add(Dense(10, activation="softmax"))
    model.compile(optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"])
state = np.random.RandomState(0)
model.set_weights([state.normal(0, 0.1, w.shape) if w.ndim > 1 else w for w in model.get_weights()])

datagen = ImageDataGenerator(featurewise_center=True, featurewise_std_normalization=True)
datagen.fit(X_train)
val_gen = ImageDataGenerator(rescale=1.0 / 16)
history = model.fit_generator(
    datagen.flow(X_train, Y_train, batch_size=batch_size, shuffle=False),
    epochs=epochs,
    validation_data=val_gen.flow(X_val, Y_val, batch_size=batch_size, shuffle=False),
    verbose=2,
    steps_per_epoch=X_train.shape[0] // batch_size,
    callbacks=[
        ReduceLROnPlateau(monitor="val_accuracy", patience=3, verbose=1, factor=0.5, min_lr=0.00001),
        CSVLogger("log.csv"),
    ],
    shuffle=False,
    workers=1,
    use_multiprocessing=False,
)
score = model.evaluate_generator(val_gen.flow(X_val, Y_val, batch_size=batch_size, shuffle=False), steps=3)
predictions = model.predict_generator(val_gen.flow(X_val, batch_size=batch_size, shuffle=False), steps=3)
header = sorted(open("log.csv").readline().strip().split(","))

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": {k: [float(v) for v in vs] for k, vs in history.history.items()},
        "score": [float(v) for v in score],
        "header": header,
        "predictions": predictions[:6].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
