"""Models without values: as large as one likes, laid out and lowered as the ones that train."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.jax.abstract import is_abstract

pytestmark = pytest.mark.runtimes("keras3_jax", reason="models have variables without values on JAX")
LATER = pytest.mark.exhaustive


def call(build):
    return _runtime.probes.call_abstractly(build)


def huge():
    model = keras.Sequential([keras.Input((2**17,)), keras.layers.Dense(2**17), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def test_a_model_of_any_size_takes_no_memory():
    model = call(huge)
    assert model.count_params() > 2**34  # 64 GiB
    assert is_abstract(model)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001)  # what is made from a value has it


def test_what_is_built_afterwards_is_as_ever():
    def small():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
        model.compile("adam", "mse")
        return model

    keras.backend.clear_session()
    call(small)
    model = small()
    assert [variable.path for variable in model.trainable_variables] == [
        "sequential/dense/kernel",
        "sequential/dense/bias",
    ]
    with keras.StatelessScope():  # on its exit Keras gives values to all variables that wait for them
        pass
    assert not is_abstract(model)
    assert is_abstract(call(small))
    model.fit(np.zeros((4, 3)), np.zeros((4, 2)), verbose=0)


def test_an_error_in_the_function_is_the_users_own():
    def fails():
        keras.layers.Dense(2).build((None, 3))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        call(fails)
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    assert layer.kernel.numpy().shape == (3, 2)


def decoder():
    keras.utils.set_random_seed(0)
    tokens = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(512, 64, name="words")(tokens)
    for i in range(2):
        x += keras.layers.GroupQueryAttention(16, 4, 2, name=f"attention_{i}")(x, x, use_causal_mask=True)
        x += keras.layers.Dense(64, name=f"down_{i}")(keras.layers.Dense(256, "gelu", name=f"up_{i}")(x))
    return keras.Model(tokens, keras.layers.Dense(512, name="head")(keras.layers.LayerNormalization()(x)))


def compiled(model, **options):
    optimizer = keras.optimizers.Adam(0.01, use_ema=True)
    model.compile(options.pop("optimizer", optimizer), keras.losses.SparseCategoricalCrossentropy(True), **options)
    return model


def lora():
    model = decoder()
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dense):
            layer.enable_lora(4)
    return compiled(model)


def frozen():
    model = decoder()
    model.get_layer("words").trainable = False
    return compiled(model, loss_scale="dynamic", gradient_accumulation_steps=2)


def convolutional():
    layers = [keras.layers.Conv2D(64, 3), keras.layers.BatchNormalization(), keras.layers.GlobalMaxPooling2D()]
    return compiled(keras.Sequential([keras.Input((8, 8, 3)), *layers, keras.layers.Dense(512)]))


def adafactor():
    return compiled(decoder(), optimizer=keras.optimizers.Adafactor(0.01))


BUILDERS = {
    "decoder": lambda: compiled(decoder()),
    "lora": lora,
    "frozen": frozen,
    "convolutional": convolutional,
    "adafactor": adafactor,
}
SHARDS = {
    "none": {},
    "fsdp": {"shard": "fsdp"},
    "both": {"shard": "fsdp", "mesh": (("data", 2), ("model", 4))},
    "patterns": {
        "shard": {"(up|head).*kernel": (None, "model"), "words": ("data",)},
        "mesh": {"data": 2, "model": 4},
    },
}
CASES = [
    pytest.param(builder, shard, marks=[] if (builder, shard) == ("decoder", "both") else LATER)
    for builder in BUILDERS
    for shard in SHARDS
    if (builder, shard) != ("convolutional", "patterns")  # they match nothing there
]


@pytest.mark.parametrize(("builder", "shard"), CASES)
def test_it_is_laid_out_and_lowered_as_the_model_that_trains(builder, shard):
    """Each variable's axes are those of the scope, and the program is that of a model with values, to the letter."""
    images = builder == "convolutional"
    x = np.zeros((16, 8, 8, 3), "float32") if images else np.zeros((16, 16), "int32")
    y = np.zeros(16, "int32") if images else np.zeros((16, 16), "int32")
    options = SHARDS[shard]
    mesh = dict(options.get("mesh", {"data": 8}))
    opened = _runtime.devices.abstract_strategy(8)
    if options:
        opened = _runtime.devices.shard(opened, options["shard"], tuple(mesh.items()))
    programs = []
    for make in (lambda build: build(), call):
        keras.backend.clear_session()
        with kte.strategy_scope(require="cpu"):
            model = make(BUILDERS[builder])
        lowered = _runtime.probes.lower_step(model, (x, y), opened, "TPU v5 lite")
        programs.append(lowered.digest)
        found = {row.path: row.spec for row in lowered.layouts}
    assert programs[0] == programs[1]
    keras.backend.clear_session()
    scope = kte.strategy_scope(replicas=None if "mesh" in options else 8, **options)
    with scope:
        model = BUILDERS[builder]()
    model.fit(x, y, batch_size=16, verbose=0)
    trained = {row.path: row.spec for row in scope.layout(model).variables}
    assert found == trained
    assert any(any(spec) for spec in found.values()) == bool(options)
