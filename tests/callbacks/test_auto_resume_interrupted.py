"""Signals, also to workers; what a `fit` that was ended leaves behind; and what Keras does in other threads."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import keras
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ResumeWarning
from keras_tpu_ext.resume import leaving, storage
from keras_tpu_ext.resume.checkpoint import CheckpointFolder
from keras_tpu_ext.resume.leaving import Interruption
from keras_tpu_ext.resume.lock import FolderLock
from keras_tpu_ext.resume.report import resume_report
from keras_tpu_ext.resume.schedule import Schedule
from small_fits import Calling, fit, model

pytestmark = pytest.mark.gate_on("keras3_jax")
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this system")
WARNS_OF_FORKS = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning")


@pytest.fixture(autouse=True)
def _forgets_signals(monkeypatch):
    """No later test is to leave for a signal that came too late for its `fit`."""
    monkeypatch.setattr(Interruption, "_too_late", "")


def interrupt():
    os.kill(os.getpid(), signal.SIGTERM)


def slow(number):
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:  # a signal may end a sleep
        time.sleep(0.05)
    return number


@FORKS
@WARNS_OF_FORKS
def test_a_worker_leaves_ctrl_c_to_the_training_and_a_sigterm_ends_it():
    with Interruption().heeding_signals():
        pool = multiprocessing.get_context("fork").Pool(2)
        time.sleep(0.3)
        result = pool.apply_async(slow, (7,))
        time.sleep(0.3)
        for worker in pool._pool:
            os.kill(worker.pid, signal.SIGINT)
        assert result.get(timeout=20) == 7
        begun = time.monotonic()
        pool.terminate()
        pool.join()
    assert time.monotonic() - begun < 4


@FORKS
@WARNS_OF_FORKS
def test_a_forked_process_keeps_a_handler_of_the_users():
    heard = []

    def count(connection):
        connection.send("ready")
        slow(0)
        connection.send(len(heard))

    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe()
    with Interruption().heeding_signals():
        signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
        process = context.Process(target=count, args=(its,))
        process.start()
        assert ours.recv() == "ready"
        process.terminate()
        assert ours.recv() == 1
        process.join(timeout=20)
    assert process.exitcode == 0


# A program whose step waits for a batch of a worker when Ctrl-C comes to all its processes.
PROGRAM = """
import multiprocessing, os, signal, sys, threading, time
import keras
import numpy as np
import keras_tpu_ext as kte

class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.6)
        x = np.full((4, 4), index, "float32")
        return x, x.sum(axis=1)

class Press(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            threading.Timer(0.2, os.killpg, (os.getpgid(0), signal.SIGINT)).start()

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    directory = sys.argv[1]
    with kte.strategy_scope(require="cpu", replicas=2):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    resume = kte.callbacks.AutoResume(directory)
    data = Rows(workers=2, use_multiprocessing=True, max_queue_size=2)
    model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[Press(), resume])
    print("left with", resume.finished, flush=True)
"""


def run(program, folder, *arguments):
    """Run a program in processes of their own, which is the main module of its workers too."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-W", "ignore", str(folder / "program.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, start_new_session=True)


@FORKS
@pytest.mark.exhaustive
@pytest.mark.runtimes("keras3_jax", "keras3_tf")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ctrl_c_to_the_group_saves_and_leaves(method, tmp_path):
    done = run(PROGRAM, tmp_path, str(tmp_path / "kept"), method)
    assert "left with False" in done.stdout
    assert done.returncode == 0
    assert 3 <= resume_report(str(tmp_path / "kept")).newest.batches <= 6


FAILING = """
import sys
import keras
import numpy as np
import keras_tpu_ext as kte

class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return np.ones((4, 4), "float32"), np.ones(4, "float32")

class Failing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise ValueError("of the user's")

with kte.strategy_scope(require="cpu", replicas=2):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
resume = [kte.callbacks.AutoResume(sys.argv[1])] if len(sys.argv) > 1 else []
model.fit(Rows(), epochs=2, verbose=0, callbacks=[Failing(), *resume])
"""


@pytest.mark.exhaustive
@pytest.mark.runtimes("keras3_jax", "keras3_tf")
@pytest.mark.parametrize("resumes", [False, True])
def test_a_program_that_fails_ends(resumes, tmp_path):
    """On TensorFlow an iterator that was still there when Python ended waited for a thread that reads in Python."""
    done = run(FAILING, tmp_path, *([str(tmp_path / "kept")] if resumes else []))
    assert "ValueError: of the user's" in done.stderr
    assert done.returncode == 1


def test_a_signal_saves_where_nobody_reads_what_is_printed(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr(leaving, "print", broken, raising=False)
    saving = kte.callbacks.AutoResume(tmp_path)
    fit([Calling(2, interrupt), saving])
    assert not saving.finished
    assert resume_report(str(tmp_path)).newest.batches == 3


def test_a_new_fit_waits_for_what_the_one_before_still_writes(tmp_path, monkeypatch, capsys):
    """In a notebook a second Ctrl-C ends `fit`, and not the process."""
    write, may_write = storage.Folder.write, threading.Event()

    def late_write(*args):
        may_write.wait(60)
        write(*args)

    def late_release(lock):
        time.sleep(0.2)
        release(lock)

    def press():
        raise KeyboardInterrupt

    release = FolderLock.release
    monkeypatch.setattr(FolderLock, "release", late_release)
    monkeypatch.setattr(storage.Folder, "write", late_write)
    with pytest.raises(KeyboardInterrupt):
        fit([Calling(2, press), kte.callbacks.AutoResume(tmp_path, every_s=0)])
    assert os.listdir(tmp_path) == ["keras_tpu_ext.lock"]
    threading.Timer(0.5, may_write.set).start()  # while the next `fit` waits
    again = kte.callbacks.AutoResume(tmp_path)
    fit([Calling(99, press), again])
    assert "goes on at epoch 1, batch 0 " in capsys.readouterr().out
    assert again.finished


def test_a_list_of_callbacks_that_the_user_made_stays_as_it_was(tmp_path):
    made = model()
    saving = kte.callbacks.AutoResume(tmp_path / "one", every_s=0)
    given = keras.callbacks.CallbackList(
        [saving, Calling(99, interrupt)], add_history=True, model=made, epochs=2, steps=4, verbose=0
    )
    before = list(given.callbacks)
    for _ in range(2):
        fit(given, made=made)
        assert saving.finished
        assert given.callbacks == before
        saving.directory = str(tmp_path / "another")


class Counting(keras.callbacks.Callback):
    """Hears of batches in another thread, on JAX; of one it is slow or fails."""

    async_safe = True

    def __init__(self, does):
        super().__init__()
        self.does, self.heard = does, []

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.does()
        self.heard = [*self.heard, batch]


class CallingLater(Calling):
    async_safe = True


def fails():
    raise ValueError("of the user's")


@pytest.mark.runtimes("keras3_jax")
@pytest.mark.parametrize("options", [{"every_s": 0}, {}])
def test_the_error_of_a_callback_in_another_thread_is_raised_and_nothing_after_it_saved(options, tmp_path):
    begun = time.monotonic()
    with pytest.raises(ValueError, match="of the user's"):
        fit([Counting(fails), CallingLater(2, interrupt), kte.callbacks.AutoResume(tmp_path, **options)])
    assert time.monotonic() - begun < 8
    newest = resume_report(str(tmp_path)).newest
    assert newest is None or newest.batches <= 1


@pytest.mark.runtimes("keras3_jax")
def test_a_callback_that_is_slow_in_another_thread_is_waited_for(tmp_path):
    slowly = Counting(lambda: time.sleep(0.7))
    fit([slowly, CallingLater(2, interrupt), kte.callbacks.AutoResume(tmp_path)])
    assert resume_report(str(tmp_path)).newest.batches == 3
    again = Counting(lambda: None)
    fit([again, CallingLater(99, interrupt), kte.callbacks.AutoResume(tmp_path)])
    assert sorted(again.heard) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_after_a_sigterm_that_came_too_late_the_next_fit_leaves(tmp_path, capsys):
    class Late(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                interrupt()

    resumes = []
    for name, others in (("one", [Late()]), ("two", []), ("two", [])):
        resumes.append(kte.callbacks.AutoResume(tmp_path / name))
        fit([*others, resumes[-1]])
    assert [resume.finished for resume in resumes] == [True, False, True]
    assert capsys.readouterr().out.count("stopped, as SIGTERM asked it to") == 1


def test_why_it_has_left_is_what_was_when_it_decided(tmp_path, monkeypatch, capsys):
    reasons = iter(["4 s before the session ends"])
    monkeypatch.setattr(Schedule, "leaves", lambda self, writing: next(reasons, ""))
    saving = kte.callbacks.AutoResume(tmp_path)
    fit([saving])
    assert not saving.finished
    assert "stopped, 4 s before the session ends. Start the same" in capsys.readouterr().out


def test_callbacks_hear_the_last_logs_when_it_leaves(tmp_path):
    heard = []

    class Ending(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            heard.append(logs["loss"])

    made = fit([Ending(), Calling(5, interrupt), kte.callbacks.AutoResume(tmp_path)])
    assert heard == made.history.history["loss"]


def test_a_thread_that_cannot_be_started_ends_no_training(tmp_path, monkeypatch):
    start = threading.Thread.start

    def cannot(thread):
        if thread.name == "AutoResume":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", cannot)
    saving = kte.callbacks.AutoResume(tmp_path, every_s=0)
    with pytest.warns(ResumeWarning, match="could not save .* can't start new thread"):
        fit([saving])
    assert saving.finished


@pytest.mark.runtimes("keras3_jax")
def test_after_a_save_that_failed_later_ones_copy_to_the_host(tmp_path, monkeypatch):
    """The memory of the device may have been too small for the copies, which is told late."""
    ways, read, write = [], _runtime.training_state.read, CheckpointFolder.write
    failures = iter([RuntimeError("RESOURCE_EXHAUSTED")])

    def reading(made, *, on_host):
        ways.append(on_host)
        return read(made, on_host=on_host)

    def fails_once(*args):
        for error in failures:
            raise error
        return write(*args)

    monkeypatch.setattr(_runtime.training_state, "read", reading)
    monkeypatch.setattr(CheckpointFolder, "write", fails_once)
    with pytest.warns(ResumeWarning, match="RESOURCE_EXHAUSTED"):
        fit([kte.callbacks.AutoResume(tmp_path, every_s=0)])
    assert ways[0] is False
    assert all(ways[1:])


@pytest.mark.runtimes("keras3_jax")
def test_where_it_leaves_nothing_is_copied_on_the_device(tmp_path, monkeypatch):
    """Its memory may be too small for the copies, and there is no later save."""
    ways, read = [], _runtime.training_state.read

    def reading(made, *, on_host):
        ways.append(on_host)
        return read(made, on_host=on_host)

    monkeypatch.setattr(_runtime.training_state, "read", reading)
    fit([Calling(2, interrupt), kte.callbacks.AutoResume(tmp_path)])
    assert ways == [True]
    assert resume_report(str(tmp_path)).newest.batches == 3


@pytest.mark.parametrize("what", ["variables", "callbacks"])
def test_a_state_that_cannot_be_had_ends_no_training(what, tmp_path, monkeypatch):
    class Telling(keras.callbacks.Callback):
        def get_state(self):
            if what == "callbacks":
                raise MemoryError("no room")

        def set_state(self, state):
            """There is none."""

    def no_room(*args, **kwargs):
        raise MemoryError("no room")

    if what == "variables":
        monkeypatch.setattr(_runtime.training_state, "read", no_room)
    saving = kte.callbacks.AutoResume(tmp_path, every_s=0)
    with pytest.warns(ResumeWarning, match="could not save into .*: MemoryError: no room"):
        made = fit([Telling(), saving])
    assert saving.finished
    assert len(made.history.history["loss"]) == 2
    assert not os.listdir(tmp_path)


@pytest.mark.gate_on("keras2_tf221")
def test_a_list_of_callbacks_without_parameters(tmp_path):
    made = model()
    saving = kte.callbacks.AutoResume(tmp_path)
    fit(keras.callbacks.CallbackList([saving], add_history=True, model=made), made=made)
    assert saving.finished
