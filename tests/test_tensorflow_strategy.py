"""What `strategy_scope` and its `Scope` do on TensorFlow: tf.distribute, tf.data and TF_CONFIG."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError, RuntimeNotSupportedError, ScopeError
from kind_of_keras import IS_KERAS2
from sources import regression

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]


@pytest.fixture(autouse=True)
def _no_tpu_in_the_environment(monkeypatch):
    for name in ("TPU_NAME", "COLAB_TPU_ADDR", "TPU_GRPC_URL", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_the_cpu_alone_has_the_default_strategy_and_a_rehearsal_a_mirrored_one(scope8):
    assert kte.strategy_scope(require="cpu").strategy is tf.distribute.get_strategy()
    assert isinstance(scope8.strategy, tf.distribute.MirroredStrategy)


def test_a_scope_inside_another_strategy_is_refused_with_both_named(scope8):
    one = kte.strategy_scope()
    with (
        scope8,
        pytest.raises(
            ScopeError,
            match=r"A block for 1 replica \(DefaultDistributionStrategy\) was opened inside a block for "
            r"8 replicas \(MirroredStrategy\).*Leave the outer block first",
        ),
        one,
    ):
        pytest.fail("entered")
    own = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    mixed = dataclasses.replace(scope8, precision="mixed_bfloat16")
    with own.scope():
        with pytest.raises(ScopeError, match=r"inside a block for 2 replicas"), mixed:
            pytest.fail("entered")
        assert keras.config.dtype_policy().name == "float32"  # what was entered before the refusal is undone
        assert tf.distribute.get_strategy() is own


@pytest.mark.parametrize("examples", [1, 7, 16, 17, 30, 100])
def test_distribute_loses_nothing_and_doubles_nothing(scope8, examples):
    dataset = tf.data.Dataset.range(examples).batch(scope8.global_batch_size(2))
    seen = []
    for batch in scope8.distribute(dataset):
        parts = scope8.strategy.experimental_local_results(batch)
        assert len(parts) == 8
        assert max(len(part) for part in parts) <= 2
        seen += [int(value) for part in parts for value in part]
    assert sorted(seen) == list(range(examples))


def test_distribute_on_one_replica_gives_the_batches_as_they_are():
    dataset = tf.data.Dataset.range(10).batch(4)
    batches = [batch.numpy().tolist() for batch in kte.strategy_scope().distribute(dataset)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("replicas", [1, 8])
@pytest.mark.parametrize("data", [np.ones((4, 2)), [1, 2], None])
def test_distribute_wants_a_dataset(replicas, data):
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope(replicas=replicas).distribute(data)
    assert f"distribute needs a tf.data.Dataset; got {type(data).__name__}. Write scope.distribute(" in str(
        caught.value
    )


def test_distribute_wants_batches(scope8):
    with pytest.raises(ArgumentError, match=r"needs a dataset of batches.*dataset\.batch\(scope\.global_batch_size"):
        scope8.distribute(tf.data.Dataset.range(16))


@pytest.mark.parametrize("kind", [keras.Model, kte.TPUModel])
def test_a_model_built_inside_trains_by_the_scopes_strategy_outside(kind):
    scope = kte.strategy_scope(require="cpu", replicas=2)
    with scope:
        inputs = keras.Input((3,))
        model = kind(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    assert not tf.distribute.has_strategy()
    strategies, compute_loss = [], model.compute_loss

    def watched(*args, **kwargs):
        if tf.distribute.get_replica_context() is not None:  # not while Keras builds the model
            strategies.append(tf.distribute.get_strategy())
        return compute_loss(*args, **kwargs)

    model.compute_loss = watched
    x, y = regression()
    history = model.fit(x, y, batch_size=64, epochs=3, verbose=0).history["loss"]
    assert strategies
    assert all(strategy is scope.strategy for strategy in strategies)
    kernel = model.layers[-1].kernel if IS_KERAS2 else model.layers[-1].kernel.value
    assert len(scope.strategy.experimental_local_results(kernel)) == 2
    # One device with the same global batch; float32 sums in another order differ by about 1e-7.
    reference = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    reference.compile(keras.optimizers.SGD(0.1), "mse")
    expected = reference.fit(x, y, batch_size=64, epochs=3, verbose=0).history["loss"]
    np.testing.assert_allclose(history, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", 1),
        ("{}", 1),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}', 1),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}', 2),
        ('{"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, "task": {"type": "chief"}}', 2),
    ],
)
def test_workers_are_those_of_tf_config(monkeypatch, config, expected):
    monkeypatch.setenv("TF_CONFIG", config)
    assert _runtime.devices.num_workers() == expected


TWO = '"cluster": {"worker": ["a:1", "b:1"]}'
LED = '"cluster": {"chief": ["a:1"], "worker": ["b:1"]}'


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", True),
        ("{}", True),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}', True),
        (f'{{{TWO}, "task": {{"type": "worker", "index": 0}}}}', True),
        (f'{{{TWO}, "task": {{"type": "worker", "index": 1}}}}', False),
        (f'{{{LED}, "task": {{"type": "chief", "index": 0}}}}', True),
        (f'{{{LED}, "task": {{"type": "worker", "index": 0}}}}', False),
    ],
)
def test_one_process_of_tf_config_is_the_chief(monkeypatch, config, expected):
    monkeypatch.setenv("TF_CONFIG", config)
    assert _runtime.devices.is_chief() is expected


@pytest.mark.exhaustive
def test_several_processes_that_come_too_late_are_told(monkeypatch):
    keep = tf.constant(1.0)
    monkeypatch.setenv("TF_CONFIG", f'{{{TWO}, "task": {{"type": "worker", "index": 1}}}}')
    with pytest.raises(ScopeError, match=r"only train together from the start of TensorFlow.*An earlier call came"):
        kte.strategy_scope()
    del keep


@pytest.mark.parametrize("value", ["soon", "0", "-1", "2.5"])
def test_a_start_timeout_that_is_no_number_of_seconds_is_told(monkeypatch, value):
    monkeypatch.setenv("TF_CONFIG", f'{{{TWO}, "task": {{"type": "worker", "index": 1}}}}')
    monkeypatch.setenv("KTE_START_TIMEOUT", value)
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope()
    assert str(caught.value) == (
        f"The environment variable KTE_START_TIMEOUT must be a whole number of seconds; got {value!r}. "
        "Write KTE_START_TIMEOUT=300, say, or unset it."
    )


@pytest.mark.parametrize("config", ["worker", '{"cluster": 5}'])
def test_a_tf_config_that_cannot_be_read_is_told(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope()
    text = str(caught.value)
    assert text.startswith(f"The environment variable TF_CONFIG must be JSON that names a cluster; got {config!r}.")
    assert "Unset it to train in one process, or write" in text


def test_models_are_sharded_on_jax_only():
    message = r'is for Keras 3 on JAX; .*Write os\.environ\["KERAS_BACKEND"\] = "jax"'
    with pytest.raises(RuntimeNotSupportedError, match=message):
        kte.strategy_scope(require="cpu", shard="fsdp")


def test_the_layout_of_a_model_that_is_not_sharded():
    scope = kte.strategy_scope(require="cpu")
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="out")])
        model.compile("adam", "mse")
    report = scope.layout(model)
    assert report.ok
    assert report.bytes_per_device >= (4 * 3 + 3) * 4
    assert "(4, 3)" in str(report)
