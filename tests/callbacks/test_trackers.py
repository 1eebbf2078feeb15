"""What experiment trackers read of our keys, each without a network; skipped where one is not installed.

Slashes in names and NaN are what one could stumble over. To run all of them:

    uv venv env
    uv pip install --python env/bin/python jax keras tensorflow-cpu wandb mlflow-skinny pandas keras-tuner six \\
        tensorboard pytest pytest-xdist hypothesis scikit-learn
    KERAS_BACKEND=jax env/bin/python -m pytest --tier=exhaustive tests/callbacks/test_trackers.py
"""

import copy
import math

import keras
import numpy as np
import pytest

from keras_tpu_ext.callbacks import Goodput, HostBottleneck, LiveView, RunLog, Throughput

pytestmark = [
    pytest.mark.gate_on("keras3_jax"),
    pytest.mark.filterwarnings("default"),  # theirs
]

DATA = np.ones((160, 4), "float32"), np.ones((160, 1), "float32")
KEYS = ("throughput/samples_per_sec", "input/wait_fraction", "goodput/fraction")


class Spoils(keras.callbacks.Callback):
    """Makes a value NaN in the first epoch, as it is where nothing was measured."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            logs["input/wait_fraction"] = math.nan


def built():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(*trackers, model=None):
    callbacks = [Throughput(), HostBottleneck(verbose=False), Goodput(), Spoils(), *trackers]
    return (model or built()).fit(*DATA, batch_size=2, epochs=2, verbose=0, callbacks=callbacks).history


def test_callbacks_can_be_copied_as_keras_tuner_does_before_each_trial(tmp_path):
    for one in (Throughput(), HostBottleneck(), Goodput(), LiveView(), RunLog(tmp_path)):
        built().fit(*DATA, verbose=0, callbacks=[copy.deepcopy(one)])


def test_weights_and_biases(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    integration = pytest.importorskip("wandb.integration.keras", reason="it imports TensorFlow, which is not there")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="test")
    history = fit(integration.WandbMetricsLogger())
    summary = dict(run.summary)
    run.finish()
    for key in KEYS:
        assert summary[f"epoch/{key}"] == pytest.approx(history[key][-1]), key


def test_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    callback = pytest.importorskip("mlflow.keras", reason="mlflow.keras needs pandas").MlflowCallback
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        history = fit(callback())
    client = mlflow.MlflowClient()
    for key in KEYS:
        values = [metric.value for metric in client.get_metric_history(run.info.run_id, key)]
        assert values == pytest.approx(history[key], nan_ok=True), key


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("tensorflow", reason="keras.callbacks.TensorBoard writes with TensorFlow")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    history = fit(keras.callbacks.TensorBoard(str(tmp_path)))
    events = EventAccumulator(str(tmp_path / "train"))
    events.Reload()
    for key in KEYS:
        values = [float(make_ndarray(event.tensor_proto)) for event in events.Tensors(f"epoch_{key}")]
        assert values == pytest.approx(history[key], nan_ok=True), key


def test_keras_tuner(tmp_path):
    tuner = pytest.importorskip("keras_tuner", reason="keras-tuner is not installed")

    def build(choices):
        choices.Int("units", 1, 4)
        return built()

    search = tuner.RandomSearch(
        build,
        objective=tuner.Objective("throughput/samples_per_sec", "max"),
        max_trials=2,
        directory=str(tmp_path),
    )
    log = RunLog(tmp_path / "run")
    callbacks = [Throughput(), Goodput(), log]
    search.search(*DATA, batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    trials = search.oracle.get_best_trials(2)
    assert all(trial.score > 0 for trial in trials)
    assert (tmp_path / "run" / "run.json").exists()
