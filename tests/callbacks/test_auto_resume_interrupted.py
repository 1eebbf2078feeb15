"""Signals, also to workers; what a `fit` that was ended leaves behind; and what Keras does in other threads."""

import concurrent.futures
import contextlib
import ctypes
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
from keras_tpu_ext._runtime.common import worker_signals
from keras_tpu_ext.errors import ResumeWarning
from keras_tpu_ext.resume import leaving, saver, steps_heard, storage
from keras_tpu_ext.resume.checkpoint import CheckpointFolder
from keras_tpu_ext.resume.leaving import Interruption
from keras_tpu_ext.resume.report import resume_report
from keras_tpu_ext.resume.schedule import Schedule
from keras_tpu_ext.resume.steps_heard import StepsHeard
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


TERMINATED = """
import multiprocessing, time
from keras_tpu_ext.resume.leaving import Interruption

def work(number):
    end = time.monotonic() + number / 2000
    while time.monotonic() < end:
        pass
    return number

def spin():
    while True:
        pass

context = multiprocessing.get_context("fork")
if __name__ == "__main__":
    for _ in range(3):
        context.Process(target=spin, daemon=True).start()
    with Interruption().heeding_signals():
        for _ in range(60):
            pool = context.Pool(2)
            results = [pool.apply_async(work, (number,)) for number in range(4)]
            results[0].get(timeout=20)
            pool.terminate()
            pool.join()
    print("all ended")
"""


@FORKS
@WARNS_OF_FORKS
@pytest.mark.parametrize("kind", ["pool", "executor"])
def test_a_worker_goes_on_while_the_training_leaves_however_long_its_batch_takes(kind, monkeypatch):
    """An executor breaks as soon as one of its processes ends."""
    monkeypatch.setattr(worker_signals, "_WORKER_S", 0.5)
    context = multiprocessing.get_context("fork")
    with Interruption().heeding_signals(), contextlib.ExitStack() as stack:
        if kind == "pool":
            pool = stack.enter_context(context.Pool(2))
            get = pool.apply_async(slow, (7,)).get
            processes = pool._pool
        else:
            executor = stack.enter_context(concurrent.futures.ProcessPoolExecutor(2, mp_context=context))
            get = executor.submit(slow, 7).result
            executor.submit(abs, 7)  # in another process, which waits for work after it
            processes = executor._processes.values()
        time.sleep(0.3)
        for process in processes:
            os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.2)  # as long as the training may wait in C
        os.kill(os.getpid(), signal.SIGTERM)
        assert get(timeout=20) == 7


@FORKS
def test_workers_that_are_started_anew_share_the_count_too(monkeypatch):
    assert worker_signals.shared_with_worker() is None
    monkeypatch.setattr(multiprocessing.context, "get_spawning_popen", object)
    shared = worker_signals.shared_with_worker()
    before = shared.value
    with Interruption().heeding_signals():
        interrupt()
    assert shared.value == before + 1


@FORKS
@WARNS_OF_FORKS
def test_a_worker_that_is_stuck_is_ended(monkeypatch):
    """As one is that waits in C for a lock that another thread held when it was forked; else this test never ends."""
    monkeypatch.setattr(worker_signals, "_WORKER_S", 0.5)
    with Interruption().heeding_signals():
        pool = multiprocessing.get_context("fork").Pool(1)
        pool.apply_async(stick)
        time.sleep(0.3)
        begun = time.monotonic()
        pool.terminate()
        pool.join()
    assert time.monotonic() - begun < 10


def stick():
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)


@FORKS
@WARNS_OF_FORKS
def test_a_worker_without_a_thread_for_its_signals_ends_at_once(monkeypatch):
    def fail(heard):
        raise OSError("Too many open files")

    monkeypatch.setattr(worker_signals, "_watch", fail)
    with Interruption().heeding_signals():
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(timeout=20)
    assert process.exitcode == -signal.SIGTERM


@FORKS
@WARNS_OF_FORKS
@pytest.mark.parametrize("is_forked_from_a_worker", [False, True])
def test_a_process_that_is_no_worker_ends(is_forked_from_a_worker, monkeypatch):
    monkeypatch.setattr(worker_signals, "_WORKER_S", 0.5)
    context = multiprocessing.get_context("fork")

    def end_one(connection=None):
        process = context.Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(timeout=20)
        return process.exitcode if connection is None else connection.send(process.exitcode)

    with Interruption().heeding_signals():
        if is_forked_from_a_worker:
            ours, its = context.Pipe()
            worker = context.Process(target=end_one, args=(its,))
            worker.start()
            code = ours.recv()
            worker.join(timeout=20)
        else:
            code = end_one()
    assert code == -signal.SIGTERM


@FORKS
@WARNS_OF_FORKS
@pytest.mark.parametrize("is_set_in_the_process", [False, True])
def test_a_forked_process_with_a_handler_of_its_own_hears_a_signal_once(is_set_in_the_process):
    heard = []

    def set_handler():
        signal.signal(signal.SIGTERM, lambda *_: heard.append(1))

    def count(connection):
        if is_set_in_the_process:
            set_handler()
        connection.send("ready")
        slow(0)
        connection.send(len(heard))

    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe()
    with Interruption().heeding_signals():
        if not is_set_in_the_process:
            set_handler()
        process = context.Process(target=count, args=(its,))
        process.start()
        assert ours.recv() == "ready"
        process.terminate()
        assert ours.recv() == 1
        process.join(timeout=20)
    assert process.exitcode == 0


@FORKS
@WARNS_OF_FORKS
@pytest.mark.exhaustive
@pytest.mark.runtimes("keras3_jax")
def test_a_signal_while_a_worker_is_sent_a_task_loses_none():
    """One in 18 was lost, and with it all later ones: the worker ended when it had read a part of it."""
    context = multiprocessing.get_context("fork")
    with Interruption().heeding_signals():
        for number in range(100):
            pool = context.Pool(1)
            pool.apply_async(abs, (0,)).get(timeout=20)
            time.sleep(0.02)
            result = pool.apply_async(abs, (number,))
            time.sleep(number * 6e-6)
            os.kill(pool._pool[0].pid, signal.SIGTERM)
            assert result.get(timeout=20) == number
            pool.terminate()
            pool.join()


@FORKS
@pytest.mark.exhaustive
@pytest.mark.runtimes("keras3_jax")
def test_workers_can_be_terminated_at_any_time(tmp_path):
    """One in ten was not, on a busy machine: the signal came before Python knew it, or just before it waited in C."""
    assert "all ended" in run(TERMINATED, tmp_path).stdout


# A program whose step waits for a batch of a worker when a signal comes to all its processes.
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
            threading.Timer(0.2, os.killpg, (os.getpgid(0), number)).start()

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[3])
    number, directory = int(sys.argv[1]), sys.argv[2]
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_saves_and_leaves(number, method, tmp_path):
    try:
        done = run(PROGRAM, tmp_path, str(int(number)), str(tmp_path / "kept"), method)
        said, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        # The signal ends `multiprocessing`'s fork server, too, and without it a pool of Python may not end.
        if (number, method) != (signal.SIGTERM, "forkserver"):
            raise
        said, code = error.stdout.decode(), 0
    assert "left with False" in said
    assert code == 0
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
    write, may_write = storage._LocalFolder.write, threading.Event()

    def late_write(*args):
        may_write.wait(60)
        write(*args)

    def press():
        raise KeyboardInterrupt

    monkeypatch.setattr(storage._LocalFolder, "write", late_write)
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


@pytest.mark.runtimes("keras3_jax", "keras3_tf")
def test_batches_that_end_in_several_threads_at_once_are_all_counted():
    heard = StepsHeard()
    threads, batches = 4, 3000
    for batch in range(batches):
        heard.begin(batch, 1)

    def end(first):
        for batch in range(first, batches, threads):
            heard.begin_to_hear(sys._getframe())
            heard.hear(batch)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        pool = [threading.Thread(target=end, args=(first,)) for first in range(threads)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    begun = time.monotonic()
    assert heard.wait()
    assert time.monotonic() - begun < 5  # it waits for none
    assert heard.batches == batches


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
def test_a_callback_that_is_slow_in_another_thread_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(steps_heard, "_LONGEST_WAIT_S", 0.1)
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
    monkeypatch.setattr(Schedule, "leaves", lambda self: next(reasons, ""))
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
def test_where_it_leaves_it_saves_again_from_the_host(tmp_path, monkeypatch, capsys):
    write, ways, read = CheckpointFolder.write, [], _runtime.training_state.read

    def reading(made, *, on_host):
        ways.append(on_host)
        return read(made, on_host=on_host)

    def fails_for_copies_on_the_device(*args):
        if not ways[-1]:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return write(*args)

    monkeypatch.setattr(_runtime.training_state, "read", reading)
    monkeypatch.setattr(CheckpointFolder, "write", fails_for_copies_on_the_device)
    with pytest.warns(ResumeWarning, match="RESOURCE_EXHAUSTED"):
        fit([Calling(2, interrupt), kte.callbacks.AutoResume(tmp_path)])
    assert "to continue from here" in capsys.readouterr().out
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


def test_a_second_interruption_while_a_thread_starts_leaves_nothing_to_wait_for(tmp_path, monkeypatch):
    start = threading.Thread.start

    def pressed(thread):
        if thread.name == "AutoResume":
            raise KeyboardInterrupt
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", pressed)
        with pytest.raises(KeyboardInterrupt):
            fit([kte.callbacks.AutoResume(tmp_path, every_s=0)])
    assert not saver._under_way
    again = kte.callbacks.AutoResume(tmp_path)
    fit([again])
    assert again.finished


@pytest.mark.gate_on("keras2_tf221")
def test_a_list_of_callbacks_without_parameters(tmp_path):
    made = model()
    saving = kte.callbacks.AutoResume(tmp_path)
    fit(keras.callbacks.CallbackList([saving], add_history=True, model=made), made=made)
    assert saving.finished
