"""Melanoma: two inputs in dicts, focal loss in K, class weights, predictions averaged over augmented passes with steps=."""

import json
import os

import numpy as np
import tensorflow as tf
import tensorflow.keras.backend as K
from sklearn.datasets import load_digits

DEVICE = "TPU"
AUTO = tf.data.experimental.AUTOTUNE
if DEVICE == "TPU":
    print("connecting to TPU...")
    try:
        tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
        print("Running on TPU ", tpu.master())
    except ValueError:
        print("Could not connect to TPU")
        tpu = None
    if tpu:
        try:
            tf.config.experimental_connect_to_cluster(tpu)
            tf.tpu.experimental.initialize_tpu_system(tpu)
            strategy = tf.distribute.experimental.TPUStrategy(tpu)
            print("TPU initialized")
        except Exception:
            print("failed to initialize TPU")
    else:
        DEVICE = "GPU"
if DEVICE == "GPU":
    strategy = tf.distribute.get_strategy()
REPLICAS = strategy.num_replicas_in_sync
BATCH_SIZE, TTA = 32 // REPLICAS, 3

digits = load_digits()
images = digits.images[:320, ..., None].astype("float32")
meta = np.stack([images.mean((1, 2, 3)) / 16, images.std((1, 2, 3)) / 16], 1).astype("float32")
target = (digits.target[:320] == 3).astype("int32")


def augment(data, k):
    image = data["inp1"] / 16.0
    image = tf.image.rot90(image, k=0)
    image = tf.cond(k % 2 == 1, lambda: tf.image.flip_left_right(image), lambda: image)
    image = tf.image.adjust_brightness(image, 0.02)
    return {"inp1": image, "inp2": data["inp2"]}


def get_dataset(rows, passes=1, repeat=False, labeled=True):
    ds = tf.data.Dataset.from_tensor_slices(({"inp1": images[rows], "inp2": meta[rows]}, target[rows]))
    ds = ds.cache()
    opt = tf.data.Options()
    opt.experimental_deterministic = True
    ds = ds.with_options(opt)
    if repeat:
        ds = ds.repeat()
    ds = ds.enumerate()
    count = images[rows].shape[0]
    if labeled:
        ds = ds.map(lambda i, row: (augment(row[0], i), row[1]), num_parallel_calls=AUTO)
    else:
        ds = ds.map(lambda i, row: augment(row[0], i // count), num_parallel_calls=AUTO)
    return ds.batch(BATCH_SIZE * REPLICAS).prefetch(AUTO)


def focal_loss(gamma=2.0, alpha=0.25):
    def focal(y_true, y_pred):
        y_true = K.cast(y_true, "float32")
        pt_1 = tf.where(tf.equal(y_true, 1), y_pred, tf.ones_like(y_pred))
        pt_0 = tf.where(tf.equal(y_true, 0), y_pred, tf.zeros_like(y_pred))
        pt_1 = K.clip(pt_1, 1e-3, 0.999)
        pt_0 = K.clip(pt_0, 1e-3, 0.999)
        return -K.mean(alpha * K.pow(1.0 - pt_1, gamma) * K.log(pt_1)) - K.mean(
            (1 - alpha) * K.pow(pt_0, gamma) * K.log(1.0 - pt_0)
        )

    return focal


def build_model():
    inp1 = tf.keras.layers.Input(shape=(8, 8, 1), name="inp1")
    inp2 = tf.keras.layers.Input(shape=(2,), name="inp2")
    x = tf.keras.layers.Conv2D(8, 3, activation=tf.nn.swish)(inp1)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    y = tf.keras.layers.Dense(4, activation="relu")(inp2)
    concat = tf.keras.layers.concatenate([x, y])
    out = tf.keras.layers.Dense(1, activation="sigmoid")(concat)
    return tf.keras.models.Model(inputs=[inp1, inp2], outputs=[out])


results = {"history": {}, "predictions": {}}
for name, loss in [("focal", focal_loss()), ("bce", tf.keras.losses.BinaryCrossentropy(label_smoothing=0.05))]:
    K.clear_session()
    with strategy.scope():
        model = build_model()
        model.compile(optimizer=tf.keras.optimizers.Adam(), loss=loss, metrics=["AUC"])
    rng = np.random.RandomState(4)
    model.set_weights([rng.normal(0, 0.5, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    history = model.fit(
        get_dataset(slice(0, 256), repeat=True),
        epochs=2,
        steps_per_epoch=256 / BATCH_SIZE / REPLICAS,
        validation_data=get_dataset(slice(256, 320)),
        class_weight={0: 1.0, 1: 4.0},
        verbose=2,
    )
    ds_test = get_dataset(slice(256, 320), repeat=True, labeled=False)
    ct_test = 64
    STEPS = TTA * ct_test / BATCH_SIZE / REPLICAS
    pred = model.predict(ds_test, steps=STEPS, verbose=2)[: TTA * ct_test,]
    pred = np.mean(pred.reshape((ct_test, TTA), order="F"), axis=1)
    results["history"][name] = {k: [float(v) for v in vs] for k, vs in history.history.items()}
    results["predictions"][name] = pred[:24].tolist()

results["replicas"] = REPLICAS
json.dump(results, open(os.environ["KERNEL_OUT"], "w"))
