"""Models under a mesh of the user's own: replicas, devices and rates, attention, and the steps of one device."""

import jax
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.jax import attention
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext.testing import as_on_tpu

pytestmark = pytest.mark.runtimes("keras3_jax", reason="Keras 3 has meshes on JAX only")


def model_parallel(rows, columns):
    mesh = keras.distribution.DeviceMesh((rows, columns), ("batch", "model"), keras.distribution.list_devices("cpu"))
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*hidden/kernel"] = (None, "model")
    layouts[".*out/kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False)


def network(width=16):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(width, "relu", name="hidden")(inputs)
    model = kte.TPUModel(inputs, keras.layers.Dense(3, name="out")(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


DATA = np.random.default_rng(0).standard_normal((22, 6)).astype("float32"), np.ones((22, 3), "float32")


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (2, 4), (8, 1)])
def test_replicas_are_the_parts_of_a_batch(rows, columns):
    with model_parallel(rows, columns).scope():
        model = network()
    assert _runtime.devices.num_replicas(model) == rows
    assert _runtime.devices.num_devices(model) == 8


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), pytest.param(2, 4, marks=pytest.mark.exhaustive)])
def test_steps_and_rates(rows, columns):
    one = network()
    weights = one.get_weights()
    one.fit(*DATA, batch_size=8, shuffle=False, verbose=0)
    with model_parallel(rows, columns).scope():
        model = network()
    model.set_weights(weights)
    rates = kte.callbacks.Throughput()
    logs = model.fit(*DATA, batch_size=8, shuffle=False, epochs=2, verbose=0, callbacks=[rates]).history
    each, everything = (logs[f"throughput/{name}samples_per_sec"][-1] for name in ("device/", ""))
    assert each == pytest.approx(everything / 8)
    one.fit(*DATA, batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "columns", "kv_heads", "by_kernel"),
    [
        (2, 4, 4, True),
        pytest.param(8, 1, 4, True, marks=pytest.mark.exhaustive),
        pytest.param(2, 4, 2, False, marks=pytest.mark.exhaustive),  # two heads are not shared by four devices
    ],
)
def test_attention_is_sharded_over_batch_and_heads(rows, columns, kv_heads, by_kernel, monkeypatch):
    rng = np.random.default_rng(0)
    query = rng.standard_normal((8, 128, 4, 8)).astype("float32")
    key, value = rng.standard_normal((2, 8, 128, kv_heads, 8)).astype("float32")
    expected = keras.ops.dot_product_attention(query, key, value, is_causal=True)
    seen = []
    splash = attention.splash_attention
    monkeypatch.setattr(
        attention, "splash_attention", lambda *args, **kw: seen.append(args[0].shape) or splash(*args, **kw)
    )
    with as_on_tpu(), exact_operations(TracedDevices.of(model_parallel(rows, columns))):
        asked = {"is_causal": True, "flash_attention": True}
        attend = jax.jit(lambda *arrays: keras.ops.dot_product_attention(*arrays, **asked))
        got = attend(query, key, value)
    assert seen == ([(8 // rows, 128, 4 // columns, 8)] if by_kernel else [])
    np.testing.assert_allclose(got, expected, atol=1e-5)
