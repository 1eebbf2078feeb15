"""One of two processes fails: the other one ends within seconds too, and says why."""

from __future__ import annotations

import time

import pytest

from jax_processes import free_port, said, start

pytestmark = pytest.mark.runtimes("keras3_jax")

ENDS_WITHIN = 30  # seconds; JAX itself waits for 300
ENDED = "ENDED BY ITSELF"

# Process `victim` raises in the way `how`; the other one trains for ever, except where it has to end too.
PROGRAM = """
    import sys, time
    import keras
    import numpy as np
    import keras_tpu_ext as kte

    number, port, victim, how, folder = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
    keras.distribution.initialize(f"127.0.0.1:{port}", 2, number)
    is_victim = number == victim

    def fails(*ways):
        if is_victim and how in ways:
            print("RAISES", flush=True)
            raise ValueError("it was so planned\\nwith details")

    class Callback(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                fails("callback", "callback, caught", "callback, asleep")
            if how == "callback, asleep" and epoch == 2:
                time.sleep(600)
            if how == "callback, alike" and epoch == 2:
                print("RAISES", flush=True)
                time.sleep(number * 2)
                raise ValueError(f"it was so planned in process {number}")

        def on_train_begin(self, logs=None):
            fails("begin")

        def on_train_end(self, logs=None):
            if how == "after fit" and not is_victim:
                time.sleep(10)

    class Data(keras.utils.PyDataset):
        read = 0

        def __len__(self):
            return 5

        def __getitem__(self, index):
            Data.read += 1
            if Data.read > 12:
                fails("data")
            return np.full((50, 6), index, "float32"), np.ones((50, 1), "float32")

    with kte.strategy_scope(shard="fsdp" if how == "save" else None) as scope:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(64), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    fails("before fit")
    ends = how in ("after fit", "save")
    try:
        model.fit(Data(workers=1), epochs=3 if ends else 10**6, verbose=0, callbacks=[Callback()])
    except ValueError:
        if how != "callback, caught":
            raise
        time.sleep(8)
        print("GOES ON", flush=True)
    fails("after fit")
    if how == "save":
        if is_victim:
            keras.src.saving.saving_lib._save_model_to_fileobj = lambda *args: fails("save")
        model.save(folder + "/model.keras")
    print("ENDED BY ITSELF", flush=True)
"""
CASES = [
    pytest.param(1, "callback", id="a callback"),
    *(
        pytest.param(victim, how, id=f"{how}, process {victim}")
        for victim, how in [(0, "callback"), (1, "data"), (1, "begin"), (0, "before fit")]
    ),
    pytest.param(0, "save", id="saving a sharded model"),
]


class Ended:
    """How both processes have ended."""

    def __init__(self, victim, how, folder="", line="RAISES"):
        port = free_port()
        arguments = port, str(victim), how, str(folder)
        processes = [start(PROGRAM, number, *arguments) for number in (0, 1)]
        try:
            assert said(processes[victim], line)
            begun = time.monotonic()
            ended = [
                process.communicate(timeout=ENDS_WITHIN) for process in (processes[1 - victim], processes[victim])
            ]
            print(f"both ended after {time.monotonic() - begun:.1f} s")
        finally:
            for process in processes:
                process.kill()
        (self.out, self.err), (self.victims_out, self.victims_err) = ended
        self.status, self.victims_status = processes[1 - victim].returncode, processes[victim].returncode


def text(victim, error="ValueError: it was so planned"):
    return (
        f"keras_tpu_ext.errors.ClusterError: Process {victim} of 2 has failed ({error}), so this one, process "
        f"{1 - victim}, cannot go on. What to do: look for the cause in the output of process {victim}, then start "
        "all of them again; with keras_tpu_ext.callbacks.AutoResume they go on where they were.\n"
    )


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("victim", "how"), CASES)
def test_the_other_process_raises_an_error_that_names_the_one_that_failed(victim, how, tmp_path):
    ended = Ended(victim, how, tmp_path)
    assert (ended.status, ended.victims_status) == (1, 1), ended.err + ended.victims_err
    assert ended.err.endswith(text(victim))
    assert "Traceback" in ended.err
    assert ended.victims_err.endswith("ValueError: it was so planned\nwith details\n")
    assert "ClusterError" not in ended.victims_err


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_process_that_cannot_be_interrupted_prints_the_error_and_exits():
    ended = Ended(1, "callback, asleep")
    assert (ended.status, ended.victims_status) == (1, 1), ended.err + ended.victims_err
    assert ended.err.endswith(text(1))
    assert "Traceback" not in ended.err


@pytest.mark.exhaustive
@pytest.mark.slow
def test_each_raises_its_own_error_if_both_fail_alike():
    ended = Ended(0, "callback, alike")
    assert (ended.status, ended.victims_status) == (1, 1), ended.err + ended.victims_err
    assert ended.err.endswith("ValueError: it was so planned in process 1\n")
    assert ended.victims_err.endswith("ValueError: it was so planned in process 0\n")
    assert "ClusterError" not in ended.err + ended.victims_err


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_other_one_waits_for_a_process_that_has_caught_the_error_until_it_ends():
    ended = Ended(1, "callback, caught", line="GOES ON")  # 8 s after the error
    assert (ended.status, ended.victims_status) == (1, 0), ended.err + ended.victims_err
    assert ended.err.endswith(text(1))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_fit_that_the_failed_process_has_ended_ends_in_the_other_one_too():
    ended = Ended(1, "after fit")
    assert (ended.status, ended.victims_status) == (0, 1), ended.err + ended.victims_err
    assert ENDED in ended.out
    assert ended.victims_err.endswith("ValueError: it was so planned\nwith details\n")
