"""The kernel for attention with dropout, interpreted, against XLA's attention that drops by the same hash."""

import contextlib

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.compat.keras3 import VERSION
from keras_tpu_ext._runtime.jax import attention, attention_kernel
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext.testing import as_on_tpu

pytestmark = pytest.mark.runtimes("keras3_jax", reason="Pallas is JAX's")

RNG = np.random.default_rng(0)


@contextlib.contextmanager
def calls_of_the_kernel():
    """Yield a list of the calls within the block."""
    taken = []

    def counted(*args):
        taken.append(args)
        return attention_kernel.attention_kernel(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "attention_kernel", counted)
        yield taken


@contextlib.contextmanager
def on_tpu(kernel=True):
    """Compute as on a TPU, and hold that the kernel was taken, or that it was not."""
    with calls_of_the_kernel() as taken, as_on_tpu(), exact_operations(TracedDevices()), _runtime.tpu_operations():
        yield
    assert bool(taken) == kernel


def on_cpu():
    return _runtime.tpu_operations()


def computed(layer, query, value, where, **arguments):
    """The output of an attention layer, and the gradients of its sum with weights."""
    weights = np.random.default_rng(2).standard_normal(query.shape).astype("float32")
    variables = [*layer.trainable_variables, *layer.non_trainable_variables]
    values = [variable.value for variable in variables]

    @jax.jit
    def loss(query, value, trained):
        current = [*trained, *values[len(trained) :]]
        with keras.StatelessScope(list(zip(variables, current, strict=True))):
            found = layer(query, value, **arguments)
        return jnp.sum(found * weights), found

    with where:
        trained = values[: len(layer.trainable_variables)]
        gradient, found = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(query, value, trained)
    return [np.asarray(one, "float64") for one in (found, *jax.tree.leaves(gradient))]


def check(layer, queries=48, keys=48, batch=2, kernel=True, tolerance=1e-5, **arguments):
    query = RNG.standard_normal((batch, queries, 24)).astype("float32")
    value = query if queries == keys else RNG.standard_normal((batch, keys, 24)).astype("float32")
    layer.build(query.shape, value.shape)
    arguments = {"training": True, **arguments}
    expected = computed(layer, query, value, on_cpu(), **arguments)
    found = computed(layer, query, value, on_tpu(kernel=kernel), **arguments)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1.0, np.abs(other).max()))


def heads(count=2, depth=64, **more):
    return keras.layers.MultiHeadAttention(count, depth, **{"dropout": 0.3, "seed": 5, **more})


RIGHT_PADDED = np.arange(48)[None] < np.array([[48], [1]])
NONE_SEEN = np.arange(48)[None] < np.array([[30], [0]])
ARGUMENTS = {
    "all": {},
    "causal": {"use_causal_mask": True},
    "keys": {"value_mask": RIGHT_PADDED},
    "no keys": {"value_mask": NONE_SEEN},
    "a mask of keys": {"attention_mask": RIGHT_PADDED[:, None]},
    "a mask of pairs": {"attention_mask": RNG.random((2, 48, 48)) < 0.3, "value_mask": RIGHT_PADDED},
    "one mask of pairs": {"attention_mask": np.tri(48)[None]},
    "queries and keys": {"query_mask": RIGHT_PADDED, "value_mask": RIGHT_PADDED, "use_causal_mask": True},
}
SHAPES = {
    "two heads in a vector": {},
    "four heads in a vector": {"count": 4, "depth": 32},
    "three vectors": {"count": 6, "depth": 64},
    "a head is a vector": {"count": 1, "depth": 128},
    "a head is two vectors": {"count": 2, "depth": 256},
}


takes_axes = pytest.mark.skipif(VERSION < (3, 12), reason="this Keras cannot attend to the last axis")


def jnp_masks(arguments):
    return {name: jnp.asarray(one) if isinstance(one, np.ndarray) else one for name, one in arguments.items()}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_it_drops_and_computes_what_xla_does(arguments):
    given = jnp_masks(ARGUMENTS[arguments])
    query_mask = given.pop("query_mask", None)
    layer = heads()
    if query_mask is not None:
        original = layer.call

        def call(query, value, **more):
            keras.src.backend.set_keras_mask(query, query_mask)
            return original(query, value, **more)

        layer.call = call
    check(layer, **given)


@pytest.mark.parametrize("shape", SHAPES)
def test_heads_that_share_a_vector_or_take_more_than_one(shape):
    check(heads(**SHAPES[shape]))


@pytest.mark.parametrize(("queries", "keys"), [(128, 40), pytest.param(40, 192, marks=pytest.mark.exhaustive)])
def test_other_queries_than_keys(queries, keys):
    check(heads(), queries, keys)


def test_several_programs_add_up_the_gradients_of_keys_and_values(monkeypatch):
    monkeypatch.setattr(attention_kernel, "_LOGITS", 64 * 256)
    assert attention_kernel.block_of_queries(128, 64, 256, 256, itemsize=4, device_kind="TPU v5 lite") == 64
    check(heads(), 256, 256, batch=1)
    if "sliding_window" in heads().get_config():  # as newer versions of Keras have it
        check(heads(sliding_window=40), 256, 256, batch=1, use_causal_mask=True)
    check(heads(), 256, 256, batch=1, attention_mask=jnp.asarray(RNG.random((1, 256, 256)) < 0.3))


@pytest.mark.parametrize(
    ("width", "depth", "queries", "keys", "blocks"),
    [
        (1024, 64, 512, 512, (512, 512)),
        (768, 64, 197, 197, (197, 197)),
        (768, 64, 577, 577, (577, 577)),  # no smaller block divides it
        (768, 64, 1025, 1025, (None, None)),
        (512, 128, 2048, 2048, (None, 128)),  # a v4 has less memory of its own
        (512, 64, 8192, 8192, (None, 32)),
        (512, 64, 16384, 16384, (None, None)),
        (96, 32, 128, 128, (None, None)),  # three quarters of a vector
        (192, 96, 128, 128, (None, None)),
    ],
)
def test_blocks_of_queries(width, depth, queries, keys, blocks):
    sizes = {"width": width, "depth": depth, "queries": queries, "keys": keys}
    kinds = ("TPU v4", "TPU v5 lite")
    found = [attention_kernel.block_of_queries(**sizes, itemsize=2, device_kind=kind) for kind in kinds]
    assert tuple(found) == blocks


def test_float32_takes_more_of_the_memory():
    sizes = {"width": 512, "depth": 128, "queries": 1792, "keys": 1792, "device_kind": "TPU v4"}
    assert [attention_kernel.block_of_queries(**sizes, itemsize=size) for size in (2, 4)] == [128, None]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"count": 2, "depth": 24}, {}),  # heads of 24 do not fill vectors
        ({"count": 1, "depth": 64}, {}),  # half a vector
        ({}, {"attention_mask": np.ones((2, 2, 48, 48), bool)}),  # one for each head
        ({"value_dim": 32}, {}),
        pytest.param({"attention_axes": (-1,)}, {}, marks=takes_axes),  # Keras attends to heads
        ({"dropout": 1.0}, {}),
    ],
    ids=str,
)
def test_what_does_not_suit_is_computed_by_xla(options, arguments):
    check(heads(**options), kernel=False, **jnp_masks(arguments))


@pytest.mark.parametrize("arguments", ["all", "causal", "no keys", "a mask of pairs"])
def test_it_has_second_derivatives(arguments):
    query, layer = RNG.standard_normal((2, 48, 24)).astype("float32"), heads(4, 32)
    layer.build(query.shape, query.shape)
    values = [variable.value for variable in layer.variables]

    def squared_gradient(query):
        def loss(query):
            with keras.StatelessScope(list(zip(layer.variables, values, strict=True))):
                return jnp.sum(layer(query, query, training=True, **jnp_masks(ARGUMENTS[arguments])) ** 3)

        return jnp.sum(jax.grad(loss)(query) ** 2)

    with on_cpu():
        expected = jax.jit(jax.grad(squared_gradient))(query)
    with on_tpu():
        found = jax.jit(jax.grad(squared_gradient))(query)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


class OtherSoftmax(keras.layers.MultiHeadAttention):
    def _masked_softmax(self, attention_scores, attention_mask=None):
        return super()._masked_softmax(2 * attention_scores, attention_mask)


class OtherScale(keras.layers.MultiHeadAttention):
    def build(self, *shapes):
        super().build(*shapes)
        self._inverse_sqrt_key_dim = 0.5


class OtherDropout(keras.layers.MultiHeadAttention):
    def build(self, *shapes):
        super().build(*shapes)
        self._dropout_layer = keras.layers.GaussianDropout(0.2, seed=1)


@pytest.mark.parametrize(("subclass", "kernel"), [(OtherSoftmax, False), (OtherScale, True), (OtherDropout, False)])
def test_what_a_subclass_changes_counts(subclass, kernel):
    check(subclass(2, 64, dropout=0.3, seed=5), kernel=kernel)


@pytest.mark.parametrize(("dropout", "kernel"), [(0.3, False), (0.0, True)])
def test_a_mask_of_numbers_says_what_it_says_to_keras(dropout, kernel):
    numbers = jnp.asarray(np.arange(2 * 48 * 48).reshape(2, 48, 48) % 7 * 0.3 - 0.6)
    for mask in (numbers, numbers[:, 5:6]):
        check(keras.layers.GroupQueryAttention(64, 4, 2, dropout=dropout), kernel=kernel, attention_mask=mask)


@pytest.mark.parametrize("rate", [np.float32(0.25), np.float16(0.25), 1 - 1e-12])
def test_any_rate_drops_what_xla_drops(rate):
    check(heads(dropout=rate))


def test_scores_of_grouped_queries_are_returned():
    query = RNG.standard_normal((2, 16, 24)).astype("float32")
    layer = keras.layers.GroupQueryAttention(64, 4, 2, dropout=0.3)
    expected = layer(query, query, return_attention_scores=True)
    with on_tpu(kernel=False):
        found = layer(query, query, return_attention_scores=True)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 16, 16), (2, 0, 16), (2, 16, 0)])
def test_nothing_at_all_has_the_shape_that_it_has_in_keras(batch, queries, keys):
    layer = heads(dropout=0.0)
    query, value = np.zeros((batch, queries, 24), "float32"), np.zeros((batch, keys, 24), "float32")
    expected = layer(query, value)
    with on_tpu(kernel=False):
        np.testing.assert_array_equal(layer(query, value), expected)


SCALES = {
    "a number": (0.3, True),
    "an array": (jnp.float32(0.3), False),
    "one for each head": (np.full((2, 1, 1), 0.3, "float32"), False),
}


@pytest.mark.parametrize(("scale", "kernel"), SCALES.values(), ids=SCALES)
def test_a_scale_may_be_an_array(scale, kernel):
    query = RNG.standard_normal((2, 16, 2, 64)).astype("float32")
    mask = (RNG.random((2, 1, 16, 16)) < 0.5).tolist()
    for given in (None, mask):
        expected = keras.ops.dot_product_attention(query, query, query, mask=given, scale=scale)
        with on_tpu(kernel=kernel):
            found = keras.ops.dot_product_attention(query, query, query, mask=given, scale=scale)
        np.testing.assert_allclose(found, expected, atol=1e-5)


GROUPED = {  # heads of queries and of keys, and their depth
    "two heads share a vector": (4, 2, 64),
    "a head is a vector": (4, 2, 128),
    "a head is two vectors": (4, 1, 256),
}


def attended(query, key, value, where, mask=None, cap=None):
    """Capped attention of grouped heads, its gradients, and one of a square of these."""
    groups = query.shape[2] // key.shape[2]

    def attend(query, key, value):
        if where is not None:
            more = {} if cap is None else {"attn_logits_soft_cap": cap}
            return keras.ops.dot_product_attention(query, key, value, mask=mask, scale=0.3, **more)
        key, value = (jnp.repeat(array, groups, axis=2) for array in (key, value))
        logits = 0.3 * jnp.einsum("bqhd,bkhd->bhqk", query, key)
        logits = logits if cap is None else cap * jnp.tanh(logits / cap)
        logits = logits if mask is None else jnp.where(mask, logits, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), value)

    def gradients(*arrays):
        return jax.grad(lambda *arrays: jnp.sum(attend(*arrays) ** 3), argnums=(0, 1, 2))(*arrays)

    def squared(*arrays):
        return sum(jnp.sum(one**2) for one in gradients(*arrays))

    with where or contextlib.nullcontext():
        arrays = query, key, value
        every = lambda *arrays: [  # noqa: E731
            attend(*arrays),
            *gradients(*arrays),
            *jax.grad(squared, argnums=(0, 1, 2))(*arrays),
        ]
        return jax.jit(every)(*arrays)


@pytest.mark.skipif(VERSION < (3, 10), reason="this Keras caps no logits")
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("shape", GROUPED)
def test_grouped_heads_and_capped_logits(shape, cap, monkeypatch):
    heads, key_heads, depth = GROUPED[shape]
    monkeypatch.setattr(attention_kernel, "_LOGITS", 32 * 64)  # two programs for each head
    query = RNG.standard_normal((2, 64, heads, depth)).astype("float32")
    key, value = (RNG.standard_normal((2, 64, key_heads, depth)).astype("float32") for _ in range(2))
    mask = jnp.tri(64, dtype=bool) & jnp.asarray(RNG.random((2, 1, 64, 64)) < 0.6) | jnp.eye(64, dtype=bool)
    expected = attended(query, key, value, None, mask, cap)
    found = attended(query, key, value, on_tpu(), mask, cap)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def test_without_dropout_it_is_the_attention_of_keras():
    check(heads(dropout=0.0))
    check(heads(dropout=0.0), attention_mask=jnp.asarray([[[True]], [[False]]]))
    check(heads(), training=False)
    check(heads(), training=False, value_mask=jnp.asarray(NONE_SEEN), kernel=VERSION >= (3, 10))


def test_flash_attention_can_be_turned_off_for_all():
    keras.config.disable_flash_attention()
    try:
        check(heads(), kernel=False)
        check(heads(dropout=0.0), kernel=False)
    finally:
        keras.utils.clear_session()


def test_it_is_not_taken_unless_operations_for_a_tpu_are_asked_for():
    query = RNG.standard_normal((2, 48, 24)).astype("float32")
    layer = heads()
    layer.build(query.shape, query.shape)
    with as_on_tpu(), exact_operations(TracedDevices()):
        program = str(jax.make_jaxpr(lambda query: layer(query, query, training=True))(query))
    assert "pallas" not in program


def trained(batch_size=20):
    """The losses of some epochs, of which each ends with a batch that 8 replicas cannot share evenly."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((16, 8))
    x = keras.layers.Dense(24)(inputs)
    x = keras.layers.LayerNormalization()(x + heads(16, 64)(x, x))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(50, 16, 8)).astype("float32")
    history = model.fit(x, np.arange(50) % 3, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"replicas": 2}, marks=pytest.mark.exhaustive),
        {"replicas": 8, "shard": "fsdp"},
        {"replicas": 8, "mesh": {"batch": 4, "model": 2}, "shard": "auto"},
    ],
    ids=str,
)
def test_replicas_drop_what_one_device_drops(options):
    with kte.strategy_scope(require="cpu", for_tpu=True):
        alone = trained()
    with calls_of_the_kernel() as taken, as_on_tpu(), kte.strategy_scope(require="cpu", for_tpu=True, **options):
        together = trained()
    assert taken
    np.testing.assert_allclose(together, alone, rtol=2e-5)
