"""Folds of a table: the TPU set up again for each, sessions cleared, the best weights of each fold in an .h5 file."""

import gc
import json
import os

import numpy as np
import tensorflow as tf
import tensorflow.keras.backend as K
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from tensorflow.keras import callbacks, layers, models, optimizers

FOLDS = 3
DEVICE = "TPU"


def get_strategy():
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
                print("initializing  TPU ...")
                tf.config.experimental_connect_to_cluster(tpu)
                tf.tpu.experimental.initialize_tpu_system(tpu)
                return tf.distribute.experimental.TPUStrategy(tpu)
            except Exception:
                print("failed to initialize TPU")
    print("Using default strategy for CPU and single GPU")
    return tf.distribute.get_strategy()


def create_model(columns):
    inp = tf.keras.layers.Input(shape=(columns,))
    x = layers.BatchNormalization()(inp)
    for units in (32, 16):
        x = layers.Dense(units, activation="relu", kernel_regularizer=tf.keras.regularizers.l2(l=1e-4))(x)
        x = layers.Dropout(0.0)(x)
    x = layers.Dense(1, activation="sigmoid")(x)
    model = models.Model(inputs=inp, outputs=x)
    model.compile(
        optimizer=optimizers.Adam(lr=1e-3),
        loss=tf.keras.losses.BinaryCrossentropy(label_smoothing=0.05),
        metrics=[tf.keras.metrics.AUC(name="AUC")],
    )
    return model


def fill(model):
    rng = np.random.RandomState(42)
    model.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in model.get_weights()])


X, y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)
oof = np.zeros(len(X))
histories = {}

for fold, (tr, te) in enumerate(StratifiedKFold(FOLDS, shuffle=True, random_state=1).split(X, y)):
    K.clear_session()
    strategy = get_strategy()
    with strategy.scope():
        model = create_model(X.shape[1])
    fill(model)
    rlr = callbacks.ReduceLROnPlateau(
        monitor="val_AUC", mode="max", factor=0.1, patience=1, min_delta=0.01, verbose=1
    )
    sv = callbacks.ModelCheckpoint(
        "fold-%i.h5" % fold,
        monitor="val_loss",
        verbose=0,
        save_best_only=True,
        save_weights_only=True,
        mode="min",
        save_freq="epoch",
    )
    es = callbacks.EarlyStopping(
        monitor="val_loss", min_delta=1e-5, patience=2, mode="min", restore_best_weights=True
    )
    history = model.fit(
        X[tr],
        y[tr],
        validation_data=(X[te], y[te]),
        epochs=3,
        batch_size=64,
        callbacks=[rlr, sv, es],
        shuffle=False,
        verbose=0,
    )
    histories["fold%d" % fold] = {k: [float(value) for value in v] for k, v in history.history.items()}
    model.load_weights("fold-%i.h5" % fold)
    oof[te] = model.predict(X[te], verbose=0)[:, 0]
    del model
    gc.collect()

print("OOF AUC", roc_auc_score(y, oof))
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": histories,
        "auc": float(roc_auc_score(y, oof)),
        "predictions": oof[:40].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
