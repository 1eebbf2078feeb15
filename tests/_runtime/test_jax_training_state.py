"""What a training has come to, on JAX: copies that no later step changes, and for which none waits."""

import jax
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.jax import training_state

pytestmark = pytest.mark.runtimes("keras3_jax")
X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")


def trained(shard=None):
    keras.utils.set_random_seed(0)
    with kte.strategy_scope(replicas=8, require="cpu", shard=shard):
        layers = [keras.layers.Dense(1024, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile("adam", "mse")
    train(model)
    return model


def train(model):
    model.fit(X, X.sum(axis=1), epochs=1, verbose=0)


def values(model):
    return [np.array(variable) for _, variable in training_state.all_variables(model)]


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("shard", [None, "fsdp"])
def test_later_steps_do_not_change_what_was_read(shard, has_room, monkeypatch):
    if not has_room:
        monkeypatch.setattr(training_state, "_have_room", lambda arrays, devices: False)
    before = values(trained(shard))
    model = trained(shard)  # another one: JAX gives no memory away of which NumPy has a view
    saved = training_state.read(model, on_host=False)
    train(model)
    for one, value in zip(saved, before, strict=True):
        np.testing.assert_array_equal(np.asarray(one.value), value, err_msg=one.path)
    assert any((now != then).any() for now, then in zip(values(model), before, strict=True))


def test_copies_stay_on_the_device_and_replicas_are_copied_once():
    for one in training_state.read(trained(), on_host=False):
        assert isinstance(one.value, jax.Array)
        assert len(one.value.devices()) == 1


def test_shards_are_copied_where_they_are():
    kernel = training_state.read(trained("fsdp"), on_host=False)[0].value
    assert {shard.data.nbytes for shard in kernel.addressable_shards} == {8 * 1024 * 4 // 8}


@pytest.mark.parametrize(("limit", "room"), [(900 + 2 * 512, True), (900 + 2 * 512 - 1, False)])
def test_copies_take_half_of_what_is_free(limit, room):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": limit, "peak_bytes_in_use": 900}

    arrays = [jax.numpy.zeros((16, 4)), jax.numpy.zeros(64)]
    assert training_state._have_room(arrays, frozenset([Device()])) is room


def test_without_room_nothing_is_copied_on_the_device(monkeypatch):
    monkeypatch.setattr(training_state, "_have_room", lambda arrays, devices: False)
    assert not any(isinstance(one.value, jax.Array) for one in training_state.read(trained(), on_host=False))


def test_on_the_host_nothing_is_left_to_compute():
    assert not any(isinstance(one.value, jax.Array) for one in training_state.read(trained(), on_host=True))


def test_where_memory_is_in_too_small_pieces_it_is_read_at_once(monkeypatch):
    def fail(arrays):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(training_state, "_copy", fail)
    model = trained()
    for one, value in zip(training_state.read(model, on_host=False), values(model), strict=True):
        np.testing.assert_array_equal(one.value, value)
