"""Signals, also to workers; what a `fit` that was ended leaves behind; and what Keras does in other threads."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types

import keras
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime, _storage
from keras_tpu_ext._checkpoint import CheckpointFolder
from keras_tpu_ext._resume_report import resume_report
from keras_tpu_ext.callbacks import _leaving, _resumable_fit
from keras_tpu_ext.callbacks._leaving import Interruption
from keras_tpu_ext.callbacks._resumable_fit import ResumableFit
from keras_tpu_ext.errors import ResumeWarning
from small_fits import Calling, fit, model

pytestmark = pytest.mark.gate_on("keras3_jax")
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this system")


def interrupt():
    os.kill(os.getpid(), signal.SIGTERM)


def slow(number):
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:  # a signal may end a sleep
        time.sleep(0.05)
    return number


@FORKS
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_loses_no_batch_of_a_worker(number):
    with Interruption().heeding_signals():
        pool = multiprocessing.get_context("fork").Pool(2)
        try:
            workers = list(pool._pool)
            time.sleep(0.3)
            result = pool.apply_async(slow, (7,))
            time.sleep(0.3)
            for worker in workers:
                os.kill(worker.pid, number)
            assert result.get(timeout=20) == 7
        finally:
            begun = time.monotonic()
            pool.terminate()  # which waits for a lock of its queue, and for its workers
            pool.join()
    assert time.monotonic() - begun < 4


# A program whose step waits for a batch of a worker when a signal comes to all its processes.
PROGRAM = """
    import multiprocessing, os, signal, sys, threading, time
    import keras
    import numpy as np
    import keras_tpu_ext as kte

    multiprocessing.set_start_method("fork", force=True)
    number, directory = int(sys.argv[1]), sys.argv[2]

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
                threading.Timer(0.2, os.killpg, (os.getpgid(0), number)).start()

    with kte.strategy_scope(require="cpu", replicas=2):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    resume = kte.callbacks.AutoResume(directory)
    data = Rows(workers=2, use_multiprocessing=True, max_queue_size=2)
    model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[Press(), resume])
    print("left with", resume.finished, flush=True)
"""


@FORKS
@pytest.mark.exhaustive
@pytest.mark.runtimes("keras3_jax", "keras3_tf")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_saves_and_leaves(number, tmp_path):
    arguments = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), str(int(number)), str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, start_new_session=True)
    assert "left with False" in done.stdout, done.stderr[-2000:]
    assert done.returncode == 0
    assert 3 <= resume_report(str(tmp_path)).newest.batches <= 6


def test_a_signal_saves_where_nobody_reads_what_is_printed(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr(_leaving, "print", broken, raising=False)
    saving = kte.callbacks.AutoResume(tmp_path)
    fit([Calling(2, interrupt), saving])
    assert not saving.finished
    assert resume_report(str(tmp_path)).newest.batches == 3


def test_a_new_fit_waits_for_what_the_one_before_still_writes(tmp_path, monkeypatch, capsys):
    """In a notebook a second Ctrl-C ends `fit`, and not the process."""
    write = _storage._LocalFolder.write

    def slow_write(*args):
        time.sleep(1)
        write(*args)

    def press():
        raise KeyboardInterrupt

    monkeypatch.setattr(_storage._LocalFolder, "write", slow_write)
    with pytest.raises(KeyboardInterrupt):
        fit([Calling(2, press), kte.callbacks.AutoResume(tmp_path, every_s=0)])
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(_storage._LocalFolder, "write", write)
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


@pytest.mark.runtimes("keras3_jax", "keras3_tf")
def test_batches_that_end_in_several_threads_at_once_are_all_counted(tmp_path):
    running = ResumableFit(CheckpointFolder(str(tmp_path)), every_s=1, deadline_s=None, margin=2.0, say=print)
    running._data = types.SimpleNamespace(read_again=0)
    threads, batches = 4, 3000
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        pool = [
            threading.Thread(
                target=lambda first: [running.after_batch(n) for n in range(first, batches, threads)], args=(first,)
            )
            for first in range(threads)
        ]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert running._ended == batches
    if _runtime.progress.end_names_last_batch():
        assert running._end == batches


@pytest.mark.runtimes("keras3_jax")
def test_a_callback_that_fails_in_another_thread_is_soon_raised(tmp_path, monkeypatch):
    class Failing(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_end(self, batch, logs=None):
            raise OSError("of the user's")

    monkeypatch.setattr(_resumable_fit, "_LONGEST_CALLBACK_S", 0.5)
    with pytest.raises(OSError, match="of the user's"):
        fit([Failing(), kte.callbacks.AutoResume(tmp_path, every_s=0)])


def test_why_it_has_left_is_what_was_when_it_decided(tmp_path, monkeypatch, capsys):
    reasons = iter(["4 s before the session ends"])
    monkeypatch.setattr(ResumableFit, "_leaves", lambda self: next(reasons, ""))
    saving = kte.callbacks.AutoResume(tmp_path)
    fit([saving])
    assert not saving.finished
    assert "left, 4 s before the session ends. Start the same" in capsys.readouterr().out


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
def test_after_a_save_that_failed_the_next_one_copies_to_the_host(tmp_path, monkeypatch):
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
    assert ways[:2] == [False, True]
    assert not any(ways[2:])
