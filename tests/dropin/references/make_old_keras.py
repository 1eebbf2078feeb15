"""Old Keras code, and the numbers that it gave: written by Keras 2.15, compared by tests/dropin/test_old_*.py.

    .envs/keras2-tf215/bin/python tests/dropin/references/make_old_keras.py

writes old_keras.json and the files in old_keras/. Each case is a function that returns what JSON can hold, written as
kernels of 2020 to 2022 were. Optimizers are those of `optimizers.legacy`: `tf.keras.optimizers` of before 2.11.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
FILES = HERE / "old_keras"

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "decay": 0.3, "momentum": 0.9, "nesterov": True},
    "SGD plain": {"lr": 0.1, "clipvalue": 0.2},
    "Adam": {"lr": 0.1, "decay": 0.3},
    "Adam amsgrad": {"lr": 0.1, "amsgrad": True, "epsilon": None, "clipnorm": 0.5},
    "RMSprop": {"lr": 0.1, "decay": 0.0, "momentum": 0.2},
    "RMSprop plain": {"lr": 0.1, "decay": 0.0, "epsilon": 0.1},
    "Adagrad": {"lr": 0.5},
    "Adadelta": {"lr": 1.0},
    "Adamax": {"lr": 0.1, "decay": 0.1},
    "Ftrl": {"learning_rate": 0.5},
}


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random numbers."""
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def fill(model: tf.keras.Model) -> tf.keras.Model:
    """Fill the weights of a model with random numbers that depend on nothing but its shapes."""
    made = [values(*w.shape, seed=i) for i, w in enumerate(model.weights)]
    model.set_weights([abs(m) if "variance" in w.name else m for m, w in zip(made, model.weights, strict=True)])
    return model


def small_model(activation: str | None = None, units: int = 1) -> tf.keras.Model:
    """Return a model of one layer."""
    return fill(tf.keras.Sequential([tf.keras.layers.Dense(units, activation=activation, input_shape=(4,))]))


def rounded(history: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return what JSON can hold."""
    return {key: [float(value) for value in row] for key, row in history.items()}


def optimizer_case(name: str) -> dict[str, object]:
    """Train with an old optimizer; the rate that it says is the one that it was made with."""
    optimizer = getattr(tf.keras.optimizers.legacy, name.split()[0])(**OPTIMIZERS[name])
    model = small_model()
    model.compile(optimizer=optimizer, loss="mse")
    history = model.fit(values(8, 4), values(8, 1, seed=1), batch_size=4, epochs=3, shuffle=False, verbose=0)
    return {
        "history": rounded(history.history),
        "weights": [w.tolist() for w in model.get_weights()],
        "lr": float(tf.keras.backend.get_value(model.optimizer.lr)),
    }


def two_outputs(**compile_args: object) -> tf.keras.Model:
    """Return a compiled model with two outputs."""
    x = tf.keras.layers.Input(shape=(4,))
    a = tf.keras.layers.Dense(1, name="a", activation="sigmoid")(x)
    b = tf.keras.layers.Dense(3, name="b", activation="softmax")(x)
    model = fill(tf.keras.Model(inputs=x, outputs=[a, b]))
    model.compile(optimizer="sgd", loss=["binary_crossentropy", "sparse_categorical_crossentropy"], **compile_args)
    return model


TWO_OUTPUTS = {
    "one flat list": {"metrics": ["accuracy"]},
    "one flat list of two": {"metrics": ["mae", "mse"]},
    "dict": {"metrics": {"a": "acc", "b": ["accuracy", "mae"]}, "loss_weights": {"a": 0.5, "b": 2.0}},
    "lists": {"metrics": [["acc"], ["mae"]], "loss_weights": [0.5, 2.0]},
    "none": {},
}


def two_outputs_case(name: str) -> dict[str, object]:
    """Train a model with two outputs: the keys, their order and their values."""
    model = two_outputs(**TWO_OUTPUTS[name])
    labels = [np.arange(8) % 2, np.arange(8) % 3]
    history = model.fit(
        values(8, 4), labels, batch_size=4, epochs=2, shuffle=False, verbose=0, validation_data=(values(8, 4), labels)
    )
    evaluated = model.evaluate(values(8, 4), labels, verbose=0)
    return {
        "history": rounded(history.history),
        "keys": list(history.history),
        "evaluate": [float(value) for value in evaluated],
        "metrics_names": list(model.metrics_names),
    }


def f1(y_true: object, y_pred: object) -> object:
    """Return a metric as kernels write it."""
    return tf.reduce_mean(tf.cast(tf.equal(tf.round(y_pred), tf.cast(y_true, tf.float32)), tf.float32))


METRICS = {
    "acc": lambda: ["acc"],
    "accuracy": lambda: ["accuracy"],
    "AUC": lambda: [tf.keras.metrics.AUC(), "accuracy"],
    "binary_accuracy": lambda: ["binary_accuracy", "AUC"],
    "mixed": lambda: ["mae", "mse", tf.keras.metrics.BinaryAccuracy(name="ba"), "MeanAbsoluteError", f1],
    "functions": lambda: [tf.keras.metrics.mean_absolute_error, tf.keras.losses.binary_crossentropy],
}


def metrics_case(name: str) -> dict[str, object]:
    """Train a classifier with metrics: the keys, their order and their values."""
    tf.keras.backend.clear_session()
    model = small_model("sigmoid")
    model.compile("sgd", "binary_crossentropy", METRICS[name]())
    labels = np.arange(8) % 2
    history = model.fit(
        values(8, 4), labels, batch_size=4, epochs=2, shuffle=False, verbose=0, validation_data=(values(8, 4), labels)
    )
    return {
        "history": rounded(history.history),
        "keys": list(history.history),
        "evaluate": [float(value) for value in model.evaluate(values(8, 4), labels, verbose=0)],
        "metrics_names": list(model.metrics_names),
    }


def per_pixel(y_true: object, y_pred: object) -> object:
    """Return a loss for each number."""
    return tf.square(y_true - y_pred)


def scalar(y_true: object, y_pred: object) -> object:
    """Return one number for a batch."""
    return tf.reduce_sum(tf.square(y_true - y_pred))


def dtype_of_labels(y_true: object, y_pred: object) -> object:
    """Return a loss that fails unless labels have the predictions' type and rank."""
    assert y_true.dtype == y_pred.dtype
    assert len(y_true.shape) == len(y_pred.shape)
    return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)


class SquaredLoss(tf.keras.losses.Loss):
    """A loss as a class."""

    def call(self, y_true: object, y_pred: object) -> object:
        """Return a loss for each example."""
        return tf.reduce_mean(tf.square(tf.cast(y_true, tf.float32) - y_pred), axis=-1)


def whole_numbers(y_true: object, y_pred: object) -> object:
    """Return a loss that takes the labels as places in a list, uncast."""
    return tf.reduce_mean(tf.abs(tf.gather(tf.constant([0.5, -1.0, 2.0]), y_true) - y_pred), axis=-1)


LOSSES = {
    "whole numbers": lambda: whole_numbers,
    "per pixel": lambda: per_pixel,
    "scalar": lambda: scalar,
    "labels": lambda: dtype_of_labels,
    "class": lambda: SquaredLoss(),
    "class auto": lambda: SquaredLoss(reduction=tf.keras.losses.Reduction.AUTO, name="squared"),
    "class sum": lambda: SquaredLoss(tf.keras.losses.Reduction.SUM),
    "smoothing": lambda: tf.keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
    "mse": lambda: tf.keras.losses.mean_squared_error,
}


def loss_case(name: str) -> dict[str, object]:
    """Train with a loss on labels of shape (n,), with weights of examples too."""
    model = small_model()
    model.compile(tf.keras.optimizers.legacy.SGD(lr=0.01), loss=LOSSES[name]())
    weights = None if name == "scalar" else np.arange(8) / 4.0
    labels = np.arange(8) % 3 if "class" in name or "whole" in name else np.arange(8) / 3.0
    history = model.fit(values(8, 4), labels, sample_weight=weights, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return {"history": rounded(history.history), "weights": [w.tolist() for w in model.get_weights()]}


def callbacks_case() -> dict[str, object]:
    """Train with callbacks that change the rate: what they write, and what an own callback sees."""
    seen = []

    class Own(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            seen.append([float(logs.get("lr", -1)), float(tf.keras.backend.get_value(self.model.optimizer.lr))])

    model = small_model()
    model.compile(tf.keras.optimizers.legacy.SGD(lr=0.1, decay=0.1), loss="mse", metrics=["mae"])
    plateau = tf.keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1.0, verbose=0)
    history = model.fit(
        values(8, 4), values(8, 1), batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=[plateau, Own()]
    )
    scheduled = model.fit(
        values(8, 4),
        values(8, 1),
        batch_size=4,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * 0.5**epoch)],
    )
    return {
        "plateau": rounded(history.history),
        "scheduler": rounded(scheduled.history),
        "seen": seen,
        "keys": list(scheduled.history),
    }


STOPPING = {
    "stops": {"patience": 1, "min_delta": 1.0, "restore_best_weights": True},
    "runs to the end": {"patience": 9, "min_delta": 1.0, "restore_best_weights": True},
    "baseline": {"patience": 2, "baseline": 0.0},
    "larger is better": {"monitor": "mae", "mode": "max", "patience": 2},
}


def stopping_case(name: str) -> dict[str, object]:
    """Train with early stopping: how long, and with which weights it ends."""
    model = small_model()
    model.compile(tf.keras.optimizers.legacy.SGD(lr=0.1), loss="mse", metrics=["mae"])
    callback = tf.keras.callbacks.EarlyStopping(**{"monitor": "loss", **STOPPING[name]})
    history = model.fit(
        values(8, 4), values(8, 1), batch_size=4, epochs=5, shuffle=False, verbose=0, callbacks=[callback]
    )
    return {"epochs": len(history.epoch), "weights": [w.tolist() for w in model.get_weights()]}


def regularizers_case() -> dict[str, float]:
    """Return what regularizers give with their old arguments and defaults."""
    weights = tf.constant(values(3, 2))
    regularizers = tf.keras.regularizers
    made = {
        "l2(0.1)": regularizers.l2(0.1),
        "l2(l=)": regularizers.l2(l=0.1),
        "l1(l=)": regularizers.l1(l=0.1),
        "l1_l2()": regularizers.l1_l2(),
        "l1_l2(l2=)": regularizers.l1_l2(l2=0.3),
        "L1L2(l2=)": regularizers.L1L2(l2=0.3),
    }
    return {name: float(regularizer(weights)) for name, regularizer in made.items()}


def activations_case() -> dict[str, list[float]]:
    """Return what activations give."""
    x = tf.constant(values(9) * 4)
    names = ["hard_sigmoid", "relu", "elu", "selu", "softplus", "softsign", "swish", "gelu", "exponential", "tanh"]
    return {name: np.asarray(tf.keras.activations.get(name)(x)).tolist() for name in names}


def layers_case() -> dict[str, object]:
    """Return what layers with old arguments compute."""
    layers, backend = tf.keras.layers, tf.keras.backend
    backend.clear_session()
    made = {
        "LSTM": layers.LSTM(3, implementation=2),
        "GRU": layers.GRU(3),
        "GRU reset_after": layers.GRU(3, reset_after=False, recurrent_activation="hard_sigmoid"),
        "SimpleRNN": layers.SimpleRNN(3),
        "BatchNormalization": layers.BatchNormalization(axis=[2], fused=False),
        "LayerNormalization": layers.LayerNormalization(),
        "LeakyReLU": layers.LeakyReLU(alpha=0.2),
        "Conv1D": layers.Conv1D(2, 3, padding="causal", kernel_regularizer=tf.keras.regularizers.l2(l=0.1)),
        "AveragePooling1D": layers.AveragePooling1D(),
        "ConvLSTM1D": layers.ConvLSTM1D(2, 3),
        "Bidirectional": layers.Bidirectional(layers.LSTM(2, return_sequences=True)),
    }
    result = {}
    for name, layer in made.items():
        shape = (6, 4, 3) if "ConvLSTM" in name else (6, 4)
        model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=shape), layer])
        result[name] = np.asarray(fill(model).predict(values(2, *shape), verbose=0)).tolist()
    return result


def cases() -> dict[str, object]:
    """Run all cases."""
    return {
        **{f"optimizer {name}": optimizer_case(name) for name in OPTIMIZERS},
        **{f"outputs {name}": two_outputs_case(name) for name in TWO_OUTPUTS},
        **{f"metrics {name}": metrics_case(name) for name in METRICS},
        **{f"loss {name}": loss_case(name) for name in LOSSES},
        **{f"stopping {name}": stopping_case(name) for name in STOPPING},
        "callbacks": callbacks_case(),
        "regularizers": regularizers_case(),
        "activations": activations_case(),
        "layers": layers_case(),
    }


def conv_model() -> tf.keras.Model:
    """Return a model with the layers that files of kernels hold."""
    layers = tf.keras.layers
    x = layers.Input(shape=(8, 8, 3), name="image")
    y = layers.Conv2D(4, 3, padding="same", activation="relu", name="conv")(x)
    y = layers.BatchNormalization(name="bn")(y)
    y = layers.MaxPooling2D(2, name="pool")(y)
    y = layers.GlobalAveragePooling2D(name="gap")(y)
    y = layers.Dropout(0.3, name="drop")(y)
    model = tf.keras.Model(inputs=x, outputs=layers.Dense(2, activation="softmax", name="out")(y))
    return fill(model)


def text_model() -> tf.keras.Model:
    """Return a model of a text."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Embedding(20, 4, input_length=6, mask_zero=True, name="embedding"),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True), name="both"),
            layers.GRU(3, name="gru"),
            layers.Dense(1, activation="sigmoid", name="out"),
        ]
    )
    model.build((None, 6))
    return fill(model)


MODELS = {"conv": (conv_model, values(2, 8, 8, 3) ** 2), "text": (text_model, np.arange(12).reshape(2, 6) % 7)}


def write_files() -> dict[str, object]:
    """Write files of weights and of whole models, and return what the models predict."""
    FILES.mkdir(exist_ok=True)
    predictions = {}
    for name, (build, x) in MODELS.items():
        model = build()
        model.compile(tf.keras.optimizers.legacy.Adam(lr=0.01, decay=0.1), "categorical_crossentropy", ["accuracy"])
        model.save_weights(str(FILES / f"{name}_weights.h5"))
        model.save_weights(str(FILES / f"{name}_checkpoint"))
        model.save(str(FILES / f"{name}_model.h5"))
        predictions[name] = model.predict(x, verbose=0).tolist()
    return predictions


if __name__ == "__main__":
    text = json.dumps({**cases(), "files": write_files()}, indent=None, separators=(",", ":"))
    (HERE / "old_keras.json").write_text(text.replace('"optimizer', '\n"optimizer') + "\n")
