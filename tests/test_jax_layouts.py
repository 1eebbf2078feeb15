"""The layouts of sharded models: those that `preflight` predicts are made, and the table has them."""

import warnings

import jax
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.jax.loop import CompiledLoop
from keras_tpu_ext.errors import ArgumentError, LayoutWarning, ScopeError

pytestmark = pytest.mark.runtimes("keras3_jax", reason="models are sharded on JAX")

MESH = {"mesh": (("data", 2), ("model", 4))}
LATER = pytest.mark.exhaustive
TOKENS = np.random.default_rng(0).integers(0, 8, (16, 12))


class Lazy(keras.Model):
    """Makes its weights in its first call."""

    def __init__(self):
        super().__init__()
        self.words = keras.layers.Embedding(8, 64)
        self.attention = keras.layers.MultiHeadAttention(4, 128, name="attention")
        self.head = keras.layers.Dense(8)
        self.free = keras.Variable(np.ones((64, 64), "float32"))

    def call(self, tokens):
        x = self.words(tokens) @ self.free
        return self.head(keras.ops.mean(self.attention(x, x), axis=1))


class Head(keras.layers.Layer):
    """Uses the weights of another layer."""

    def __init__(self, words):
        super().__init__()
        self.words = words

    def call(self, x):
        return x @ keras.ops.transpose(self.words.embeddings)


def tied():
    words, tokens = keras.layers.Embedding(8, 64, name="words"), keras.Input((12,), dtype="int32")
    x = keras.layers.Dense(64)(keras.layers.GlobalAveragePooling1D()(words(tokens)))
    return keras.Model(tokens, Head(words)(x))


def with_equal_paths():
    def part(features, units):
        x = keras.Input((features,))
        return keras.Model(x, keras.layers.Dense(units, name="dense")(x))

    tokens = keras.Input((12,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(8, 64)(tokens))
    return keras.Model(tokens, keras.layers.Dense(8, name="head")(part(32, 64)(part(64, 32)(x))))


def sequential():
    heads = keras.layers.EinsumDense("btd,dhk->bthk", (None, 4, 128))
    merged = keras.layers.EinsumDense("bthk,hkd->btd", (None, 8))
    return keras.Sequential([keras.layers.Embedding(8, 64), heads, merged, keras.layers.GlobalAveragePooling1D()])


def trained(scope, make, optimizer="adam"):
    with scope:
        model = make()
        model.compile(optimizer, "mse")
    model.fit(TOKENS, np.zeros((16, 8), "float32"), batch_size=16, verbose=0)
    return model


def specs(scope, model, word):
    return [row.spec for row in scope.layout(model).variables if row.role == "weight" and word in row.path]


@pytest.mark.parametrize(
    ("make", "shard"),
    [
        (Lazy, "fsdp"),
        pytest.param(sequential, "fsdp", marks=LATER),
        pytest.param(tied, "fsdp", marks=LATER),
        pytest.param(with_equal_paths, {"dense/kernel": ("model", None)}, marks=LATER),
    ],
    ids=["lazy", "sequential", "tied", "equal paths"],
)
def test_a_layout_is_as_predicted_and_as_told(make, shard):
    """Of weights and slots, against those of the arrays that the training has made."""
    scope = kte.strategy_scope(require="cpu", shard=shard, **MESH)
    model = trained(scope, make)
    predicted = _runtime.probes.lower_step(
        model,
        (TOKENS, np.zeros((16, 8), "float32")),
        _runtime.devices.shard(_runtime.devices.abstract_strategy(8), shard, MESH["mesh"]),
        "TPU v5 lite",
    ).layouts
    told = scope.layout(model).variables
    assert {(row.path, row.role, row.spec) for row in predicted} == {(row.path, row.role, row.spec) for row in told}
    variables = {id(one): one for one in (*model.variables, *model.optimizer.variables)}.values()
    there = sum(one.value.addressable_shards[0].data.nbytes for one in variables)
    assert sum(row.bytes_per_device for row in told if row.role in ("weight", "optimizer", "other")) == there
    slots = [one for one in model.optimizer.variables if one.shape and "kernel" in one.path]
    if shard != "fsdp":
        assert [next(iter(one.value.sharding.spec)) for one in slots if "dense_kernel" in one.path] == ["model"] * 4


@pytest.mark.parametrize("build", ["fit", pytest.param("call", marks=LATER), pytest.param("predict", marks=LATER)])
def test_a_model_that_is_built_late_has_its_heads_along_the_model_axis(build):
    """Keras gives its weights their values when no layer is at work."""
    scope = kte.strategy_scope(require="cpu", shard="fsdp", **MESH)
    if build == "fit":
        model = trained(scope, Lazy)
    else:
        with scope:
            model = Lazy()
            model(TOKENS) if build == "call" else model.predict(TOKENS, verbose=0)
    assert specs(scope, model, "query/kernel") == [(None, "model", "data")]
    assert specs(scope, model, "attention_output/kernel") == [("model", "data", None)]
    assert specs(scope, model, "embeddings") == [("model", "data")]


def test_a_pattern_with_too_many_axes_is_an_error_for_a_model_that_is_built_late():
    scope = kte.strategy_scope(require="cpu", shard={"dense.*kernel": (None, None, "model")}, **MESH)
    with scope:
        model = keras.Sequential([keras.layers.Dense(64, name="dense")])
        model.compile("sgd", "mse")
    with pytest.raises((ArgumentError, RuntimeError), match=r"3 axes by 'dense.*kernel'.*its shape is \(12, 64\)"):
        model.fit(np.zeros((16, 12)), np.zeros((16, 64)), verbose=0)


def wide():
    return keras.Sequential([keras.Input((512,)), keras.layers.Dense(1024), keras.layers.Dense(1)])


def fitted(scope, make=wide):
    with scope:
        model = make()
        model.compile("sgd", "mse")
    model.fit(np.zeros((8, 512), "float32"), np.zeros((8, 1), "float32"), verbose=0)
    return model


def test_one_device_has_nothing_to_shard():
    scope = kte.strategy_scope(require="cpu", shard="fsdp", replicas=1)
    with scope:
        model = wide()  # with a weight of 2 MiB
    assert scope.layout(model).ok


def test_the_layout_that_auto_has_chosen_is_not_complained_about(monkeypatch):
    """Every device has all of the model."""
    monkeypatch.setattr(kte.strategy, "fastest_mesh", lambda *asked: {})
    scope = kte.strategy_scope(require="cpu", shard="auto", replicas=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayoutWarning)
        model = fitted(scope)
    report = scope.layout(model)
    assert report.ok
    assert report.mesh == {"data": 8}
    assert not any(any(row.spec) for row in report.variables)


def test_auto_warns_of_the_layout_that_it_has_chosen_and_no_other(monkeypatch):
    """The provisional one would have a complaint: 8 divides neither 516 nor 1,028."""

    def choose(hardware, model, batch):
        opened = _runtime.devices.shard(_runtime.devices.abstract_strategy(8), "fsdp", MESH["mesh"])
        _runtime.probes.lower_step(model, batch, opened, "TPU v5 lite")  # as `preflight` does
        return dict(MESH["mesh"])

    def make():
        return keras.Sequential([keras.Input((516,)), keras.layers.Dense(1028), keras.layers.Dense(1)])

    monkeypatch.setattr(kte.strategy, "fastest_mesh", choose)
    scope = kte.strategy_scope(require="cpu", shard="auto", replicas=8)
    with scope:
        model = make()
        model.compile("sgd", "mse")
    assert "(516, 1028), 2.0 MiB, is not sharded" in scope.layout(model).complaints[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayoutWarning)
        model.fit(np.zeros((8, 516), "float32"), np.zeros((8, 1), "float32"), verbose=0)
    report = scope.layout(model)
    assert report.mesh == {"data": 2, "model": 4}
    assert report.variables[0].spec == ("data", "model")


def test_auto_on_a_mesh_of_the_users_keeps_it(monkeypatch):
    monkeypatch.setattr(kte.strategy, "fastest_mesh", lambda *asked: dict(MESH["mesh"]))
    scope = kte.strategy_scope(require="cpu", shard="auto", mesh=(("batch", 8),))
    assert scope.layout(fitted(scope)).mesh == {"batch": 8}


def test_the_table_is_of_the_models_mesh_and_says_what_is_not_there_yet():
    first, second = (kte.strategy_scope(require="cpu", shard="fsdp", **one) for one in ({"replicas": 8}, MESH))
    with first:
        model = wide()
    assert second.layout(model).mesh == {"data": 8}
    assert second.layout(model).has_slots
    with first:
        model.compile("adam", "mse")
    report = first.layout(model)
    assert not report.has_slots
    assert not report.to_dict()["has_slots"]
    assert "optimizer  its variables are made in the first fit, and not counted here" in str(report)


@pytest.mark.parametrize("before", [{"replicas": 8}, pytest.param({"replicas": 4, "shard": "fsdp"}, marks=LATER)])
def test_a_model_that_is_compiled_in_another_scope_moves_there(before):
    with kte.strategy_scope(require="cpu", replicas=8), kte.strategy_scope(require="cpu", replicas=8):
        pass  # makes the devices
    keras.utils.set_random_seed(0)
    with kte.strategy_scope(require="cpu", **before):
        model = wide()
    x = np.random.default_rng(0).normal(size=(24, 512)).astype("float32")
    expected = model.predict(x, verbose=0)
    scope = kte.strategy_scope(require="cpu", shard="fsdp", **MESH)
    with scope:
        model.compile("sgd", "mse")
    assert scope.layout(model).mesh == dict(MESH["mesh"])
    assert specs(scope, model, "kernel")[0] == ("data", "model")
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-5)
    model.fit(x, x[:, :1], verbose=0)


def test_a_part_that_was_made_on_fewer_devices_moves_to_those_of_the_model():
    small = (
        kte.strategy_scope(require="cpu", shard="fsdp", replicas=8),
        kte.strategy_scope(require="cpu", shard="fsdp", replicas=4),
    )
    with small[1]:
        base = keras.Sequential([keras.Input((512,)), keras.layers.Dense(1024)])
    scope = kte.strategy_scope(require="cpu", shard="fsdp", **MESH)

    def make():
        inputs = keras.Input((512,))
        return keras.Model(inputs, keras.layers.Dense(1)(base(inputs)))

    with warnings.catch_warnings():
        warnings.simplefilter("error", LayoutWarning)
        model = fitted(scope, make)
    assert all(len(one.value.sharding.device_set) == 8 for one in model.variables)
    assert specs(scope, model, "kernel")[0] == ("data", "model")


def test_equal_scopes_may_be_nested_and_others_are_named_by_their_mesh():
    one, same = (kte.strategy_scope(require="cpu", shard="fsdp", **MESH) for _ in range(2))
    with one, same:
        wide()
    other = kte.strategy_scope(require="cpu", shard="fsdp", replicas=8)
    message = r"block for 8 replicas \(.*inside a block for 2 replicas on a mesh of data 2 x model 4 \("
    with one, pytest.raises(ScopeError, match=message), other:
        pass


def test_a_layout_map_may_name_fewer_axes_than_there_are_dimensions():
    kte.strategy_scope(require="cpu", replicas=8)  # makes the devices
    mesh = keras.distribution.DeviceMesh((2, 4), ("data", "model"), keras.distribution.list_devices("cpu")[:8])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*dense.*kernel"] = ("data",)
    scope = kte.strategy_scope(require="cpu", shard=layouts)
    model = fitted(scope)
    opened = _runtime.devices.shard(_runtime.devices.abstract_strategy(8), layouts, None)
    batch = np.zeros((8, 512), "float32"), np.zeros((8, 1), "float32")
    predicted = _runtime.probes.lower_step(model, batch, opened, "TPU v5 lite").layouts
    assert predicted[0].spec == scope.layout(model).variables[0].spec == ("data", None)


def test_a_layout_map_of_another_number_of_devices_is_an_error():
    mesh = keras.distribution.DeviceMesh((2, 2), ("data", "model"), [f"tpu:{i}" for i in range(4)])
    needed = r"`shard` must be a LayoutMap whose mesh has as many devices as there are, 8; got one with .* has 4\."
    with pytest.raises(ArgumentError, match=needed):
        kte.preflight(wide(), (), "v5e-8", shard=keras.distribution.LayoutMap(mesh))


def test_keras_adds_weights_as_before_outside_the_block():
    before = keras.layers.Layer.add_weight
    with kte.strategy_scope(require="cpu", shard="fsdp", replicas=8):
        assert keras.layers.Layer.add_weight is not before
    assert keras.layers.Layer.add_weight is before
    assert jax.device_count("cpu") >= 8


def deep():
    return keras.Sequential(
        [keras.Input((512,)), *[keras.layers.Dense(1024) for _ in range(3)], keras.layers.Dense(1)]
    )


def test_the_first_step_of_a_chosen_layout_is_that_of_a_scope_with_its_mesh(monkeypatch):
    """It takes no more memory, and so does not do for another mesh; nor does what `auto` asks the compiler about."""
    programs, compiled = [], []
    original = CompiledLoop._compile

    def compiling(loop, state, own):
        one, many = original(loop, state, own)

        def run(*arguments):
            compiled.append(one.lower(*arguments).compile())
            return one(*arguments)

        run.trace = one.trace  # for `lowered`
        return run, many

    def lowered(model, batch):
        opened = _runtime.devices.shard(_runtime.devices.abstract_strategy(8), "fsdp", MESH["mesh"])
        programs.append(_runtime.probes.lower_step(model, batch, opened, "TPU v5 lite").digest)
        return dict(MESH["mesh"])

    monkeypatch.setattr(kte.strategy, "fastest_mesh", lambda hardware, *asked: lowered(*asked))
    scopes = [kte.strategy_scope(require="cpu", shard="auto", replicas=8)]
    scopes += [kte.strategy_scope(require="cpu", shard="fsdp", **MESH)]
    monkeypatch.setattr(CompiledLoop, "_compile", compiling)
    models = [fitted(scope, deep) for scope in scopes]
    chosen, given = (one.memory_analysis().temp_size_in_bytes for one in compiled)
    assert chosen == given
    lowered(models[0], (np.zeros((8, 512), "float32"), np.zeros((8, 1), "float32")))
    assert programs[0] == programs[1]


def test_a_chosen_layout_stays_when_the_model_is_compiled_again(monkeypatch):
    asked = []
    monkeypatch.setattr(kte.strategy, "fastest_mesh", lambda *about: asked.append(1) or dict(MESH["mesh"]))
    scope = kte.strategy_scope(require="cpu", shard="auto", replicas=8)
    model = fitted(scope)
    fitted(scope, lambda: model)
    assert (scope.layout(model).mesh, len(asked)) == (dict(MESH["mesh"]), 1)


def test_a_model_may_train_and_predict_while_another_one_trains():
    """Each on its own devices."""
    scopes = [kte.strategy_scope(require="cpu", shard="fsdp", replicas=count) for count in (8, 4)]
    with scopes[1]:
        teacher = wide()
        teacher.compile("sgd", "mse")
    x = np.ones((8, 512), "float32")
    kernel, bias, last_kernel, last_bias = teacher.get_weights()
    expected = (x @ kernel + bias) @ last_kernel + last_bias

    class Asking(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            np.testing.assert_allclose(teacher.predict(x, verbose=0), expected, atol=1e-4)
            teacher.fit(x, expected, verbose=0)

    with scopes[0]:
        model = wide()
        model.compile("sgd", "mse")
    model.fit(x, expected, verbose=0, callbacks=[Asking()])


@pytest.mark.parametrize("shard", [None, "fsdp"])
def test_a_part_is_on_the_devices_of_the_model_that_is_used(shard):
    scopes = [kte.strategy_scope(require="cpu", shard=shard, replicas=count) for count in (8, 4)]
    with scopes[1]:
        base = keras.Sequential([keras.Input((512,)), keras.layers.Dense(256)])

    def make():
        inputs = keras.Input((512,))
        return keras.Model(inputs, keras.layers.Dense(1)(base(inputs)))

    model = fitted(scopes[0], make)
    x = np.ones((8, 512), "float32")
    before = [one.predict(x, verbose=0) for one in (model, base)]
    for one, expected in zip((model, base), before, strict=True):
        np.testing.assert_allclose(one.predict(x, verbose=0), expected, atol=1e-6)


def test_after_a_move_the_other_layout_is_complained_about_too():
    first, second = ({word: ("data", None)} for word in ("gone", "lost"))
    scopes = [kte.strategy_scope(require="cpu", shard=shard, replicas=8) for shard in (first, second)]
    with pytest.warns(LayoutWarning, match="'gone'"):
        model = fitted(scopes[0])
    with pytest.warns(LayoutWarning, match="'lost'"):
        fitted(scopes[1], lambda: model)
