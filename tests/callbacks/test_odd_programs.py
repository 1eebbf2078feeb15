"""Callbacks that share a ledger, in programs that do odd things during a `fit`: what is learned stays the same."""

import copy

import keras
import numpy as np
import pytest

import sources
from keras_tpu_ext import _runtime
from keras_tpu_ext.callbacks import Goodput, HostBottleneck, Recompilations
from keras_tpu_ext.errors import NothingMeasuredError

X = np.random.default_rng(0).normal(size=(96, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
BATCH = 4


def built():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.build((None, 3))
    return model


class Does(keras.callbacks.Callback):
    """Does something in one hook."""

    def __init__(self, hook, deed):
        super().__init__()
        setattr(self, hook, lambda number, logs=None: deed(self.model, number))


def train_on_batch(model, _):
    model.train_on_batch(X[:BATCH], Y[:BATCH])


def make_anew(model, batch):
    if batch % 3 == 2:
        model.make_train_function(force=True)


def fit_again(model, number):
    if number % 5 == 4:
        model.fit(X[:16], Y[:16], batch_size=BATCH, verbose=0, shuffle=False)


@pytest.mark.parametrize(
    ("hook", "deed"),
    [
        ("on_train_batch_end", train_on_batch),
        ("on_train_batch_begin", train_on_batch),
        ("on_epoch_end", train_on_batch),
        ("on_train_batch_end", make_anew),
        ("on_train_batch_end", fit_again),
    ],
)
def test_a_callback_that_trains_gets_its_own_batches_and_fit_gets_its_own(hook, deed):
    weights, goodput, bottleneck = [], Goodput(), HostBottleneck(verbose=False)
    for ours in ([], [goodput, bottleneck]):
        model = built()
        given = [*ours, Does(hook, deed)]
        model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=given)
        weights.append(model.get_weights())
        assert not hasattr(model.train_function, "by")
    assert bottleneck.probes or _runtime.keras.backend.backend() == "jax" or deed is not train_on_batch
    for without, beside in zip(*weights, strict=True):
        np.testing.assert_array_equal(without, beside)
    report = goodput.report()
    assert sum(report.seconds.values()) == pytest.approx(report.wall_seconds, rel=0.01)


@pytest.mark.filterwarnings("ignore:HostBottleneck could not")
@pytest.mark.skipif(not sources.HAS_TF_DATA, reason="TensorFlow is not installed")
@pytest.mark.parametrize("last", [2, 3, 4])
def test_an_epoch_that_ends_within_a_probe_loses_no_batch(last):
    import tensorflow as tf

    def stop(model, batch):
        model.stop_training = batch == last

    def go_on(model, _):
        model.stop_training = False

    weights = []
    for ours in ([], [HostBottleneck(verbose=False)]):
        model = built()
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).repeat()
        given = [*ours, Does("on_train_batch_end", stop), Does("on_epoch_end", go_on)]
        model.fit(data, steps_per_epoch=20, epochs=3, shuffle=False, verbose=0, callbacks=given)
        weights.append(model.get_weights())
    for without, beside in zip(*weights, strict=True):
        np.testing.assert_array_equal(without, beside)


def test_a_fit_gives_a_list_of_callbacks_back():
    model, appended = built(), keras.callbacks.Callback()
    container = keras.callbacks.CallbackList([Goodput()], add_history=True, model=model)
    before = list(container.callbacks)
    container.callbacks[0].on_epoch_end = lambda epoch, logs=None: container.callbacks.append(appended)
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=container)
    assert container.callbacks == [*before, appended]


class SetsItsHook(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.epochs = []
        self.on_epoch_end = lambda epoch, logs=None: self.epochs.append(epoch)


def test_a_hook_that_a_callback_sets_as_training_begins_is_called():
    late = SetsItsHook()
    built().fit(X, Y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[Goodput(), late])
    assert late.epochs == [0, 1]


def interrupt(model, _):
    raise KeyboardInterrupt


@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end", "on_test_batch_end", "on_epoch_end"])
def test_a_fit_that_is_interrupted_leaves_the_functions_as_they_were(hook):
    model = built()
    given = [Recompilations(), Goodput(), HostBottleneck(verbose=False), Does(hook, interrupt)]
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=BATCH, verbose=0, validation_data=(X, Y), callbacks=given)
    assert not hasattr(model.train_function, "by")
    assert not hasattr(model.test_function, "by")


@pytest.mark.parametrize("kind", [Goodput, Recompilations])
def test_a_copy_has_measured_nothing_and_can_measure(kind):
    callback = kind()
    built().fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[callback])
    other = copy.deepcopy(callback)
    with pytest.raises(NothingMeasuredError):
        other.report()
    built().fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[other])
    assert other.report()


def test_a_loop_of_ones_own_runs_with_them():
    model = built()
    given = [Goodput(), HostBottleneck(verbose=False), Recompilations()]
    called = keras.callbacks.CallbackList(given, model=model)
    called.on_train_begin()
    called.on_epoch_begin(0)
    for batch in range(3):
        called.on_train_batch_begin(batch)
        loss = model.train_on_batch(X[:BATCH], Y[:BATCH])
        called.on_train_batch_end(batch, {"loss": loss})
    logs = {}
    called.on_epoch_end(0, logs)
    called.on_train_end()
    assert not hasattr(model.train_function, "by")
