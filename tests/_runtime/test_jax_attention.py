"""Attention as it is traced for a TPU, with the kernel interpreted, against a plain reference in float64."""

import contextlib
import inspect

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras.src.backend.common.masking import set_keras_mask

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.jax import attention, splash
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext.testing import as_on_tpu

pytestmark = pytest.mark.runtimes("keras3_jax", reason="Keras has a kernel for TPUs on JAX only")

# float32 rounds each of two long sums to 6e-8; bfloat16 its probabilities and results to 2**-9.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def reference(query, key, value, seen, scale=None, cap=None):
    """Attention in float64; `seen` is a boolean array that broadcasts to batch, heads, queries and keys."""
    query, key, value = (np.asarray(array, "float64") for array in (query, key, value))
    groups = query.shape[2] // key.shape[2]
    key, value = (np.repeat(array, groups, axis=2) for array in (key, value))
    logits = np.einsum("btnh,bsnh->bnts", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if cap is not None:
        logits = cap * np.tanh(logits / cap)
    logits = np.where(seen, logits, -1e30)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), value)


def arrays(queries=128, keys=128, heads=2, kv_heads=2, depth=16, value_depth=None, batch=2):
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal((batch, length, count, size)).astype("float32")
        for length, count, size in (
            (queries, heads, depth),
            (keys, kv_heads, depth),
            (keys, kv_heads, value_depth or depth),
        )
    ]


@contextlib.contextmanager
def on_tpu(distribution=None, kernel=True):
    """Trace as for a TPU, and hold that the kernel was taken, or that it was not."""
    taken, by_kernel = [], attention._by_splash

    def counted(*args):
        taken.append(args)
        return by_kernel(*args)

    pays_from, attention.PAYS_FROM, attention._by_splash = attention.PAYS_FROM, 128, counted
    try:
        with as_on_tpu(), exact_operations(TracedDevices.of(distribution)):
            yield
    finally:
        attention.PAYS_FROM, attention._by_splash = pays_from, by_kernel
    assert bool(taken) == kernel


def off(a, b):
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    return float(np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(b))))


def position(queries, keys):
    return np.arange(queries)[:, None], np.arange(keys)[None]


CALLS = {
    "all": ({}, {}, lambda row, column: True),
    "causal": ({"is_causal": True}, {}, lambda row, column: column <= row),
    "scale": ({"scale": 0.3}, {"scale": 0.3}, lambda row, column: True),
    "soft cap": ({"attn_logits_soft_cap": 1.5}, {"cap": 1.5}, lambda row, column: True),
    "causal, scale": ({"is_causal": True, "scale": 1.0}, {"scale": 1.0}, lambda row, column: column <= row),
}
SHAPES = {
    "one block": {},
    "blocks of 256 and 384 keys": {"queries": 256, "keys": 384},
    "grouped heads": {"heads": 4, "kv_heads": 2},
    "one head for all": {"heads": 4, "kv_heads": 1},
    "depth of 80": {"depth": 80},
    "values of another depth": {"depth": 16, "value_depth": 24},
}
SMOKE = [("all", "one block"), ("causal", "grouped heads"), ("soft cap", "one block")]


def gate(call, shape):
    return pytest.param(call, shape, marks=() if (call, shape) in SMOKE else pytest.mark.exhaustive)


@pytest.mark.parametrize(("call", "shape"), [gate(call, shape) for call in CALLS for shape in SHAPES])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.exhaustive)])
def test_of_a_call(call, shape, dtype):
    arguments, of_reference, seen = CALLS[call]
    if not arguments.keys() <= inspect.signature(keras.ops.dot_product_attention).parameters.keys():
        pytest.skip("this Keras has no soft cap")
    given = [jnp.asarray(array, dtype) for array in arrays(**SHAPES[shape])]
    with on_tpu():
        got = keras.ops.dot_product_attention(*given, **arguments)
    seen = seen(*position(given[0].shape[1], given[1].shape[1]))
    assert got.dtype == dtype
    assert off(got, reference(*given, seen, **of_reference)) < TOLERANCE[dtype]


def gradients(given, weights, **arguments):
    def loss(query, key, value):
        return jnp.sum(keras.ops.dot_product_attention(query, key, value, **arguments) * weights)

    return jax.grad(loss, argnums=(0, 1, 2))(*given)


@pytest.mark.parametrize("shape", ["grouped heads", pytest.param("depth of 80", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_gradient(shape, causal):
    given = arrays(**SHAPES[shape])
    weights = np.random.default_rng(1).standard_normal(given[0].shape).astype("float32")
    expected = gradients(given, weights, is_causal=causal, flash_attention=False)
    with on_tpu():
        got = gradients(given, weights, is_causal=causal)
    assert max(off(a, b) for a, b in zip(got, expected, strict=True)) < 1e-5


def layer_output(layer, x, **arguments):
    """The output of an attention layer, and the gradient of its sum with weights, for its input and weights."""
    rng = np.random.default_rng(2)
    weights = rng.standard_normal(x.shape).astype("float32")
    values = [variable.value for variable in layer.trainable_variables]

    def loss(x, values):
        with keras.StatelessScope(list(zip(layer.trainable_variables, values, strict=True))):
            found = layer(x, x, **arguments)
        return jnp.sum(found * weights), found

    gradient, found = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, values)
    return [found, *jax.tree.leaves(gradient)]


RIGHT_PADDED = np.arange(128)[None] < np.array([[128], [90], [1], [0]])
LEFT_PADDED = RIGHT_PADDED[:, ::-1]
MASKS = {
    "causal": {"use_causal_mask": True},
    "keys": {"value_mask": RIGHT_PADDED},
    "two of keys": {"value_mask": RIGHT_PADDED, "key_mask": LEFT_PADDED},
    "queries and keys": {"query_mask": RIGHT_PADDED, "value_mask": RIGHT_PADDED},
    "queries and keys, causal": {
        "query_mask": RIGHT_PADDED,
        "value_mask": RIGHT_PADDED,
        "use_causal_mask": True,
    },
    "padded on the left, causal": {
        "query_mask": LEFT_PADDED,
        "value_mask": LEFT_PADDED,
        "use_causal_mask": True,
    },
}
LAYERS = {
    "heads": lambda **more: keras.layers.MultiHeadAttention(2, 16, **more),
    "grouped": lambda **more: keras.layers.GroupQueryAttention(16, 4, 2, **more),
}
has_windows = pytest.mark.skipif(
    "sliding_window" not in keras.layers.MultiHeadAttention(1, 1).get_config(), reason="this Keras has no windows"
)


def check_layer(layer, masks, kernel=True):
    x = np.random.default_rng(3).standard_normal((4, 128, 8)).astype("float32")
    masks = dict(masks)
    query_mask = masks.pop("query_mask", None)
    masks = {name: jnp.asarray(mask) if isinstance(mask, np.ndarray) else mask for name, mask in masks.items()}
    layer.build(x.shape, x.shape)

    class WithMask:
        trainable_variables = layer.trainable_variables

        def __call__(self, query, value, **arguments):
            query = query + 0
            if query_mask is not None and isinstance(layer, keras.layers.MultiHeadAttention):
                set_keras_mask(query, jnp.asarray(query_mask))  # which heeds no argument
            elif query_mask is not None:
                arguments["query_mask"] = jnp.asarray(query_mask)
            return layer(query, value, **arguments)

    expected = layer_output(WithMask(), x, **masks)
    with on_tpu(kernel=kernel):
        got = layer_output(WithMask(), x, **masks)
    assert max(off(a, b) for a, b in zip(got, expected, strict=True)) < 1e-5


@pytest.mark.parametrize("kind", ["heads", pytest.param("grouped", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "masks", [pytest.param(name, marks=() if "left" in name else pytest.mark.exhaustive) for name in MASKS]
)
def test_of_a_layer_with_masks(kind, masks):
    check_layer(LAYERS[kind](), MASKS[masks])


@has_windows
@pytest.mark.exhaustive
@pytest.mark.parametrize("masks", [{}, MASKS["causal"], MASKS["padded on the left, causal"]])
@pytest.mark.parametrize("kind", LAYERS)
def test_of_a_layer_with_a_window(kind, masks):
    check_layer(LAYERS[kind](sliding_window=20), masks)


@pytest.mark.parametrize(
    ("mask", "blocks"),
    [
        (splash.Mask(), "blocks_4_of_4_in_2"),
        (splash.Mask(after=0), "blocks_3_of_4_in_2"),
        (splash.Mask(before=511, after=0), "blocks_7_of_16_in_4"),
        (splash.Mask(before=512, after=512), "blocks_10_of_16_in_4"),
    ],
)
def test_blocks_that_the_kernel_visits(mask, blocks):
    assert splash.visited_blocks(mask, 2048, 2048, 64) == blocks


def test_blocks_of_deep_heads_are_smaller():
    assert splash.visited_blocks(splash.Mask(), 2048, 2048, 256) == "blocks_16_of_16_in_4"


@pytest.mark.parametrize(
    ("keys", "flash_attention", "kernel"),
    [(128, None, False), (128, True, True), (512, None, True), (512, False, False), (640 - 8, True, False)],
)
def test_the_kernel_is_taken_where_it_pays_or_is_asked_for(keys, flash_attention, kernel):
    query, key, value = arrays(keys=keys, heads=1, kv_heads=1, batch=1)
    with on_tpu(kernel=kernel):
        attention.PAYS_FROM = 512
        got = keras.ops.dot_product_attention(query, key, value, flash_attention=flash_attention)
    assert off(got, reference(query, key, value, True)) < 1e-5


def test_flash_attention_can_be_turned_off_for_all():
    query, key, value = arrays()
    keras.config.disable_flash_attention()
    try:
        with on_tpu(kernel=False):
            keras.ops.dot_product_attention(query, key, value)
    finally:
        keras.utils.clear_session()


@pytest.mark.parametrize("kind", ["TPU v2", "TPU v3", "TPU v4", "TPU v5 lite"])
def test_the_kernel_is_for_generations_that_compile_it_in_bfloat16(kind, monkeypatch):
    monkeypatch.setattr(attention, "device_kind_of", lambda mesh: kind)
    query, key, value = arrays()
    with on_tpu(kernel=kind not in ("TPU v2", "TPU v3")):
        keras.ops.dot_product_attention(query, key, value)


@pytest.mark.parametrize("replicas", [None, 2])
def test_cpus_of_a_machine_with_a_tpu_have_no_kernel(replicas, monkeypatch):
    """As in a rehearsal on CPUs beside a TPU: JAX's default backend is not what the mesh is of."""
    distribution = None
    if replicas:
        distribution = keras.distribution.DataParallel(devices=[f"cpu:{i}" for i in range(replicas)])
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    query, key, value = arrays(keys=512)
    with exact_operations(TracedDevices.of(distribution)):
        found = jax.jit(keras.ops.dot_product_attention).trace(query, key, value)
    assert "pallas" not in str(found.jaxpr)


@pytest.mark.parametrize("call", ["call", "stateless_call", "predict"])
def test_a_model_that_is_called_is_right_too(call):
    inputs = keras.Input((128, 8))
    model = kte.TPUModel(inputs, keras.layers.MultiHeadAttention(1, 8)(inputs, inputs))
    x = np.random.default_rng(0).standard_normal((2, 128, 8)).astype("float32") * 5
    on_cpu = model(x)
    with as_on_tpu():
        if call == "call":
            found = model(x)
        elif call == "predict":
            found = model.predict(x, verbose=0)
        else:
            values = [[variable.value for variable in part] for part in (model.trainable_variables, [])]
            found, _ = model.stateless_call(*values, x)
    assert off(found, on_cpu) < TOLERANCE["float32"]


def test_it_is_told_where_keras_is_wrong_though_the_kernel_is_not_taken(caplog, monkeypatch):
    attention._warn_once.cache_clear()
    query, key, value = arrays(queries=128, keys=128)
    with as_on_tpu(), exact_operations(TracedDevices.of(None)):
        keras.ops.dot_product_attention(query[:, :100], key[:, :100], value[:, :100])
        assert not caplog.text
        keras.ops.dot_product_attention(query, key, value)
    keras_takes_its_kernel = hasattr(attention.backend_nn, "wrap_flash_attention")  # from 3.10 on
    assert ("as if it were causal and unscaled" in caplog.text) == keras_takes_its_kernel
