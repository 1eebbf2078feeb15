"""Callbacks of old Keras."""

import contextlib
import os
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from dropin.old_keras_cases import EXPECTED, assert_same, cases
from keras_tpu_ext.dropin import report

pytestmark = pytest.mark.runtimes("keras3_jax")
callbacks = tf.keras.callbacks
X, Y = cases.values(8, 4), np.arange(8) % 2


def trained(*given, epochs=3, metrics=("acc",), **kwargs):
    model = cases.small_model("sigmoid")
    model.compile(tf.keras.optimizers.SGD(lr=0.1), "binary_crossentropy", metrics=list(metrics))
    validation = {"validation_data": (X, Y), "epochs": epochs, "verbose": 0, **kwargs}
    return model, model.fit(X, Y, callbacks=list(given), **validation)


def test_rates_as_then():
    found = cases.callbacks_case()
    expected = {key: value for key, value in EXPECTED["callbacks"].items() if key != "keys"}
    assert_same(found, expected)


@pytest.mark.parametrize("name", cases.STOPPING)
def test_early_stopping_as_then(name):
    assert_same(cases.stopping_case(name), EXPECTED[f"stopping {name}"])


@pytest.mark.parametrize(
    "schedule",
    [
        lambda epoch: 0.1 / (epoch + 1),
        lambda epoch, lr: lr * 0.5,
        lambda epoch: np.float32(0.5),
        lambda epoch: tf.constant(0.1) * 0.5,
        lambda epoch: tf.math.exp(-0.1),
        tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
    ],
)
def test_schedules_of_any_kind(schedule):
    _, history = trained(callbacks.LearningRateScheduler(schedule, verbose=0))
    assert len(history.history["lr"]) == 3
    assert all(rate > 0 for rate in history.history["lr"])


def test_period(tmp_path):
    trained(callbacks.ModelCheckpoint(str(tmp_path / "m-{epoch:02d}-{val_loss:.2f}.h5"), period=2), epochs=5)
    assert sorted(name[:4] for name in os.listdir(tmp_path)) == ["m-02", "m-04"]


def test_best_by_an_unknown_name_saves_nothing(tmp_path):
    trained(callbacks.ModelCheckpoint(str(tmp_path / "m.h5"), monitor="val_auc_3", save_best_only=True))
    assert not os.listdir(tmp_path)
    assert "val_auc_3" in report.summary()


def f1(y_true, y_pred):
    return tf.reduce_mean(tf.cast(tf.equal(tf.round(y_pred), tf.cast(y_true, tf.float32)), tf.float32))


@pytest.mark.parametrize(
    ("make", "larger"),
    [
        (lambda: callbacks.EarlyStopping("val_acc"), True),
        (lambda: callbacks.EarlyStopping("val_auc"), True),
        (lambda: callbacks.EarlyStopping("val_f1"), False),
        (lambda: callbacks.ModelCheckpoint("m.h5", "val_auc", save_best_only=True), False),
        (lambda: callbacks.ModelCheckpoint("m.h5", "val_acc", save_best_only=True), True),
        (lambda: callbacks.ReduceLROnPlateau("val_f1"), False),
        (lambda: callbacks.ReduceLROnPlateau("val_f1", mode="max"), True),
        (lambda: callbacks.ReduceLROnPlateau("val_acc", min_delta=0.1), True),
    ],
)
def test_auto_chooses_by_the_name(make, larger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback = make()
    trained(callback, metrics=["acc", f1, tf.keras.metrics.AUC(name="auc")], epochs=1)
    assert bool(callback.monitor_op(2, 1)) is larger
    assert np.sign(callback.min_delta) in (0, 1 if larger else -1)


def test_old_arguments(tmp_path):
    plateau = callbacks.ReduceLROnPlateau(epsilon=0.2)
    assert plateau.min_delta == 0.2
    stopping = callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True, min_delta=10.0)
    board = callbacks.TensorBoard(str(tmp_path), write_grads=True, batch_size=32, update_freq="epoch")
    assert board.log_dir == str(tmp_path)
    _, history = trained(stopping, epochs=9)
    assert len(history.epoch) == 2
    assert callbacks.experimental.BackupAndRestore is keras.callbacks.BackupAndRestore


class Own(callbacks.Callback):
    """A callback as kernels wrote it."""

    def __init__(self, model=None):
        self.model = model
        self.batches = 0
        self.rates = []

    def on_batch_end(self, batch, logs={}):  # noqa: B006, as it was written
        self.batches += 1
        assert "loss" in logs

    def on_epoch_end(self, epoch, logs={}):  # noqa: B006
        assert self.validation_data is None
        self.rates.append(float(tf.keras.backend.get_value(self.model.optimizer.lr)))
        tf.keras.backend.set_value(self.model.optimizer.lr, self.rates[-1] / 2)
        if logs.get("val_acc") >= 0:
            self.model.stop_training = epoch == self.params["epochs"] - 2


def test_own_callback():
    own = Own()
    seen = []
    _, history = trained(
        own, callbacks.LambdaCallback(on_batch_end=lambda batch, logs: seen.append(batch)), batch_size=4
    )
    assert own.batches == len(seen) == 4
    np.testing.assert_allclose(own.rates, [0.1, 0.05])
    assert len(history.history["loss"]) == 2


class Worse(callbacks.Callback):
    """Makes what is monitored worse from epoch to epoch."""

    def on_epoch_end(self, epoch, logs):
        logs["worse"] = epoch


@pytest.mark.parametrize("is_old", [False, True])
def test_only_old_programs_have_the_callbacks_of_then(is_old, no_old_name_yet, tmp_path, capsys):
    if is_old:
        report.mapped("lr=", "learning_rate=")
    first, path = [], str(tmp_path / "m.keras")
    model = cases.small_model("sigmoid")
    model.compile("sgd", "binary_crossentropy", metrics=["mae"])
    stopping = callbacks.EarlyStopping("worse", mode="min", patience=9, restore_best_weights=True)
    best = callbacks.ModelCheckpoint(path, "unknown", mode="min", save_best_only=True)
    plateau = callbacks.ReduceLROnPlateau("loss")
    keep = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: first.append(model.get_weights()[0]))
    with pytest.warns(UserWarning, match="unknown") if not is_old else contextlib.nullcontext():
        history = model.fit(X, Y, epochs=2, verbose=0, callbacks=[Worse(), stopping, best, plateau, keep]).history
    np.testing.assert_array_equal(model.get_weights()[0], first[1 if is_old else 0])
    assert os.path.exists(path) is not is_old
    assert ("lr" in history, "learning_rate" in history) == (is_old, not is_old)
    assert (report.summary() == "keras_tpu_ext.dropin: nothing was mapped.") is not is_old
    assert ("as in Keras 3" in capsys.readouterr().out) is not is_old
    assert history["lr"] == history["learning_rate"] == pytest.approx([0.01, 0.01])
    assert type(pickle.loads(pickle.dumps(history))) is dict
    with pytest.raises(KeyError, match="rate"):
        history["rate"]


@pytest.mark.parametrize("is_old", [False, True])
def test_a_direction_that_keras_3_knows_better(is_old, no_old_name_yet):
    if is_old:
        report.mapped("lr=", "learning_rate=")
    stopping = callbacks.EarlyStopping("val_precision")
    model = cases.small_model("sigmoid")
    model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.Precision(name="precision")])
    model.fit(X, Y, validation_data=(X, Y), epochs=1, verbose=0, callbacks=[stopping])
    assert bool(stopping.monitor_op(2, 1)) is not is_old
