"""Callbacks that are called, and timed, through one object."""

import threading

import keras
import pytest

from keras_tpu_ext.callbacks import AutoResume
from keras_tpu_ext.callbacks._buckets import Buckets
from keras_tpu_ext.callbacks._hooks import Hooks, bucket_of

pytestmark = pytest.mark.gate_on("keras3_jax")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Takes(keras.callbacks.Callback):
    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds, self.called = clock, seconds, []

    def on_epoch_end(self, epoch, logs=None):
        self.called.append((epoch, logs))
        self.clock.now += self.seconds


class TakesMore(Takes):
    def on_batch_end(self, batch, logs=None):  # which Keras calls after a train batch
        self.called.append((batch, logs))
        self.clock.now += 2 * self.seconds


def hooks(clock, *callbacks):
    buckets = Buckets(clock, lambda: 0.0, 0.0, "idle")
    return buckets, Hooks(callbacks, buckets)


def test_each_callback_is_called_in_its_order_and_charged():
    clock = Clock()
    one, other = Takes(clock, 1.0), TakesMore(clock, 2.0)
    buckets, called = hooks(clock, one, other)
    clock.now = 0.5
    called.on_epoch_end(3, {"loss": 1})
    called.on_train_batch_end(7, None)
    called.on_train_batch_begin(7, None)
    assert one.called == [(3, {"loss": 1})]
    assert other.called == [(3, {"loss": 1}), (7, None)]
    assert called.names == ["callbacks/Takes", "callbacks/TakesMore"]
    assert called.of_batches == [0.0, 4.0]
    charged = {"callbacks/Takes": 1.0, "callbacks/TakesMore": 2.0}
    assert buckets.until(clock.now) == {"idle": clock.now - 3.0, **charged}


def test_a_hook_in_another_thread_is_called_but_not_charged():
    clock = Clock()
    callback = TakesMore(clock, 1.0)
    _, called = hooks(clock, callback)
    thread = threading.Thread(target=called.on_train_batch_end, args=(4,))
    thread.start()
    thread.join()
    assert callback.called == [(4, None)]
    assert called.of_batches == [0.0]


def test_hooks_of_batches_that_do_nothing_are_not_called():
    clock = Clock()
    nothing, later = Takes(clock, 1.0), Takes(clock, 1.0)
    _, called = hooks(clock, nothing, later)
    nothing.on_train_batch_end = later.on_train_batch_end = later.called.append
    called.on_train_batch_end(0)
    assert later.called == []
    called.find_doing()  # at the begin of an epoch
    called.on_train_batch_end(1)
    assert later.called == [1, 1]
    assert called.of_batches == [0.0, 0.0]


def test_a_hook_that_raises_is_charged_to_what_is_open():
    clock = Clock()
    callback = Takes(clock, 1.0)
    callback.called = None
    buckets, called = hooks(clock, callback)
    with pytest.raises(AttributeError):
        called.on_epoch_end(0)
    clock.now = 3.0
    assert buckets.until(clock.now) == {"idle": 3.0}


def test_the_model_and_the_parameters_are_passed_on():
    callback = Takes(Clock(), 0.0)
    _, called = hooks(Clock(), callback)
    model = keras.Sequential([keras.layers.Dense(1)])
    called.set_model(model)
    called.set_params({"steps": 4})
    assert (callback.model, callback.params) == (model, {"steps": 4})


def test_what_saves_has_one_bucket(tmp_path):
    assert bucket_of(keras.callbacks.ModelCheckpoint("a.keras")) == "checkpoint"
    assert bucket_of(keras.callbacks.BackupAndRestore(tmp_path)) == "checkpoint"
    assert bucket_of(AutoResume(tmp_path)) == "checkpoint"
    assert bucket_of(keras.callbacks.EarlyStopping()) == "callbacks/EarlyStopping"
