import math
import re
import time

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from kind_of_keras import ROUNDS_IN_BARS

ONE = "1" if ROUNDS_IN_BARS else "1.0000"
progress = _runtime.progress


def test_a_model_that_has_not_trained_has_come_nowhere(plain):
    assert progress.train_steps(plain) == 0
    assert progress.loss_scale(plain) is None
    assert progress.skipped_steps(plain) is None


def test_an_epoch_of_ten_examples_is_three_steps(trained):
    assert progress.examples_seen(trained) == 10
    assert progress.train_steps(trained) == 3
    assert progress.loss_scale(trained) == 8.0
    assert progress.skipped_steps(trained) == 0


def test_a_skipped_step_is_counted_and_halves_the_scale(make):
    model = make(kte.TPUModel, loss_scale=kte.LossScale(initial=8.0))
    x = np.ones((4, 2), "float32")
    model.fit(x, np.full((4, 1), np.inf, "float32"), verbose=0)
    assert progress.skipped_steps(model) == 1
    assert progress.loss_scale(model) == 4.0


@pytest.fixture
def names():
    from keras_tpu_ext._runtime.training import progress as training_progress

    before = dict(training_progress._names)
    yield
    training_progress._names.clear()
    training_progress._names.update(before)


def shown(capsys, keys, value=None):
    class Shows(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            logs.update({key: float(batch) if value is None else value for key in keys})

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    bar = keras.callbacks.ProgbarLogger()
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=1, callbacks=[Shows(), bar])
    return capsys.readouterr().out


def test_a_progress_bar_shows_the_last_value_by_another_name(capsys, names):
    progress.show_in_progress_bar({"conformance/last": "last", "conformance/hidden": None})
    text = shown(capsys, ["conformance/last", "conformance/hidden"])
    assert re.search(rf" last: {ONE}\s", text)
    assert "conformance" not in text


def test_what_is_not_known_yet_is_not_shown(capsys, names):
    progress.show_in_progress_bar({"conformance/unknown": "unknown"})
    assert "unknown" not in shown(capsys, ["conformance/unknown"], math.nan)


def test_of_short_names_three_are_shown_and_all_that_keep_theirs(capsys, names):
    keys = [f"conformance/{i}" for i in range(5)]
    progress.show_in_progress_bar({key: f"short{key[-1]}" for key in keys[:4]} | {keys[4]: keys[4]})
    text = shown(capsys, keys)
    assert all(f"short{i}: {ONE} " in text for i in range(3))
    assert "short3" not in text
    assert f"conformance/4: {ONE}" in text


def test_event_files_are_written_into_the_folder(tmp_path):
    made = _runtime.event_file_class()(str(tmp_path))
    assert made is not None


def test_it_counts_examples_and_knows_the_index_of_a_batch(trained):
    assert progress.counts_examples(trained)
    assert progress.end_names_last_batch() in (True, False)


def test_a_fit_is_watched_from_its_first_line_to_its_last(make, rows, monkeypatch):
    monkeypatch.setattr("keras_tpu_ext._runtime.training.progress._WATCHES", [])
    seen = []

    class Watched(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            seen.append("last hook")

    def watch(model, callbacks, began, at_end):
        seen.append((model, time.perf_counter() >= began))
        at_end.callback(seen.append, "end")
        return [one for one in callbacks if isinstance(one, Watched)]

    progress.watch_fits(watch)
    model, other = make(kte.TPUModel), keras.callbacks.LambdaCallback(on_train_end=lambda logs: seen.append("other"))
    model.fit(*rows, verbose=0, callbacks=[Watched(), other])
    assert seen == [(model, True), "last hook", "end"]


def test_a_stock_method_that_somebody_put_back_is_patched_again(make, rows, monkeypatch):
    monkeypatch.setattr("keras_tpu_ext._runtime.training.progress._WATCHES", [])
    seen = []

    def watch(model, callbacks, began, at_end):
        seen.append(model)
        return callbacks

    progress.watch_fits(watch)
    monkeypatch.setattr(
        keras.callbacks.CallbackList, "on_train_begin", keras.callbacks.CallbackList.on_train_begin.__wrapped__
    )
    progress.watch_fits(watch)  # as each new callback does
    model = make(kte.TPUModel)
    model.fit(*rows, verbose=0)
    assert seen == [model]


def test_hooks_that_run_beside_the_next_step_are_waited_for():
    class Waits(keras.callbacks.Callback):
        async_safe = True
        ended = ()

        def on_train_batch_begin(self, batch, logs=None):
            progress.finish_hooks()
            assert sorted(self.ended) == list(range(batch))

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.05)
            self.ended += (batch,)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    observed = [Waits(), kte.callbacks.Throughput()]
    model.fit(np.ones((12, 2)), np.ones((12, 1)), batch_size=4, verbose=0, callbacks=observed)
    assert len(observed[0].ended) == 3
    progress.finish_hooks()  # of no `fit`
