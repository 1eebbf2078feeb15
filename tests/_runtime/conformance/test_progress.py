import keras
import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime

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


def test_a_stateful_metric_is_shown_as_it_is(capsys):
    progress.mark_stateful_metrics(["conformance/last"])

    class Shows(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            logs["conformance/last"] = float(batch)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    bar = keras.callbacks.ProgbarLogger()
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=1, callbacks=[Shows(), bar])
    assert "conformance/last: 1.0000" in capsys.readouterr().out


def test_event_files_are_written_into_the_folder(tmp_path):
    made = progress.event_file_class()(str(tmp_path))
    assert made is not None
