"""A training that goes on after an interruption, beside the one that was never interrupted."""

import dataclasses
import errno
import functools
import importlib.util
import os
import re
import signal
import sys
import threading
import types
import warnings

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError, CheckpointError, ResumeWarning, ScopeError
from keras_tpu_ext.resume import checkpoint, schedule
from keras_tpu_ext.resume.callback_state import CallbackStates
from keras_tpu_ext.resume.checkpoint import read, write
from keras_tpu_ext.resume.report import resume_report
from keras_tpu_ext.resume.storage import folder_of
from kind_of_keras import IS_KERAS2
from small_fits import Killed, KilledAt

# TensorFlow traces the model of each test for seconds: in the gate it has few.
pytestmark = pytest.mark.gate_on("keras3_jax")
ON_JAX = keras.backend.backend() == "jax"
X = np.random.default_rng(0).normal(size=(90, 4)).astype("float32")
Y = X.sum(axis=1)
EPOCHS, BATCHES = 3, 6


@pytest.fixture(autouse=True, scope="module")
def _layers_draw_from_generators():
    """On Keras 2 layers draw from operations that tell no state, unless they are told otherwise."""
    if not IS_KERAS2:
        yield
        return
    keras.backend.experimental.enable_tf_random_generator()
    yield
    keras.backend.experimental.disable_tf_random_generator()


class Counting(keras.callbacks.Callback):
    """Knows what no attribute of Keras says, and makes a decision of it."""

    def __init__(self):
        super().__init__()
        self.batches = 0
        self.rates = []

    def on_epoch_begin(self, epoch, logs=None):
        self.rates.append(self.batches)

    def on_train_batch_begin(self, batch, logs=None):
        self.batches += 1


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return X[index * 16 : (index + 1) * 16], Y[index * 16 : (index + 1) * 16]


class Drawing(keras.utils.PyDataset):
    """Shuffles its rows after each epoch, and draws noise for each batch."""

    def __init__(self):
        super().__init__()
        self.rows = np.arange(len(X))

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        rows = self.rows[index * 16 : (index + 1) * 16]
        return X[rows] + np.random.normal(size=(len(rows), 4)), Y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.rows)


def generated():
    generator = np.random.default_rng(1)
    while True:
        rows = generator.integers(0, len(X), 16)
        yield X[rows], Y[rows]


def tf_data(*, repeats=False, has_length=True):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50)
    dataset = dataset if has_length else dataset.filter(lambda *_: True)
    return (dataset.repeat() if repeats else dataset).batch(16).prefetch(2)


DATA = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 16},
    "batches by index": lambda: {"x": Batches()},
    "workers": lambda: {"x": Batches(workers=2)},
    "random batches": lambda: {"x": Drawing()},
    "a generator": lambda: {"x": generated(), "steps_per_epoch": BATCHES},
    "tf.data": lambda: {"x": tf_data()},
    "tf.data without a length": lambda: {"x": tf_data(has_length=False)},
    "tf.data, repeated": lambda: {"x": tf_data(repeats=True), "steps_per_epoch": 4},
}
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
if IS_KERAS2:
    del DATA["workers"]  # whose order is by chance there: see test_keras2_auto_resume.py
KINDS = [name for name in DATA if HAS_TENSORFLOW or "tf" not in name]
LATER = pytest.mark.exhaustive
ON_BOTH = pytest.mark.gate_on("keras3_tf", "keras3_jax")
SOME_ON_BOTH = [pytest.param(name, marks=ON_BOTH) if name == "tf.data" else name for name in KINDS]


def model(replicas=3, units=8, layers=1, scope=None, **options):
    with kte.strategy_scope(require="cpu", **({"replicas": replicas} if scope is None else scope)):
        made = keras.Sequential([keras.Input((4,))])
        for _ in range(layers):
            made.add(keras.layers.Dense(units, activation="relu"))
        made.add(keras.layers.BatchNormalization())
        made.add(keras.layers.Dropout(0.3))
        made.add(keras.layers.Dense(1))
        options = {"optimizer": keras.optimizers.Adam(0.02), "loss": "mse", "metrics": ["mae"], **options}
        made.compile(**options)
    return made


def callbacks_of_keras(folder):
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.EarlyStopping(monitor="loss", patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=0, factor=0.5),
    ]


class Trained:
    """One process: what is left of it."""

    def __init__(
        self,
        directory,
        kind="arrays",
        *,
        killed_at=None,
        callbacks=None,
        epochs=EPOCHS,
        made=None,
        validation_freq=1,
        **resume,
    ):
        keras.utils.set_random_seed(3)
        made = model() if made is None else made()
        self.counting = Counting()
        self.resume = None if directory is None else kte.callbacks.AutoResume(directory, **{"every_s": 0, **resume})
        callbacks = callbacks_of_keras(directory) if callbacks is None else list(callbacks)
        callbacks += [self.counting, *([] if self.resume is None else [self.resume])]
        callbacks += [KilledAt(killed_at)]
        self.was_killed = False
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`shuffle=True` was passed", UserWarning)
            warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
            try:
                self.history = made.fit(
                    **DATA[kind](),
                    epochs=epochs,
                    verbose=0,
                    validation_data=(X, Y),
                    validation_freq=validation_freq,
                    callbacks=callbacks,
                )
            except Killed:
                self.was_killed = True
        self.model = made

    def outcome(self):
        return {
            "weights": [value.tobytes() for value in self.model.get_weights()],
            "history": self.history.history,
            "epochs": self.history.epoch,
            "counted": (self.counting.batches, self.counting.rates),
        }


@functools.cache
def uninterrupted(kind, made=None):
    """Return what comes of a training without `AutoResume`."""
    return Trained(None, kind, made=made).outcome()


def check_goes_on(directory, kind, *kills, made=None, **resume):
    for kill in kills:
        assert Trained(directory, kind, killed_at=kill, made=made, **resume).was_killed
    last = Trained(directory, kind, made=made, **resume)
    assert last.resume.finished
    assert last.outcome() == uninterrupted(kind, made)


@pytest.mark.parametrize("kind", ["arrays", *(pytest.param(name, marks=LATER) for name in KINDS if name != "arrays")])
def test_it_changes_nothing(kind, tmp_path):
    trained = Trained(tmp_path, kind)
    assert trained.resume.finished
    assert trained.outcome() == uninterrupted(kind)


@pytest.mark.parametrize("kind", SOME_ON_BOTH)
def test_it_goes_on_in_the_middle_of_an_epoch(kind, tmp_path):
    check_goes_on(tmp_path, kind, 6 if kind == "tf.data, repeated" else 10)


@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith("tf.data")])
def test_it_goes_on_at_the_begin_of_an_epoch(kind, tmp_path):
    check_goes_on(tmp_path, kind, 4 if "repeated" in kind else BATCHES)


@pytest.mark.skipif(ON_JAX, reason="on JAX no order is drawn by TensorFlow")
def test_a_shuffle_without_a_seed_gets_one_that_is_kept(tmp_path, monkeypatch):
    from keras_tpu_ext._runtime.tensorflow import training_state

    def trained(directory, seed, **options):
        monkeypatch.setattr(training_state, "global_seed", lambda: None)
        monkeypatch.setattr(training_state.random, "randrange", lambda limit: seed)
        return Trained(tmp_path / directory, **options)

    trained("resumed", seed=7, killed_at=10)
    outcomes = [trained(*of).outcome() for of in [("resumed", 8), ("whole", 7), ("another", 8)]]
    assert outcomes[0] == outcomes[1] != outcomes[2]


@pytest.mark.exhaustive
@pytest.mark.runtimes("keras3_tf", "keras3_jax")
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_after_any_batch(kind, tmp_path):
    # TensorFlow keeps some MB of every model that was trained.
    for kill in range(1, uninterrupted(kind)["counted"][0], 1 if ON_JAX else 4):
        check_goes_on(tmp_path / str(kill), kind, kill)


def test_nothing_is_saved_after_the_last_batch_of_data_without_a_length(tmp_path):
    finite = {"x": (batch for batch in [(X[:16], Y[:16])] * BATCHES), "shuffle": False}
    made = model()

    class KilledAtTheEnd(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == BATCHES:
                raise Killed

    with pytest.raises(Killed):
        made.fit(
            **finite, verbose=0, callbacks=[KilledAtTheEnd(), kte.callbacks.AutoResume(tmp_path, every_s=0, keep=99)]
        )
    newest = resume_report(str(tmp_path)).newest
    assert newest.batch < BATCHES


def test_batches_that_are_read_again_are_told(tmp_path, capsys):
    Trained(tmp_path, "a generator", killed_at=10)
    capsys.readouterr()
    Trained(tmp_path, "a generator")
    printed = capsys.readouterr().out
    assert re.search(r"AutoResume: batches read again, .*: \d+, in .* s\.", printed)


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="it is about tf.data")
def test_data_that_may_go_on_otherwise_is_told(tmp_path):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    dataset = dataset.map(lambda x, y: (x + tf.random.uniform(()), y))
    with pytest.warns(ResumeWarning, match=r"in another order or .* RandomUniform is stateful\. .*stateless_uniform"):
        model().fit(dataset, shuffle=False, verbose=0, callbacks=[kte.callbacks.AutoResume(tmp_path, every_s=0)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_again_and_again(kind, tmp_path):
    check_goes_on(tmp_path, kind, 4, 3, 2, 1)


def accumulating():
    return model(gradient_accumulation_steps=4, loss_scale="dynamic")


def scaling():
    return model(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02), dynamic_growth_steps=3))


def several_steps():
    return model(steps_per_execution=2)


def a_tpu_model():
    with kte.strategy_scope(require="cpu", replicas=3):
        inputs = keras.Input((4,))
        made = kte.TPUModel(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, activation="relu")(inputs)))
        made.compile(keras.optimizers.Adam(0.02, use_ema=True, ema_overwrite_frequency=5), "mse", metrics=["mae"])
    return made


@pytest.mark.parametrize(
    "made",
    [
        accumulating,
        pytest.param(scaling, marks=[LATER, pytest.mark.runtimes("keras3_tf", "keras3_jax")]),
        *(pytest.param(made, marks=LATER) for made in (several_steps, a_tpu_model)),
    ],
)
def test_models(made, tmp_path):
    check_goes_on(tmp_path, "arrays", 2 if made is several_steps else 9, made=made)


def test_a_finished_training_is_not_trained_again(tmp_path, capsys):
    first = Trained(tmp_path)
    capsys.readouterr()
    again = Trained(tmp_path)
    assert again.counting.rates == first.counting.rates
    assert {**again.outcome(), "counted": None} == {**first.outcome(), "counted": None}
    assert "this training is finished" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["arrays", *(pytest.param(name, marks=LATER) for name in KINDS if name != "arrays")])
def test_a_finished_training_goes_on_with_more_epochs(kind, tmp_path):
    plain = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)]
    Trained(tmp_path, kind, epochs=2, callbacks=plain)
    again = Trained(tmp_path, kind, epochs=4, callbacks=plain)
    assert again.outcome() == Trained(None, kind, epochs=4, callbacks=plain).outcome()


def test_what_of_the_data_is_no_state(tmp_path):
    """Data on a disk stays there, names are no numbers, and threads that read ahead fill caches."""
    np.save(tmp_path / "x.npy", X)
    data = types.SimpleNamespace(cache={}, names=np.zeros(3 * 2**20, object))
    states = CallbackStates([data])
    data.rows, data.names, data.cache = np.load(tmp_path / "x.npy", mmap_mode="r"), data.names[:-1], {0: X}
    stop = threading.Event()

    def fill():
        while not stop.is_set():
            data.cache[len(data.cache) % 1000] = 0
            data.cache.pop(999, None)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        for _ in range(300):
            ((_, state),) = states.read()
    finally:
        stop.set()
        thread.join()
    assert "names" not in state
    np.testing.assert_array_equal(state["cache"][0], X)


def test_a_training_that_a_callback_has_ended_is_finished(tmp_path):
    class Ending(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    first = Trained(tmp_path, callbacks=[Ending()])
    again = Trained(tmp_path, callbacks=[Ending()])
    assert first.resume.finished
    assert again.resume.finished
    assert again.history.epoch == [0, 1]
    assert {**again.outcome(), "counted": None} == {**first.outcome(), "counted": None}
    assert Trained(tmp_path, callbacks=[Ending()], epochs=EPOCHS + 1).history.epoch == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves(number, tmp_path, capsys):
    class Signal(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.history.epoch == [0] and batch == 2:
                os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    first = Trained(tmp_path, callbacks=[*callbacks_of_keras(tmp_path), Signal()], every_s=600)
    assert not first.resume.finished
    assert signal.getsignal(number) is before
    assert first.history.epoch == [0]
    assert first.counting.batches == BATCHES + 3
    assert "stopped, as" in capsys.readouterr().out
    assert Trained(tmp_path, every_s=600).outcome() == uninterrupted("arrays")


def test_a_signal_in_the_validation_is_heeded_after_it(tmp_path):
    class Signal(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            if self.model.history.epoch == [0] and batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    first = Trained(tmp_path, callbacks=[*callbacks_of_keras(tmp_path), Signal()], every_s=600)
    assert first.history.epoch == [0, 1]
    assert Trained(tmp_path, every_s=600).outcome() == uninterrupted("arrays")


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    class Signals(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Trained(tmp_path, callbacks=[Signals()])


def test_it_leaves_before_the_deadline(tmp_path, monkeypatch, capsys):
    seconds = iter(range(0, 1000, 10))
    monkeypatch.setattr(schedule, "seconds_of_process", lambda: next(seconds))
    first = Trained(tmp_path, deadline_s=95, every_s=600)
    assert not first.resume.finished
    assert first.counting.batches < EPOCHS * BATCHES
    assert "before the session ends" in capsys.readouterr().out
    monkeypatch.undo()
    assert Trained(tmp_path, every_s=600).outcome() == uninterrupted("arrays")


def test_before_the_last_step_of_an_epoch_it_counts_the_validation_too(tmp_path, monkeypatch):
    now = [0.0]

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            now[0] += 1

        def on_test_begin(self, logs=None):
            now[0] += 50

    monkeypatch.setattr(schedule, "seconds_of_process", lambda: now[0])
    monkeypatch.setattr(schedule, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    # Ours hears of the end of a validation after that.
    monkeypatch.setattr(kte.callbacks.AutoResume, "on_test_begin", lambda self, logs=None: None)
    first = Trained(tmp_path, callbacks=[Clock()], deadline_s=100, every_s=600)
    assert first.counting.batches == 2 * BATCHES - 1


def test_the_file_of_a_csv_logger_has_no_row_twice(tmp_path):
    def logged(name, directory, **options):
        logger = keras.callbacks.CSVLogger(tmp_path / f"{name}.csv")
        Trained(directory, callbacks=[logger], keep=99, **options)
        logger.csv_file.close()
        return (tmp_path / f"{name}.csv").read_bytes()

    expected, folder = logged("whole", None), tmp_path / "folder"
    logged("resumed", folder, killed_at=2 * BATCHES + 1)
    for later in sorted(folder.iterdir())[BATCHES + 2 :]:  # what is left is of the second epoch, whose row is written
        later.unlink()
    assert logged("resumed", folder) == expected
    assert logged("resumed", folder) == expected, "of a finished training"


def test_the_columns_of_a_csv_logger_keep_their_order(tmp_path):
    """Keras sorts those that it sees at first, and adds those of a validation that comes later."""

    def logged(name, directory, **options):
        logger = keras.callbacks.CSVLogger(tmp_path / f"{name}.csv")
        Trained(directory, callbacks=[logger], made=lambda: model(metrics=[late]), validation_freq=2, **options)
        logger.csv_file.close()
        return (tmp_path / f"{name}.csv").read_bytes()

    def late(y_true, y_pred):
        return y_pred - y_true

    late.__name__ = "w"  # behind the names of validation, which begin with "val_"
    expected = logged("whole", None)
    logged("resumed", tmp_path / "folder", killed_at=BATCHES + 2)
    assert logged("resumed", tmp_path / "folder") == expected


def test_what_a_callback_knows_does_not_change_while_it_is_written():
    callback = Counting()
    states = CallbackStates([callback], names=lambda: frozenset(["loss"]))
    callback.rates += [np.ones(2), {"loss": [1]}]
    (saved,) = states.read()
    callback.rates[0] *= 2
    callback.rates[1]["loss"].append(2)
    callback.rates.append(3)
    assert repr(saved[1]["rates"]) == repr([np.ones(2), {"loss": [1]}])


def test_a_save_before_the_first_batch_keeps_the_place_in_the_epoch(tmp_path):
    class SignalAt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if resume_report(str(tmp_path)).newest is not None:
                os.kill(os.getpid(), signal.SIGTERM)

        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    for _ in range(3):
        Trained(tmp_path, callbacks=[*callbacks_of_keras(tmp_path), SignalAt()], every_s=600)
        assert resume_report(str(tmp_path)).newest.batch == 3
    assert Trained(tmp_path).outcome() == uninterrupted("arrays")


def test_other_threads_train_without_signals(tmp_path):
    trained = []
    thread = threading.Thread(target=lambda: trained.append(Trained(tmp_path).resume.finished))
    thread.start()
    thread.join()
    assert trained == [True]


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    Trained(tmp_path, killed_at=10)
    newest, before = sorted(tmp_path.glob("*.safetensors"), reverse=True)
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(ResumeWarning, match=rf"{newest.name} is damaged.*goes on from {before.name}"):
        last = Trained(tmp_path)
    assert last.outcome() == uninterrupted("arrays")


def test_an_object_store(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}"
    check_goes_on(url, "arrays", 10)
    assert len(fsspec.filesystem("memory").ls(tmp_path.name)) == 2
    assert resume_report(url).newest.finished


def test_an_object_store_that_cannot_be_read_loses_nothing(tmp_path, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    url = f"memory://{tmp_path.name}"
    Trained(url, killed_at=10)

    def refusing(*args, **kwargs):
        raise RuntimeError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "get_file", refusing)
        with pytest.raises(CheckpointError, match=r"cannot read what is in .*no network"):
            Trained(url)
    assert Trained(url).outcome() == uninterrupted("arrays")


def test_a_checkpoint_of_a_newer_version_is_refused_and_stays(tmp_path, monkeypatch):
    Trained(tmp_path, killed_at=10)
    names = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(checkpoint, "FORMAT", 0)
    with pytest.raises(CheckpointError, match=r"another version of keras_tpu_ext.*Upgrade this package"):
        Trained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == names


def test_a_url_without_fsspec(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ArgumentError, match=r"\(pip install fsspec gcsfs for gs://; here: import of"):
        kte.callbacks.AutoResume("gs://bucket/run")


def test_a_full_disk_is_told_and_the_training_goes_on(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(ResumeWarning, match=r"could not save.*No space left.* Nothing is saved yet\."):
        trained = Trained(tmp_path)
    assert trained.outcome() == uninterrupted("arrays")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write into .*file.*Give it a folder"):
        Trained(tmp_path / "file" / "folder")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda: model(units=9),
            r"its .*kernel has the shape \(4, 8\), where this model has .* of the shape \(4, 9\)",
        ),
        (lambda: model(layers=2), r"it has \d+ weights, and this model has \d+"),
        (lambda: model(optimizer="sgd"), "variables of its optimizer"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(other, message, tmp_path):
    Trained(tmp_path, killed_at=10)
    with pytest.raises(CheckpointError, match=rf"of another model in .*{message}.*give AutoResume another"):
        Trained(tmp_path, made=other)
    assert Trained(tmp_path).outcome() == uninterrupted("arrays")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("keras", r"saved by another one, whose optimizers and metrics have other variables than .*use that Keras"),
        ("framework", r"saved on another one, which draws other random numbers .*use another one"),
    ],
)
def test_a_checkpoint_of_another_keras_or_framework_is_refused(what, message, tmp_path):
    Trained(tmp_path, killed_at=10)
    folder = folder_of(str(tmp_path))
    newest = max(folder.names())
    write(folder, newest, dataclasses.replace(read(folder, newest), **{what: "another one"}))
    with pytest.raises(CheckpointError, match=rf"cannot go on from .*{message}.*give AutoResume another directory"):
        Trained(tmp_path)


@pytest.mark.skipif(not ON_JAX, reason="dropout under tf.distribute is another on another number of replicas")
def test_on_another_number_of_replicas(tmp_path):
    Trained(tmp_path, killed_at=10)
    weights = Trained(tmp_path, made=lambda: model(replicas=2)).model.get_weights()
    for value, expected in zip(weights, uninterrupted("arrays")["weights"], strict=True):
        np.testing.assert_allclose(value.ravel(), np.frombuffer(expected, value.dtype), rtol=1e-4, atol=1e-5)


SHARDED = {"shard": "fsdp", "mesh": (("data", 2), ("model", 4))}


@pytest.mark.skipif(not ON_JAX, reason="only on JAX models are sharded")
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("before", "after"),
    [(SHARDED, {"replicas": 2}), ({"replicas": 2}, SHARDED), (SHARDED, {"shard": "fsdp", "replicas": 8})],
    ids=["sharded, replicated", "replicated, sharded", "sharded, over another mesh"],
)
def test_on_another_mesh(before, after, tmp_path):
    Trained(tmp_path, killed_at=10, made=lambda: model(units=64, scope=before))
    made = Trained(tmp_path, made=lambda: model(units=64, scope=after))
    assert any(not weight.value.is_fully_replicated for weight in made.model.weights) == ("shard" in after)
    expected = Trained(None, made=lambda: model(units=64)).outcome()
    np.testing.assert_allclose(made.history.history["loss"], expected["history"]["loss"], rtol=1e-4)
    for value, whole in zip(made.model.get_weights(), expected["weights"], strict=True):
        np.testing.assert_allclose(value.ravel(), np.frombuffer(whole, value.dtype), rtol=1e-3, atol=1e-4)


class Telling(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.handle = object()
        self.state = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.state += 1

    def get_state(self):
        return {"state": self.state}

    def set_state(self, state):
        self.state = state["state"]


def test_a_callback_tells_its_own_state(tmp_path):
    Trained(tmp_path, killed_at=10, callbacks=[Telling()])
    telling = Telling()
    Trained(tmp_path, callbacks=[telling])
    assert telling.state == EPOCHS


def test_what_cannot_be_kept_is_told(tmp_path):
    class Opening(keras.callbacks.Callback):
        handle = None

        def on_train_batch_begin(self, batch, logs=None):
            self.handle = object()

    with pytest.warns(ResumeWarning, match=r"Opening keeps handle, which no checkpoint can hold.*get_state"):
        Trained(tmp_path, callbacks=[Opening()])


def test_a_callback_that_is_not_there_any_more_is_told(tmp_path):
    Trained(tmp_path, killed_at=10)
    with pytest.warns(ResumeWarning, match=r"EarlyStopping and ReduceLROnPlateau were there when this was saved"):
        Trained(tmp_path, callbacks=[])


def test_plain_keras_is_refused(tmp_path):
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    with pytest.raises(ScopeError, match=r"needs a model with the step of this package.*strategy_scope\(\)"):
        plain.fit(X, Y, verbose=0, callbacks=[kte.callbacks.AutoResume(tmp_path)])


def test_a_folder_of_the_user_is_no_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    callbacks = [
        kte.callbacks.AutoResume("~/run"),
        kte.callbacks.RunLog("~/run"),
        kte.callbacks.Trace(directory="~/run"),
    ]
    assert [callback.directory for callback in callbacks] == [str(tmp_path / "run")] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"directory": ""}, "`directory` must be the path of a folder; got ''"),
        ({"directory": None}, "`directory` must be the path of a folder; got None"),
        ({"directory": "nothing://run"}, "here: Protocol not known: nothing); got"),
        ({"every_s": -1}, "`every_s` must be a number of at least 0; got -1"),
        ({"deadline_s": 0}, "`deadline_s` must be a number above 0; got 0"),
        ({"deadline_s": "azure"}, '`deadline_s` must be "kaggle" or "colab"; got \'azure\''),
        ({"margin": 0.5}, "`margin` must be a number of at least 1; got 0.5"),
        ({"keep": 0}, "`keep` must be an integer of at least 1; got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ArgumentError) as caught:
        kte.callbacks.AutoResume(**{"directory": "checkpoints", **arguments})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda folder: kte.callbacks.AutoResume(folder), "`fit` got two of them"),
        (lambda folder: keras.callbacks.BackupAndRestore(folder), "BackupAndRestore as well"),
    ],
)
def test_two_that_would_go_on_are_refused(other, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        Trained(tmp_path / "one", callbacks=[other(str(tmp_path / "other"))])


def test_stock_backup_and_restore_does_not_go_on_where_it_was(tmp_path):
    def backed_up(killed_at=None):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path), save_freq=1, delete_checkpoint=False)
        return Trained(None, killed_at=killed_at, callbacks=[*callbacks_of_keras(tmp_path), backup])

    assert backed_up(10).was_killed
    assert backed_up().outcome() != uninterrupted("arrays")
