"""Keras on JAX goes on dispatching steps while callbacks run in another thread, unless one of them forbids it."""

import contextlib
import threading

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax")

BATCHES = 12


def fit(callbacks, scope, **options):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(16 * BATCHES, 6)).astype("float32")
    with scope:
        inputs = keras.Input((6,))
        model = kte.TPUModel(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", loss_scale="dynamic")
    history = model.fit(x, x[:, :1], batch_size=16, verbose=0, shuffle=False, callbacks=callbacks, **options).history
    return model, history


@pytest.fixture
def dispatching(monkeypatch):
    """What Keras decided in each `fit`."""
    decided, original = [], keras.callbacks.CallbackList.on_train_begin

    def on_train_begin(self, logs=None):
        decided.append(self._async_train)
        original(self, logs)

    monkeypatch.setattr(keras.callbacks.CallbackList, "on_train_begin", on_train_begin)
    return decided


class Overrides(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


OURS = {
    "Throughput": lambda: kte.callbacks.Throughput(),
    "HostBottleneck": lambda: kte.callbacks.HostBottleneck(verbose=False),
    "Recompilations": lambda: kte.callbacks.Recompilations(),
    "LossScaleMonitor": lambda: kte.callbacks.LossScaleMonitor(window=1, verbose=False),
}


@pytest.mark.parametrize("name", OURS)
def test_our_callbacks_leave_it_on(scope8, dispatching, name):
    fit([OURS[name]()], scope8)
    assert dispatching == [True]


def test_a_callback_that_hears_of_batches_and_is_not_async_safe_turns_it_off(scope8, dispatching):
    fit([*(make() for make in OURS.values()), Overrides()], scope8)
    assert dispatching == [False]


class Blocks(keras.callbacks.Callback):
    """Waits in the hook after the first batch until later ones were begun, if that can be."""

    async_safe = True

    def __init__(self):
        super().__init__()
        self.begun, self.begun_while_blocked, self.threads = 0, None, set()
        self.go_on = threading.Event()

    def on_train_batch_begin(self, batch, logs=None):
        self.begun += 1
        if self.begun == BATCHES:
            self.go_on.set()

    def on_train_batch_end(self, batch, logs=None):
        self.threads.add(threading.current_thread())
        if self.begun_while_blocked is None:
            self.begun_while_blocked = -1
            if self.go_on.wait(timeout=30):
                self.begun_while_blocked = self.begun


def test_the_main_thread_runs_ahead_of_a_hook_that_blocks(scope8):
    blocks = Blocks()
    _, history = fit([*(make() for make in OURS.values()), blocks], scope8)
    assert blocks.begun_while_blocked == BATCHES  # all steps were dispatched while the first hook had not returned
    assert threading.main_thread() not in blocks.threads
    assert history["loss_scale/skipped_steps"] == [0]
    assert "throughput/batches_per_sec" in history


def test_without_it_a_hook_holds_the_main_thread_up(scope8):
    class Holds(Blocks):
        async_safe = False

        def on_train_batch_end(self, batch, logs=None):
            self.threads.add(threading.current_thread())
            if self.begun_while_blocked is None:
                self.begun_while_blocked = -1 if self.go_on.wait(timeout=0.5) else self.begun

    holds = Holds()
    fit([holds], scope8)
    assert holds.begun_while_blocked == 1
    assert holds.threads == {threading.main_thread()}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "HostBottleneck")) for name in OURS],
)
def test_hooks_that_come_late_never_touch_the_model(scope8, name):
    """Reading it in their thread would meet the next step, which uses the arrays up; that ended the process once."""
    callback, readers = OURS[name](), set()

    class Watched(type(callback)):
        @property
        def model(self):
            readers.add(threading.current_thread())
            return super().model

    callback.__class__ = Watched
    fit([callback], scope8, epochs=3)
    assert readers == {threading.main_thread()}


class IsLate(keras.callbacks.Callback):
    """Lets the hook after the last batch wait until the validation has begun, and trained examples were counted."""

    async_safe = True

    def __init__(self):
        super().__init__()
        self.validating = threading.Event()
        self.was_late = []

    def on_train_batch_end(self, batch, logs=None):
        if batch == BATCHES - 1:
            self.was_late.append(self.validating.wait(timeout=30))

    def on_test_begin(self, logs=None):
        self.validating.set()

    def on_epoch_end(self, epoch, logs=None):
        self.validating.clear()


def test_examples_are_counted_where_the_last_batch_ends_after_validation_has_begun():
    late = IsLate()
    ticks = iter(range(10**6))
    throughput = kte.callbacks.Throughput(clock=lambda: float(next(ticks)), warmup=0)
    validation = (np.ones((16, 6), "float32"), np.ones((16, 1), "float32"))
    # The callback that is late stands before: what it holds up holds up Throughput's own hook.
    fit([late, throughput], contextlib.nullcontext(), epochs=3, validation_data=validation)
    assert late.was_late == [True, True, True]
    for record in throughput.epoch_records:
        assert record.samples_per_sec == pytest.approx(16 * record.batches_per_sec)
