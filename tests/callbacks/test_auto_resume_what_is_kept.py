"""What `AutoResume` keeps of callbacks and data, and what it says of the rest."""

import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import time
import types
import warnings

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.training.batch_source import indexed
from keras_tpu_ext.errors import ArgumentError, ResumeWarning
from keras_tpu_ext.resume import checkpoint, schedule, storage
from keras_tpu_ext.resume.callback_state import CallbackStates
from keras_tpu_ext.resume.encoding import encode
from keras_tpu_ext.resume.lock import FolderLock
from keras_tpu_ext.resume.report import resume_report
from keras_tpu_ext.resume.saver import Saver
from keras_tpu_ext.resume.tensor_file import CannotWriteError
from kind_of_keras import IS_KERAS2
from small_fits import Calling, Killed, X, fit, kill, model
from some_checkpoint import some_checkpoint

pytestmark = pytest.mark.gate_on("keras3_jax")
LATER = pytest.mark.exhaustive


def train(directory, *callbacks, epochs=2, made=None, **resume):
    """Train four steps an epoch, and return the callback and the model."""
    saving = kte.callbacks.AutoResume(directory, **{"every_s": 0, **resume})
    return saving, fit([*callbacks, saving], made=made, epochs=epochs)


class Keeping(keras.callbacks.Callback):
    """Has an attribute that is another one from the third batch on."""

    def __init__(self, before, after):
        super().__init__()
        self.kept, self.after = before, after
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == 3:
            self.kept = self.after()


def variable(value):
    if not IS_KERAS2:
        return keras.Variable(value)
    import tensorflow as tf

    return tf.Variable(value)


@pytest.fixture
def file_of_rows(tmp_path):
    np.save(tmp_path / "rows.npy", X)
    return tmp_path / "rows.npy"


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("kind", ["memory map", "table", "variable"])
def test_what_only_looks_like_an_array_is_not_kept_and_told(kind, is_nested, tmp_path, file_of_rows):
    class Table:
        def __array__(self, dtype=None, copy=None):
            return X

    def make():
        if kind == "variable":
            return variable(1.0)
        return np.load(file_of_rows, mmap_mode="r") if kind == "memory map" else Table()

    def value():
        return [make()] if is_nested else make()

    with pytest.warns(ResumeWarning, match=r"Keeping keeps kept, which no checkpoint can hold: .* Give it get_state"):
        train(tmp_path / "checkpoints", Keeping(value(), value))
    content, _ = newest(tmp_path / "checkpoints")
    assert next(state for name, state in content.callbacks if name == "Keeping") == {"batches": 8}


def newest(directory):
    folder = checkpoint.CheckpointFolder(str(directory))
    found, content = folder.read_newest()
    return content, found


def test_a_variable_that_is_assigned_is_told(tmp_path):
    class Assigning(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.count = variable(0.0)

        def on_train_batch_end(self, batch, logs=None):
            self.count.assign(self.count + 1)

    with pytest.warns(ResumeWarning, match="Assigning keeps count, which no checkpoint can hold"):
        train(tmp_path, Assigning())


def test_variables_of_the_model_are_kept_with_it(tmp_path):
    """It warns of nothing: a warning is an error here."""

    class Watching(keras.callbacks.Callback):
        pass

    made, watch = model(), Watching()
    watch.kernel, watch.rate = made.layers[-1].kernel, made.optimizer.learning_rate
    saving, _ = train(tmp_path, watch, made=made)
    assert saving.finished


class Having(keras.callbacks.Callback):
    """Has an attribute of which a function may make another one at the third batch."""

    def __init__(self, kept, change=None):
        super().__init__()
        self.kept, self.change = kept, change
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == 3 and self.change is not None:
            self.change(self.kept)


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
@pytest.mark.filterwarnings("ignore:AutoResume. [A-Z]", "ignore:LossScaleMonitor has nothing")
@pytest.mark.parametrize("watch", [kte.callbacks.Watch, kte.callbacks.LossScaleMonitor])
def test_a_callback_that_watches_steps_may_come_and_go(watch, tmp_path):
    for epochs, watches in enumerate([[watch()], [], [watch()], [watch()]], start=1):
        saving, made = train(tmp_path, *watches, epochs=epochs)
        assert saving.finished
        assert int(made.optimizer.iterations) == 4 * epochs


def test_a_training_that_is_finished_is_not_told_to_have_too_few_batches(tmp_path, recwarn):
    x = np.zeros((96, 4))
    for _ in range(2):
        saving, watch = kte.callbacks.AutoResume(tmp_path), kte.callbacks.HostBottleneck(verbose=False)
        model().fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0, callbacks=[watch, saving])
    assert not [one for one in recwarn if "HostBottleneck" in str(one.message)]


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
@pytest.mark.filterwarnings("ignore:AutoResume. (the loss|other data)")
def test_a_watch_tells_the_epoch_after_a_start_anew(tmp_path):
    train(tmp_path, kte.callbacks.Watch(), epochs=2)
    watch, x = kte.callbacks.Watch(), X.copy()
    x[2 * 16] = np.nan
    callbacks = [watch, kte.callbacks.AutoResume(tmp_path)]
    with pytest.warns(UserWarning, match=r"^Watch: epoch 3, batch 2 \(step 2\)") as told:
        model().fit(x, X.sum(axis=1), batch_size=16, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    assert {one.filename for one in told if issubclass(one.category, ResumeWarning)} == {__file__}
    assert (watch.report().epoch, watch.report().batch, watch.report().step) == (2, 2, 2)


def holding_itself():
    value = {}
    value["me"] = value
    return value


def deep():
    value = []
    for _ in range(3000):
        value = [value]
    return value


FUNCTIONS = {
    "list": (lambda: [print], lambda value: value.append(lambda: None)),
    "dict": (lambda: {"a": lambda: None}, lambda value: value.update(a=lambda: None)),
    "tuple in a list": (lambda: [(1, lambda: None)], lambda value: value.append(2)),
}


@pytest.mark.parametrize("make", [holding_itself, deep, *(make for make, _ in FUNCTIONS.values())])
def test_what_does_not_change_is_not_told_though_it_cannot_be_kept(make, tmp_path):
    """A warning is an error here."""
    saving, _ = train(tmp_path, Having(make()))
    assert saving.finished


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_other_functions_in_a_list_are_told(kind, tmp_path):
    make, change = FUNCTIONS[kind]
    with pytest.warns(ResumeWarning, match="Having keeps kept, which no checkpoint can hold"):
        train(tmp_path, Having(make(), change))


@pytest.mark.runtimes("keras3_tf")
@pytest.mark.gate_on("keras3_tf")
def test_tensors_of_tensorflow_that_are_no_numbers_end_no_training(tmp_path):
    import tensorflow as tf

    lists = tf.raw_ops.EmptyTensorList(element_shape=[1], max_num_elements=3, element_dtype=tf.float32)
    saving, _ = train(tmp_path, Having(lists), Having(tf.Variable(1.0).handle))
    assert saving.finished


def test_the_file_of_a_csv_logger_may_have_other_text_than_utf8(tmp_path):
    before = b"epoch,loss\n" + b"0" * 10_000 + "ö\n".encode("latin-1")  # Keras itself reads some of it as UTF-8
    (tmp_path / "log.csv").write_bytes(before)
    log = [keras.callbacks.CSVLogger(tmp_path / "log.csv", append=True)]
    with pytest.raises(Killed):
        train(tmp_path / "checkpoints", *log, Calling(6, kill))
    log[0].csv_file.close()
    log = [keras.callbacks.CSVLogger(tmp_path / "log.csv", append=True)]
    train(tmp_path / "checkpoints", *log, Calling(99, kill))
    rows = (tmp_path / "log.csv").read_bytes().splitlines()
    assert rows[:2] == before.splitlines()
    assert [row[:1] for row in rows[-2:]] == [b"0", b"1"]


@pytest.mark.runtimes("keras3_jax")
def test_a_key_of_jax_is_told(tmp_path):
    import jax

    class Drawing(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.key = jax.random.key(0)

        def on_train_batch_end(self, batch, logs=None):
            self.key, _ = jax.random.split(self.key)

    with pytest.warns(ResumeWarning, match="Drawing keeps key, which no checkpoint can hold"):
        saving, _ = train(tmp_path, Drawing())
    assert saving.finished


def test_what_is_no_array_cannot_be_written(file_of_rows):
    masked = np.ma.masked_array(X, X > 0)
    for value in (np.load(file_of_rows, mmap_mode="r"), masked, np.zeros(2, object), np.zeros(2, "i4,f4"), object()):
        with pytest.raises(CannotWriteError):
            encode({"here": [value]}, [])


@pytest.mark.runtimes("keras3_jax")
def test_an_array_of_jax_that_a_step_was_given_ends_no_training(tmp_path):
    import jax

    class Stale(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.weights = [jax.numpy.ones(3)]
            self.weights[0].delete()  # as a step does with what it was given, if nobody else holds it

    with pytest.warns(ResumeWarning, match="Stale keeps weights, which no checkpoint can hold"):
        saving, _ = train(tmp_path, Stale(), epochs=3)
    assert saving.finished


@pytest.mark.runtimes("keras3_jax")
def test_arrays_of_jax_in_a_callback_are_copied_before_the_next_step():
    import jax

    callback = types.SimpleNamespace(array=None)
    states = CallbackStates([callback])
    callback.array = jax.numpy.ones(3)
    ((_, state),) = states.read()
    assert type(state["array"]) is np.ndarray


def test_a_state_that_cannot_be_written_is_told_with_its_callback(tmp_path):
    class Telling(keras.callbacks.Callback):
        def get_state(self):
            return {"model": self.model}

        def set_state(self, state):
            raise AssertionError("there is none")

    told = r"Telling keeps what its get_state\(\) returned, which no checkpoint"
    with pytest.warns(ResumeWarning, match=told), pytest.raises(Killed):
        train(tmp_path, Telling(), Calling(6, kill))
    with pytest.warns(ResumeWarning):
        saving, _ = train(tmp_path, Telling(), Calling(99, kill))
    assert saving.finished


class Late(keras.callbacks.Callback):
    """Needs its time to count a batch."""

    async_safe = True

    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)
        self.batches += 1


class CallingLate(Calling):
    """May be told of the end of a batch in another thread."""

    async_safe = True


def test_callbacks_that_are_told_later_are_waited_for(tmp_path):
    """Keras on JAX tells callbacks that are safe for it of the end of a batch in other threads."""

    with pytest.raises(Killed):
        train(tmp_path, Late(), CallingLate(7, kill), keep=99)
    contents = [checkpoint.read(storage.folder_of(str(tmp_path)), name.name) for name in tmp_path.iterdir()]
    assert any(content.batches for content in contents)
    for content in contents:
        assert dict(content.callbacks)["Late"].get("batches", 0) == content.batches


def test_fewer_epochs_than_were_trained_lose_nothing(tmp_path, capsys):
    is_written = Calling(8, lambda: time.sleep(1))
    with pytest.raises(Killed):
        train(tmp_path, is_written, Calling(10, kill), epochs=5)
    names, batches = sorted(os.listdir(tmp_path)), newest(tmp_path)[0].batches
    assert batches >= 8
    capsys.readouterr()
    saving, made = train(tmp_path, Calling(99, kill), Calling(99, kill), epochs=1)
    assert "has come to epoch 3 already" in capsys.readouterr().out
    assert saving.finished
    assert made.history.epoch == [0, 1]
    assert int(np.asarray(made.optimizer.iterations)) == batches
    assert sorted(os.listdir(tmp_path)) == names
    _, whole = train(tmp_path / "another", epochs=5)
    _, again = train(tmp_path, Calling(99, kill), Calling(99, kill), epochs=5)
    assert [value.tobytes() for value in again.get_weights()] == [value.tobytes() for value in whole.get_weights()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this system")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning")
def test_a_process_that_was_forked_in_fit_can_be_terminated(tmp_path):
    codes = []

    def fork():
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        process.start()
        time.sleep(0.5)  # Python forgets what comes while it begins
        process.terminate()
        process.join(10)
        codes.append(process.exitcode)
        process.kill()

    saving, _ = train(tmp_path, Calling(2, fork))
    assert saving.finished
    assert codes == [-signal.SIGTERM]


def test_what_a_write_takes_already_counts_before_a_deadline(tmp_path):
    folder = checkpoint.CheckpointFolder(str(tmp_path))
    saver = Saver(folder, FolderLock(folder.folder))
    saver.begin(lambda: (time.sleep(0.3), some_checkpoint())[1])
    time.sleep(0.2)
    assert saver.is_writing()
    assert saver.seconds >= 0.2
    saver.finish()
    assert not saver.is_writing()
    assert saver.seconds >= 0.3


@pytest.mark.exhaustive
def test_a_first_save_that_lasts_makes_it_leave_earlier(tmp_path, monkeypatch):
    stock, whole = storage.Folder.write, []

    def slow(*args):
        time.sleep(1)
        stock(*args)
        whole.append(time.monotonic() - begun)

    monkeypatch.setattr(storage.Folder, "write", slow)
    begun = time.monotonic()
    monkeypatch.setattr(schedule, "seconds_of_process", lambda: time.monotonic() - begun)
    paced = [Calling(batch, lambda: time.sleep(0.1)) for batch in range(200)]
    saving, _ = train(tmp_path, *paced, epochs=50, every_s=600, deadline_s=8)
    assert not saving.finished
    assert whole[-1] < 8


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate"), RuntimeError("RESOURCE_EXHAUSTED")])
def test_no_error_of_the_thread_that_writes_ends_a_training(error, tmp_path, monkeypatch):
    def fail(*args):
        raise error

    monkeypatch.setattr(checkpoint, "write", fail)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        saving, made = train(tmp_path)
    first, *_, last = (one.message.args[0] for one in told if issubclass(one.category, ResumeWarning))
    what = f"could not save into {tmp_path}: {type(error).__name__}: {error}."
    assert first.endswith(f"{what} The training goes on, and it tries again at the next save. Nothing is saved yet.")
    assert last.endswith(f"{what} Nothing is saved yet.")
    assert saving.finished
    assert int(np.asarray(made.optimizer.iterations)) == 8


def test_what_could_not_be_saved_before_it_left_is_told(tmp_path, monkeypatch, capsys):
    writes = itertools.count()
    stock = checkpoint.write

    def fail_after_the_first(*args):
        if next(writes):
            raise OSError(28, "No space left on device")
        stock(*args)

    monkeypatch.setattr(checkpoint, "write", fail_after_the_first)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(tmp_path, Calling(6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    printed = capsys.readouterr().out
    assert (
        "stopped, as SIGTERM asked it to, and could not save. checkpoint-000000.safetensors is the last one"
        in printed
    )
    assert "to continue from here" not in printed
    last = [str(one.message) for one in told if issubclass(one.category, ResumeWarning)][-1]
    assert "No space left" in last
    assert "The training goes on" not in last


@pytest.mark.exhaustive
@pytest.mark.runtimes("keras3_jax")
def test_copies_of_saves_that_failed_are_given_up(tmp_path, monkeypatch):
    import jax

    def fail(*args):
        raise OSError(28, "No space left on device")

    def kernels():
        return sum(array.shape == (4, 1) for array in jax.live_arrays())

    monkeypatch.setattr(storage.Folder, "write", fail)
    monkeypatch.setattr(gc, "collect", lambda *args: 0)
    gc.disable()
    try:
        made, counts = model(), []
        counting = [Calling(batch, lambda: (time.sleep(0.05), counts.append(kernels()))) for batch in range(20)]
        with pytest.warns(ResumeWarning, match="No space left"):
            train(tmp_path, *counting, epochs=5, made=made)
    finally:
        gc.enable()
    assert max(counts[10:]) <= max(counts[:10])


def test_batches_by_index_can_be_sent_to_a_process_that_is_spawned():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X[index : index + 1]

    sent = indexed(Batches(), shuffle=False, read_ahead=True)
    sent.restore = lambda: None
    Batches.__qualname__, Batches.__module__ = "Batches", __name__
    sys.modules[__name__].Batches = Batches
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(sent))[1], X[1:2])


class Rows(keras.utils.PyDataset):
    """Shuffles its rows after each epoch, and counts the hooks."""

    def __init__(self, workers=1):
        super().__init__(workers=workers)
        self.rows = np.arange(len(X))
        self.ends = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = self.rows[index * 16 : (index + 1) * 16]
        return X[rows], X[rows].sum(axis=1)

    def on_epoch_end(self):
        if keras.backend.backend() == "jax":  # elsewhere other rows are read ahead
            np.random.shuffle(self.rows)
        self.ends += 1


@pytest.mark.runtimes("keras3_jax", "keras3_tf")
@pytest.mark.parametrize("steps", [3, 4])  # of four in a pass
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("killed_at", [3, pytest.param(4, marks=LATER), pytest.param(6, marks=LATER)])
def test_a_pass_over_batches_by_index_goes_on_in_later_epochs(killed_at, shuffle, steps, tmp_path):
    def trained(directory, *callbacks):
        made = model()
        saving = kte.callbacks.AutoResume(directory, every_s=0)
        options = {"steps_per_epoch": steps, "epochs": 4, "shuffle": shuffle, "verbose": 0}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
            made.fit(Rows(), **options, callbacks=[*callbacks, saving])
        return [value.tobytes() for value in made.get_weights()], made.history.history["loss"]

    whole = trained(tmp_path / "whole")
    with pytest.raises(Killed):
        trained(tmp_path / "killed", Calling(killed_at, kill))
    assert trained(tmp_path / "killed", Calling(99, kill)) == whole
    assert resume_report(str(tmp_path / "killed")).newest.epoch == 4


class Named(Rows):
    """Keeps its rows under a name that Keras sets in callbacks."""

    rows = property(lambda self: self.params, lambda self, rows: setattr(self, "params", rows))


@pytest.mark.runtimes("keras3_jax")
def test_data_may_name_their_state_as_they_like(tmp_path):
    def trained(directory, *callbacks):
        made = model()
        made.fit(Named(), epochs=4, verbose=0, callbacks=[*callbacks, kte.callbacks.AutoResume(directory, every_s=0)])
        return [value.tobytes() for value in made.get_weights()]

    whole = trained(tmp_path / "whole")
    with pytest.raises(Killed):
        trained(tmp_path / "killed", Calling(6, kill))
    assert trained(tmp_path / "killed", Calling(99, kill)) == whole


class Endless(keras.utils.PyDataset):
    """Has no end; batches tell their number."""

    num_batches = None

    def __getitem__(self, index):
        return np.full((16, 4), index % 7, "float32"), np.full(16, index % 5, "float32")


@pytest.mark.runtimes("keras3_jax")
def test_data_without_an_end_go_on_as_without_an_interruption(tmp_path):
    def trained(*callbacks):
        made = model()
        options = {"steps_per_epoch": 3, "epochs": 3, "shuffle": False, "verbose": 0}
        made.fit(Endless(), **options, callbacks=list(callbacks))
        return [value.tobytes() for value in made.get_weights()], made.history.history["loss"]

    whole = trained()
    assert trained(kte.callbacks.AutoResume(tmp_path / "whole", every_s=0)) == whole
    with pytest.raises(Killed):
        trained(Calling(4, kill), kte.callbacks.AutoResume(tmp_path / "killed", every_s=0))
    assert trained(Calling(99, kill), kte.callbacks.AutoResume(tmp_path / "killed", every_s=0)) == whole


@pytest.mark.runtimes("keras3_jax", "keras3_tf")
def test_workers_that_begin_anew_in_each_epoch_are_refused(tmp_path):
    saving = kte.callbacks.AutoResume(tmp_path)
    with pytest.raises(
        ArgumentError, match=r"with workers begins anew .* Write workers=1 .* or leave steps_per_epoch out"
    ):
        model().fit(Rows(workers=2), steps_per_epoch=3, verbose=0, callbacks=[saving])
    with pytest.raises(ArgumentError, match=r"without an end and with workers .* Write workers=1 .* give it an end"):
        model().fit(Endless(workers=2), steps_per_epoch=3, verbose=0, callbacks=[saving])
    model().fit(Rows(workers=2), steps_per_epoch=4, verbose=0, callbacks=[saving])
    assert saving.finished
