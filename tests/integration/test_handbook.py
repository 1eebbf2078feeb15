"""The TensorFlow handbook's own `fit` call, unchanged inside `strategy_scope()`, on every runtime."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.gate_on("keras3_tf", "keras2_tf221")


def small_images():
    """Images whose class is where they are bright, 28 x 28 as in the handbook."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 10, 640).astype("int32")
    images = rng.uniform(0, 0.3, (640, 28, 28, 1)).astype("float32")
    images[np.arange(640), 2 * labels, :, 0] += 0.7
    return images, labels


def data(images, labels):
    """Return the arguments of `fit` that are data: batches without end where there is `tf.data`, else long arrays."""
    try:
        import tensorflow as tf
    except ImportError:
        longer = {"x": np.tile(images, (3, 1, 1, 1)), "y": np.tile(labels, 3), "batch_size": 32}
        return {**longer, "validation_data": (images, labels)}
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return {"x": dataset.repeat().batch(32), "validation_data": dataset.batch(32)}


# Keras 3 says so of every tf.data pipeline that `fit` gets without `shuffle=False`.
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")
@pytest.mark.parametrize(
    "kind", ["a TPUModel", pytest.param("a plain model", marks=pytest.mark.gate_on("keras3_tf"))]
)
def test_it_trains_validates_every_fifth_epoch_and_learns(scope4, kind):
    images, labels = small_images()
    with scope4:  # stock Keras needs a number that divides the batch
        model = keras.Sequential(
            [
                keras.layers.Input((28, 28, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        if kind == "a TPUModel":
            model = kte.TPUModel.from_model(model)
        model.compile(optimizer="adam", loss=keras.losses.sparse_categorical_crossentropy, metrics=["accuracy"])
    history = model.fit(**data(images, labels), epochs=10, steps_per_epoch=60, validation_freq=5, verbose=0)
    assert len(history.history["loss"]) == 10
    assert len(history.history["val_loss"]) == 2
    assert history.history["val_accuracy"][-1] > 0.95  # probabilities and a function that expects them: it learns
