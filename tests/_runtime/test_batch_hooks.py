"""Whom `steps_per_execution="auto"` has to spare."""

import keras
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.training.execution_schedule import needing_every_batch
from keras_tpu_ext._runtime.training.fit_call import FitCall


class Child(keras.callbacks.ModelCheckpoint):
    def on_train_batch_end(self, batch, logs=None):
        """See every batch, whatever the parent does."""


class Easy(Child):
    wants_every_batch = False


def profiling():
    callback = keras.callbacks.TensorBoard()
    callback._should_trace = True  # as profile_batch=5 does; on JAX only from Python 3.12 on
    return callback


EVERY_BATCH = {
    "lambda": lambda: keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None),
    "nan": lambda: keras.callbacks.TerminateOnNaN(),
    "checkpoint": lambda: keras.callbacks.ModelCheckpoint("{epoch}.keras", save_freq=3),
    "backup": lambda: keras.callbacks.BackupAndRestore("backup", save_freq=3),
    "tensorboard": lambda: keras.callbacks.TensorBoard(update_freq=1),
    "steps in tensorboard": lambda: keras.callbacks.TensorBoard(write_steps_per_second=True),
    "profile in tensorboard": profiling,
    "child of a checkpoint": lambda: Child("model.keras"),
}
BY_EPOCH = {
    "none": lambda: None,
    "throughput": lambda: kte.callbacks.Throughput(),
    "early": lambda: keras.callbacks.EarlyStopping(),
    "csv": lambda: keras.callbacks.CSVLogger("log.csv"),
    "rate": lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate),
    "epoch lambda": lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    "checkpoint": lambda: keras.callbacks.ModelCheckpoint("model.keras"),
    "backup": lambda: keras.callbacks.BackupAndRestore("backup"),
    "tensorboard": lambda: keras.callbacks.TensorBoard(),
    "progress bar": lambda: keras.callbacks.ProgbarLogger(),
    "told so": lambda: Easy("model.keras"),
    "test hook": lambda: keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: None),
    "list": lambda: [keras.callbacks.EarlyStopping(), [keras.callbacks.ProgbarLogger()]],
}


def names_of(callbacks, method="fit"):
    return needing_every_batch(FitCall(method, None, (), {"callbacks": callbacks}))


@pytest.mark.parametrize("name", EVERY_BATCH)
def test_who_needs_every_batch(name):
    callback = EVERY_BATCH[name]()
    assert names_of([keras.callbacks.EarlyStopping(), callback]) == [type(callback).__name__]


@pytest.mark.parametrize("name", BY_EPOCH)
def test_who_does_not(name):
    assert names_of(BY_EPOCH[name]()) == []


def test_a_list_that_keras_made():
    made = keras.callbacks.CallbackList([keras.callbacks.TerminateOnNaN()], add_history=True)
    assert names_of(made) == ["TerminateOnNaN"]


def test_test_hooks_count_in_evaluate():
    class Watch(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            """See every batch."""

    assert names_of(Watch(), "evaluate") == ["Watch"]
    assert names_of(keras.callbacks.TerminateOnNaN(), "evaluate") == []
