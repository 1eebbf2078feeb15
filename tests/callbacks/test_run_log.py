"""What `RunLog` keeps of a `fit`, and what an interruption costs by it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.callbacks import AutoResume, Goodput, HostBottleneck, RunLog, RunReport, Throughput
from keras_tpu_ext.errors import ArgumentError, NothingMeasuredError
from kind_of_keras import IMPORT_KERAS
from virtual_time import VirtualTime

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

BATCH = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


class Own(keras.callbacks.Callback):
    """Calls a function after each batch and each epoch."""

    def __init__(self, after_batch=lambda batch: None, at_end=lambda epoch, logs: None):
        super().__init__()
        self.after_batch, self.at_end = after_batch, at_end

    def on_train_batch_end(self, batch, logs=None):
        self.after_batch(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.at_end(epoch, logs)


def built(scope=None):
    with scope or contextlib.nullcontext():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def kept(folder):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads((folder / "run.json").read_text(), parse_constant=refuse)


@pytest.mark.parametrize("scoped", [True, False])
def test_it_keeps_what_the_other_callbacks_found(scoped, scope4, tmp_path):
    log = RunLog(tmp_path / "run")  # before the others, which does not matter
    callbacks = [log, Throughput(), Goodput()]
    model = built(scope4 if scoped else None)
    history = model.fit(*BATCH, batch_size=2, epochs=2, verbose=0, callbacks=callbacks).history
    run = kept(tmp_path / "run")
    assert (run["finished"], run["returned"], run["problem"]) == (True, True, "")
    assert run["arguments"] == {"epochs": 2, "steps": 4}
    assert "CPU" in run["hardware"]
    assert ("trained on 4 devices" in run["hardware"]) == scoped
    assert {"python", "keras_tpu_ext"} < set(run["versions"])
    assert [one["epoch"] for one in run["history"]] == [0, 1]
    assert [one["logs"]["loss"] for one in run["history"]] == pytest.approx(history["loss"])
    assert set(run["history"][1]["logs"]) == set(history)
    assert set(run["reports"]) == {"Goodput"}
    assert run["reports"]["Goodput"]["ok"]
    assert run["wall_seconds"] == pytest.approx(run["reports"]["Goodput"]["wall_seconds"], abs=0.5)
    assert log.report().to_dict()["reports"].keys() == run["reports"].keys()


def test_a_plan_and_the_verdict_on_the_input_are_kept(tmp_path):
    class Plan:
        def to_dict(self):
            return {"hours": 9, "buckets": {"training": 5.0}}

    x, y = np.ones((400, 4), "float32"), np.ones((400, 1), "float32")
    callbacks = [HostBottleneck(verbose=False), RunLog(tmp_path, plan=Plan())]
    built().fit(x, y, batch_size=4, verbose=0, callbacks=callbacks)
    run = kept(tmp_path)
    assert run["plan"] == Plan().to_dict()
    assert run["reports"]["HostBottleneck"]["verdict"].endswith("input-bound")
    assert run["reports"]["HostBottleneck"]["shares"].keys() == {"input", "device", "callbacks", "python"}


def test_what_is_no_number_is_null(tmp_path):
    def spoil(epoch, logs):
        logs.update(nan=np.float32("nan"), inf=float("inf"), text="text", half=np.float32(0.5))

    built().fit(*BATCH, verbose=0, callbacks=[RunLog(tmp_path), Own(at_end=spoil)])
    logs = kept(tmp_path)["history"][0]["logs"]
    assert (logs["nan"], logs["inf"], logs["half"], "text" in logs) == (None, None, 0.5, False)


def test_it_writes_as_often_as_it_is_told_to(tmp_path):
    clock, written = VirtualTime(), []

    def look(batch):
        written.append(kept(tmp_path)["wall_seconds"])
        clock.sleep(4.0)

    callbacks = [Own(look), RunLog(tmp_path, clock=clock)]
    built().fit(*BATCH, batch_size=1, verbose=0, callbacks=callbacks)
    ages = [4.0 * i - (seconds - written[0]) for i, seconds in enumerate(written)]
    assert max(ages) < 12.5  # 10 s, and up to a batch
    assert len({round(seconds) for seconds in written}) == 3


def test_epochs_that_are_short_are_not_all_written(tmp_path, monkeypatch):
    clock, count = VirtualTime(), []

    def slow(folder, run):
        count.append(len(run["history"]))
        clock.sleep(0.1)

    monkeypatch.setattr("keras_tpu_ext.callbacks.run_log.write_run", slow)
    callbacks = [Own(at_end=lambda *_: clock.sleep(1.0)), RunLog(tmp_path, clock=clock, every_s=1e9)]
    built().fit(*BATCH, batch_size=8, epochs=40, verbose=0, callbacks=callbacks)
    assert count[-1] == 40
    assert len([one for one in count if 0 < one < 40]) <= 4  # 0.1 s in each 10 s


@pytest.mark.parametrize("scoped", [True, False])
def test_after_an_error_it_has_what_was_known(scoped, scope4, tmp_path):
    def fail(batch):
        if batch == 2:
            raise ValueError("no <more> data")

    callbacks = [Goodput(), RunLog(tmp_path), Own(fail)]
    with pytest.raises(ValueError, match="data"):
        built(scope4 if scoped else None).fit(*BATCH, batch_size=2, verbose=0, callbacks=callbacks)
    run = kept(tmp_path)
    assert (run["finished"], run["returned"]) == (False, False)
    assert run["problem"] == "ValueError: no <more> data"
    assert "Goodput" in run["reports"]


def test_reports_of_others_are_kept_and_those_that_fail_are_told(tmp_path):
    class Reports(keras.callbacks.Callback):
        def report(self):
            return self

        def to_dict(self):
            return {"found": np.int64(3), "shape": (2, 3), "what": print}

    class Wrong(keras.callbacks.Callback):
        def report(self, needed):
            return needed

    callbacks = [Reports(), Reports(), Wrong(), Goodput(), RunLog(tmp_path)]
    built().fit(*BATCH, verbose=0, callbacks=callbacks)
    reports = kept(tmp_path)["reports"]
    assert list(reports) == ["Reports", "Reports 2", "Wrong", "Goodput"]
    assert reports["Reports"] == {"found": 3, "shape": [2, 3], "what": str(print)}
    assert "missing 1 required positional argument" in reports["Wrong"]["problem"]


def test_a_full_disk_does_not_end_the_training(tmp_path, monkeypatch):
    def full(folder, run):
        raise OSError("No space left on device")

    monkeypatch.setattr("keras_tpu_ext.callbacks.run_log.write_run", full)
    with pytest.warns(UserWarning, match=r"RunLog could not write .*run\.json: No space left") as warned:
        built().fit(*BATCH, epochs=3, verbose=0, callbacks=[RunLog(tmp_path)])
    assert len([one for one in warned if "RunLog" in str(one.message)]) == 1


def test_a_file_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "run.json").write_text('{"name": "mine"}')
    with pytest.raises(ArgumentError, match=r"run\.json is no file of kte\.callbacks\.RunLog: .* Move it away"):
        built().fit(*BATCH, verbose=0, callbacks=[RunLog(tmp_path)])
    assert (tmp_path / "run.json").read_text() == '{"name": "mine"}'


def training(clock, folder, after_batch):
    """Train with AutoResume, which saves before each batch; return what `Goodput` found."""
    goodput = Goodput(clock=clock)
    resume = AutoResume(folder / "checkpoints", every_s=1e-9)

    def after_saving(batch):
        while resume._fit._saver.is_writing():  # or the last checkpoint is of some batch before
            time.sleep(0.01)
        after_batch(batch)

    callbacks = [goodput, resume, Own(after_saving), RunLog(folder, clock=clock)]
    with contextlib.suppress(RuntimeError):
        built(kte.strategy_scope(require="cpu")).fit(*BATCH, batch_size=2, epochs=3, verbose=0, callbacks=callbacks)
    return goodput.report()


def dying(clock, at):
    """Return a hook that takes a second, and in one batch of all 100 seconds, to fail then."""
    batches = iter(range(1000))

    def after_batch(batch):
        dies = next(batches) == at
        clock.sleep(100.0 if dies else 1.0)
        if dies:
            raise RuntimeError("the machine is gone")

    return after_batch


@pytest.mark.filterwarnings("ignore:AutoResume")
def test_what_was_not_saved_is_lost_and_earlier_epochs_stay(tmp_path):
    clock = VirtualTime()
    training(clock, tmp_path, dying(clock, 5))
    first = kept(tmp_path)
    assert not first["finished"]
    assert first["wall_seconds"] > 100
    training(clock, tmp_path, dying(clock, 3))
    again = kept(tmp_path)
    assert again["reports"]["Goodput"]["seconds"]["lost"] == pytest.approx(103.0, abs=4)  # a save may be late
    third = training(clock, tmp_path, lambda batch: clock.sleep(1.0))
    run = kept(tmp_path)
    assert run["finished"]
    assert [one["epoch"] for one in run["history"]] == [0, 1, 2]
    assert third.starts == 3
    assert third.ok
    assert third.seconds["lost"] == pytest.approx(206.0, abs=8)
    assert third.wall_seconds == pytest.approx(run["wall_seconds"], abs=1.0)


@pytest.mark.filterwarnings("ignore:AutoResume")
def test_what_was_stopped_and_saved_is_not_lost(tmp_path):
    clock = VirtualTime()

    def stop(batch):
        clock.sleep(1.0)
        if batch == 1:
            signal.raise_signal(signal.SIGTERM)

    training(clock, tmp_path, stop)
    run = kept(tmp_path)
    assert (run["finished"], run["returned"]) == (False, True)
    report = training(clock, tmp_path, lambda batch: clock.sleep(1.0))
    assert report.seconds.get("lost", 0.0) == 0
    assert kept(tmp_path)["finished"]


def test_a_run_without_auto_resume_begins_anew(tmp_path):
    clock = VirtualTime()
    model = built(kte.strategy_scope(require="cpu"))
    for batch, expected in ((2, 102.0), (99, 4.0)):
        with contextlib.suppress(RuntimeError):
            callbacks = [Own(dying(clock, batch)), RunLog(tmp_path, clock=clock)]
            model.fit(*BATCH, batch_size=2, verbose=0, callbacks=callbacks)
        assert kept(tmp_path)["wall_seconds"] == pytest.approx(expected, abs=1.5)


KILLED = """
    import os, signal, sys, time
    import keras
    import numpy as np
    import keras_tpu_ext as kte

    class Pauses(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1 and sys.argv[2] == "dies":
                time.sleep(3.0)

    class Dies(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1 and sys.argv[2] == "dies":
                os.kill(os.getpid(), signal.SIGKILL)

    with kte.strategy_scope(require="cpu"):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    resume = kte.callbacks.AutoResume(sys.argv[1] + "/checkpoints", every_s=1e-9)
    log = kte.callbacks.RunLog(sys.argv[1], every_s=0.1)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    callbacks = [kte.callbacks.Goodput(), resume, Pauses(), log, Dies()]
    model.fit(x, y, batch_size=2, epochs=3, verbose=0, callbacks=callbacks)
"""


@pytest.mark.exhaustive
def test_a_killed_process_and_what_it_cost(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(KILLED).replace("import keras\n", f"{IMPORT_KERAS}\n"))
    tests = Path(__file__).parents[1]
    path = os.pathsep.join(map(str, (Path(kte.__file__).parents[1], tests, tests / "support")))
    for end, status in (("dies", -signal.SIGKILL), ("goes on", 0)):
        command = [sys.executable, str(program), str(tmp_path), end]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        run = kept(tmp_path)
        assert run["finished"] == (end != "dies")
    goodput = run["reports"]["Goodput"]
    assert goodput["starts"] == 2
    assert 3.0 <= goodput["seconds"]["lost"] < 20.0  # on a busy machine
    assert goodput["ok"]
    assert not list(tmp_path.glob("*unfinished"))


def test_before_a_fit_there_is_nothing(tmp_path):
    log = RunLog(tmp_path)
    with pytest.raises(NothingMeasuredError, match=r"Write: model\.fit\(\.\.\., callbacks=\[log\]\)"):
        log.report()
    assert repr(log) == f"<RunLog: {tmp_path / 'run.json'}>"
    assert not list(tmp_path.iterdir())
    built().fit(*BATCH, verbose=0, callbacks=[log])
    assert isinstance(log.report(), RunReport)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"directory": 3}, r"RunLog: `directory` must be the path of a folder; got 3"),
        ({"every_s": 0}, r"RunLog: `every_s` must be a number above 0; got 0\. Write every_s=10\."),
        ({"plan": 3}, r"RunLog: `plan` must be what kte\.plan returned, or None; got 3"),
        ({"clock": 3}, r"RunLog: `clock` must be a function that returns seconds; got 3"),
    ],
)
def test_arguments_are_checked(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        RunLog(**{"directory": "run", **arguments})
