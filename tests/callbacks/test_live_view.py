"""The table of a running fit, in a notebook, in a terminal and in a file."""

import contextlib
import importlib.util
import io
import re
import sys
import time
import types

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.callbacks import AutoResume, Goodput, LiveView, Throughput, _live_table, live_view
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.plan import Cost, PlanReport, Seconds
from virtual_time import VirtualTime

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

BATCH = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
HAS_RICH = importlib.util.find_spec("rich") is not None


class Sets(keras.callbacks.Callback):
    """Puts keys into `logs`, and takes time."""

    def __init__(self, clock, logs, *, step=1.0, epoch=0.0):
        super().__init__()
        self.clock, self.logs, self.step, self.epoch = clock, logs, step, epoch

    def on_train_batch_end(self, batch, logs=None):
        self.clock.sleep(self.step)
        logs.update(self.logs)

    def on_epoch_end(self, epoch, logs=None):
        self.clock.sleep(self.epoch)
        logs.update(self.logs)


class Seen:
    """Where views are shown in a test."""

    def __init__(self):
        self.views, self.closed = [], 0

    def show(self, view, *, epoch_ended):
        self.views.append(view)

    def close(self):
        self.closed += 1


@pytest.fixture
def seen(monkeypatch):
    there = Seen()
    monkeypatch.setattr(live_view, "screen", lambda: there)
    return there


def built(scope=None):
    with scope or contextlib.nullcontext():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def test_a_file_gets_one_line_for_each_epoch(capsys):
    clock = VirtualTime()
    logs = {
        "loss": 0.24513,
        "throughput/samples_per_sec": 149494.3180,
        "input/wait_fraction": 0.0,
        "throughput/device/mfu": 0.4312,
        "device_memory/in_use_gib": 1.5,
        "goodput/fraction": 0.8126,
        "recompilations/count": 1.0,
        "loss_scale/value": float("nan"),
    }
    callbacks = [Sets(clock, logs, step=60.0, epoch=15.0), LiveView(clock=clock)]
    built().fit(*BATCH, batch_size=2, epochs=3, verbose=0, callbacks=callbacks)
    shown = (
        "loss 0.2451  loss_scale/value nan  149k/s  wait 0.0 %  MFU 43.1 %  memory 1.5 GiB  goodput 81.3 %  "
        "recompiled 1"
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1 of 3", "epoch 2 of 3", "epoch 3 of 3"]
    assert all(shown in line for line in lines)
    assert re.search(r"  at least \d+ min \d\d s left$", lines[0])
    assert lines[2].endswith("recompiled 1")


def test_the_time_left_is_that_of_steps_and_validation(seen):
    clock = VirtualTime()
    validation = keras.callbacks.LambdaCallback(on_test_end=lambda logs: clock.sleep(30.0))
    callbacks = [Sets(clock, {}, step=10.0), validation, LiveView(clock=clock)]
    built().fit(*BATCH, batch_size=2, epochs=3, verbose=0, validation_data=BATCH, callbacks=callbacks)
    captions = [view.caption for view in seen.views]
    # Steps take 10 s, validation 30 s; the first batch of an epoch is at its 10th second.
    assert captions[0] == "epoch 1 of 3, step 1 of 4"
    assert captions[1] == "epoch 1 of 3, step 2 of 4; at least 1 min 40 s left"
    of_second = [caption for caption in captions if caption.startswith("epoch 2 of 3, step")]
    assert of_second[1] == "epoch 2 of 3, step 2 of 4; 2 min 00 s left"  # 20 + 30 + 40 + 30
    assert captions[-1] == "epoch 3 of 3"


def test_in_the_first_epoch_validation_takes_as_long_as_planned(seen):
    clock = VirtualTime()
    validation = keras.callbacks.LambdaCallback(on_test_end=lambda logs: clock.sleep(30.0))
    step = Cost("training", Seconds.exactly(120.0), ""), Cost("validation", Seconds.exactly(60.0), "")
    plan = PlanReport("net", "cpu", 3, 4, 2, step, hours=1.0)
    callbacks = [Sets(clock, {}, step=10.0), validation, LiveView(plan=plan, clock=clock)]
    built().fit(*BATCH, batch_size=2, epochs=3, verbose=0, validation_data=BATCH, callbacks=callbacks)
    captions = [view.caption for view in seen.views]
    assert re.fullmatch(
        r"epoch 1 of 3, step 2 of 4; 2 min 40 s left, your 1 h end in 59 min \d\d s", captions[1]
    )  # 20 + 20 and twice 40 + 20
    of_second = [caption for caption in captions if caption.startswith("epoch 2 of 3, step")]
    assert of_second[1].startswith("epoch 2 of 3, step 2 of 4; 2 min 00 s left")  # as measured


def test_a_validation_is_shown_while_it_runs(seen):
    clock = VirtualTime()
    validation = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: clock.sleep(30.0))
    callbacks = [Sets(clock, {"loss": 0.5}, step=10.0), validation, LiveView(clock=clock)]
    built().fit(*BATCH, batch_size=2, epochs=2, verbose=0, validation_data=BATCH, callbacks=callbacks)
    views = [view for view in seen.views if "validation" in view.place]
    assert [view.place for view in views[:4]] == [f"epoch 1 of 2, validation, step {i + 1}" for i in range(4)]
    assert views[0].rows[-1] == ["1", "0.5"]  # the epoch's, not those of the validation
    assert views[5].caption == "epoch 2 of 2, validation, step 2; 1 min 00 s left"


def test_it_is_shown_four_times_a_second_at_most(seen):
    clock = VirtualTime()
    callbacks = [Sets(clock, {}, step=0.01), LiveView(clock=clock)]
    x, y = np.ones((200, 4), "float32"), np.ones((200, 1), "float32")
    built().fit(x, y, batch_size=2, epochs=1, verbose=0, callbacks=callbacks)
    assert 4 <= len(seen.views) <= 6  # a second, the first batch and the end


def test_the_hook_of_a_batch_only_looks_at_the_clock(seen, monkeypatch):
    looked = []
    clock = VirtualTime()
    monkeypatch.setattr(live_view, "cells", lambda logs: looked.append(logs) or {})
    built().fit(*BATCH, batch_size=1, verbose=0, callbacks=[Sets(clock, {}, step=0.0), LiveView(clock=clock)])
    assert len(looked) == 2


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.runtimes("keras3_jax", reason="only Keras on JAX calls hooks of batches beside each other")
def test_hooks_that_are_called_beside_each_other_show_one_view(monkeypatch):
    class Slow(Seen):
        def show(self, view, *, epoch_ended):
            super().show(view, epoch_ended=epoch_ended)
            time.sleep(0.0 if epoch_ended else 0.5)

    there = Slow()
    monkeypatch.setattr(live_view, "screen", lambda: there)
    x, y = np.ones((200, 4), "float32"), np.ones((200, 1), "float32")
    built().fit(x, y, batch_size=2, epochs=1, verbose=0, callbacks=[LiveView(clock=lambda: 0.0)])
    assert len(there.views) == 2


def test_it_has_a_row_for_each_of_the_last_epochs(seen):
    clock = VirtualTime()
    callbacks = [Sets(clock, {"loss": 0.5, "accuracy": 0.75}), LiveView(clock=clock)]
    built().fit(*BATCH, epochs=12, verbose=0, validation_data=BATCH, callbacks=callbacks)
    view = seen.views[-1]
    assert view.header == ["epoch", "loss", "val_loss", "accuracy"]
    assert [row[0] for row in view.rows] == [str(number) for number in range(5, 13)]
    assert view.rows[0][1::2] == ["0.5", "0.75"]
    assert seen.closed == 1


def test_it_closes_after_an_error(seen, scope4):
    def fail(*_):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        built(scope4).fit(
            *BATCH, verbose=0, callbacks=[LiveView(), keras.callbacks.LambdaCallback(on_epoch_end=fail)]
        )
    assert seen.closed == 1


class Plan:
    def to_dict(self):
        return {"hours": 1}


def test_it_compares_with_the_hours_of_the_plan(seen):
    clock = VirtualTime()
    callbacks = [Sets(clock, {}, step=600.0), LiveView(plan=Plan(), clock=clock)]
    built().fit(*BATCH, batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    captions = [view.caption for view in seen.views]
    assert re.fullmatch(
        r"epoch 1 of 2, step 2 of 4; at least 1 h 00 min left, your 1 h end in (40 min 00|39 min 5\d) s"
        r": 20 min 0\d s short",
        captions[1],
    )


def test_it_compares_with_the_deadline_of_auto_resume(seen, monkeypatch, tmp_path):
    monkeypatch.setattr(live_view, "seconds_of_process", lambda: 1000.0)
    clock = VirtualTime()
    resume = AutoResume(tmp_path, deadline_s=1e9)
    callbacks = [resume, Sets(clock, {}, step=1.0), LiveView(plan=Plan(), clock=clock)]
    built(kte.strategy_scope(require="cpu")).fit(*BATCH, batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    until = "277777 h 30 min"
    assert seen.views[1].caption == f"epoch 1 of 2, step 2 of 4; at least 6 s left, the deadline is in {until}"


def test_it_says_so_if_it_is_not_last(seen):
    clock = VirtualTime()
    callbacks = [LiveView(), Sets(clock, {"goodput/fraction": 0.5})]
    with pytest.warns(UserWarning, match=r"LiveView does not see goodput/fraction: .* Write it last") as warned:
        built().fit(*BATCH, epochs=3, verbose=0, callbacks=callbacks)
    assert len([one for one in warned if "LiveView" in str(one.message)]) == 1


def test_it_says_so_if_there_is_a_progress_bar(seen, capsys):
    with pytest.warns(UserWarning, match=r"progress bar, which is shown as well\. Write: fit\(\.\.\., verbose=0\)"):
        built().fit(*BATCH, epochs=1, verbose=1, callbacks=[LiveView()])


def test_real_callbacks_are_shown(seen, scope4):
    x, y = np.ones((400, 4), "float32"), np.ones((400, 1), "float32")
    built(scope4).fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Throughput(), Goodput(), LiveView()])
    view = seen.views[-1]
    assert view.header == ["epoch", "loss", "rate", "goodput"]
    assert re.fullmatch(r"[\d.]+k?/s", view.rows[-1][2])
    assert re.fullmatch(r"[\d.]+ %", view.rows[-1][3])


def a_view(**changed):
    rows = [["1", "<b>0.5</b>", "149k/s"], ["2", "[red]0.4", "150k/s"]]
    view = _live_table.View(["epoch", "loss", "rate"], rows, "epoch 2 of 3, step 7 of 9", "12 s left")
    return view._replace(**changed)


def test_a_notebook_has_one_output_that_changes(monkeypatch):
    shown = []

    class Handle:
        def update(self, html):
            shown.append(("updated", html))

    def display(html, display_id):
        assert display_id is True
        shown.append(("shown", html))
        return Handle()

    kernel = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    there = _live_table.screen()
    for _ in range(2):
        there.show(a_view(), epoch_ended=False)
    there.close()
    assert [how for how, _ in shown] == ["shown", "updated", "updated"]
    assert "&lt;b&gt;0.5&lt;/b&gt;" in shown[1][1]
    assert "epoch 2 of 3, step 7 of 9; 12 s left" in shown[1][1]


def test_an_interactive_shell_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: object()))
    assert type(_live_table.screen()) is _live_table.Screen


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.skipif(not HAS_RICH, reason="a terminal needs rich, which Keras 3 brings")
def test_a_terminal_is_drawn_in_place(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    there, out = _live_table.screen(), sys.stdout
    for _ in range(3):
        there.show(a_view(), epoch_ended=False)
    print("HostBottleneck: said something")
    there.close()
    text = out.getvalue()
    assert text.count("\x1b[1A") >= 2 * 5  # up again, for each further one
    assert "[red]0.4" in text  # not as markup
    assert "HostBottleneck: said something" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert sys.stdout is out


@pytest.mark.skipif(HAS_RICH, reason="without rich")
def test_a_terminal_without_rich_gets_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert type(_live_table.screen()) is _live_table.Screen


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match=r"LiveView: `plan` must be what kte\.plan returned, or None; got 3"):
        LiveView(plan=3)
    with pytest.raises(ArgumentError, match=r"LiveView: `clock` must be a function that returns seconds; got 3"):
        LiveView(clock=3)
    assert repr(LiveView()) == "<LiveView: not shown>"


def test_a_slow_screen_is_updated_less_often(monkeypatch):
    clock = VirtualTime()

    class Slow(Seen):
        def show(self, view, *, epoch_ended):
            super().show(view, epoch_ended=epoch_ended)
            clock.sleep(0.01)

    there = Slow()
    monkeypatch.setattr(live_view, "screen", lambda: there)
    x, y = np.ones((200, 4), "float32"), np.ones((200, 1), "float32")
    callbacks = [Sets(clock, {}, step=0.1), LiveView(clock=clock)]
    built().fit(x, y, batch_size=2, epochs=1, verbose=0, callbacks=callbacks)
    assert 10 <= len(there.views) <= 12  # each second of ten, and the end
