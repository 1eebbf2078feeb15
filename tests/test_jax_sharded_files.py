"""Files of models that are sharded: onto any mesh, by every form of Keras, and not all of a model in one place."""

import contextlib
import json
import os
import subprocess
import sys
import warnings

import jax
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax", reason="models are sharded on JAX")
LATER = pytest.mark.exhaustive

MESHES = {
    "8x1": {"shard": "fsdp", "replicas": 8},
    "2x4": {"shard": "fsdp", "mesh": (("data", 2), ("model", 4))},
    "1x8": {"shard": "fsdp", "mesh": (("data", 1), ("model", 8))},
    "one": {"require": "cpu"},
}


def scope_of(mesh):
    return kte.strategy_scope(**MESHES[mesh])


def data(rows=32):
    rng = np.random.default_rng(0)
    return rng.integers(0, 64, (rows, 8)), rng.normal(size=(rows, 4)).astype("float32")


def network(adapt=None, make=kte.TPUModel):
    keras.utils.set_random_seed(0)
    tokens = keras.Input((8,), dtype="int32")
    x = keras.layers.Embedding(64, 32, name="words")(tokens)
    x = keras.layers.EinsumDense("btd,dhk->bthk", (8, 8, 8), bias_axes="hk", name="heads")(x)
    x = keras.layers.EinsumDense("bthk,hkd->btd", (8, 32), name="merge")(x)
    x = keras.layers.Dense(64, "relu", name="up")(keras.layers.BatchNormalization(name="norm")(x))
    model = make(tokens, keras.layers.Dense(4, name="head")(keras.layers.GlobalAveragePooling1D()(x)))
    if adapt is not None:
        adapt(model)
    return model


def compiled(model):
    # The gradient of what precedes a normalization is 0 in parts but for rounding, which Adam divides by its size.
    # Orbax goes by paths: an "adam_1" would not be given what an "adam" has saved, without a word.
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3, name="adam"), "mse")
    return model


def made(mesh, adapt=None):
    with scope_of(mesh):
        return compiled(network(adapt))


def take_two_steps(model, **options):
    model.fit(*data(), batch_size=16, shuffle=False, verbose=0, **options)
    return model


def spec_of(variable):
    """Return along which axes the value of a variable really is."""
    spec = tuple(getattr(variable.value.sharding, "spec", ()))
    return (*spec, *[None] * (len(variable.shape) - len(spec)))


def all_of(model):
    return [*model.variables, *model.optimizer.variables]


def assert_values(model, other, **tolerance):
    for one, its in zip(all_of(model), all_of(other), strict=True):
        np.testing.assert_allclose(one.numpy(), its.numpy(), err_msg=one.path, **tolerance)


def assert_layouts(model, mesh, adapt=None):
    """Check that values are where those of a model are that is made and trained on a mesh."""
    with scope_of(mesh):
        own = compiled(network(adapt))
        own.optimizer.build(own.trainable_variables)
    for variable, its in zip(all_of(model), all_of(own), strict=True):
        # The axis may have another name: JAX lets an array be that is where it should be.
        assert variable.value.sharding.is_equivalent_to(its.value.sharding, len(its.shape)), variable.path
    assert any(any(spec_of(variable)) for variable in all_of(own)) == (mesh != "one")


def from_keras(model, mesh, path, adapt=None):
    model.save(path / "model.keras")
    with scope_of(mesh):
        return keras.saving.load_model(path / "model.keras")


def from_weights(model, mesh, path, adapt=None):
    model.save_weights(path / "model.weights.h5")
    return loaded_weights(path / "model.weights.h5", mesh, adapt)


def from_parts(model, mesh, path, adapt=None):
    """Keras's own sharded file: several, none of them larger than 8 KB."""
    model.save_weights(path / "model.weights.json", max_shard_size=8e-6)
    assert len(list(path.glob("model*.h5"))) > 1
    return loaded_weights(path / "model.weights.json", mesh, adapt)


def loaded_weights(file, mesh, adapt):
    with scope_of(mesh):
        loaded = compiled(network(adapt))
        loaded.optimizer.build(loaded.trainable_variables)
    for variable in loaded.variables:  # or what was not loaded would have the same seed
        if "float" in variable.dtype:
            variable.assign(variable.value + 1)
    loaded.load_weights(file)  # outside of the block
    return loaded


FORMS = {"keras": from_keras, "weights": from_weights, "parts": from_parts}
CASES = [
    # tests/test_jax_sharding.py has .keras from 8x1 onto 8x1, 2x4 and one device
    *(("keras", saved_on, onto) for saved_on, onto in [("8x1", "1x8"), ("2x4", "1x8"), ("one", "2x4")]),
    *(("weights", saved_on, onto) for saved_on in ("8x1", "2x4") for onto in MESHES),
    ("weights", "one", "8x1"),
    ("parts", "8x1", "2x4"),
    ("parts", "2x4", "one"),
]


@LATER
@pytest.mark.parametrize(("form", "saved_on", "onto"), CASES)
def test_training_goes_on_from_a_file_as_if_it_had_not_stopped(form, saved_on, onto, tmp_path):
    model = take_two_steps(made(saved_on))
    loaded = FORMS[form](model, onto, tmp_path)
    assert_values(loaded, model, rtol=0)
    assert_layouts(loaded, onto)
    for one in (loaded, model):
        take_two_steps(one)
    assert int(model.optimizer.iterations) == 4
    assert_values(loaded, model, atol=1e-5)
    assert_layouts(loaded, onto)


# LoRA and quantised weights.


def add_lora(model):
    model.get_layer("words").enable_lora(4)
    model.get_layer("up").enable_lora(4)


def freeze(model):
    model.get_layer("words").trainable = False
    model.get_layer("heads").trainable = False


def quantize(mode, then=None, config=None):
    def adapt(model):
        with warnings.catch_warnings():  # of layers that have no weights to quantise
            warnings.simplefilter("ignore", UserWarning)
            model.quantize(mode, config=None if config is None else config())
        if then is not None:
            then(model)

    return adapt


def only_weights():
    """Rounding activations to 8 bits makes 1e-3 of 1e-8, here and there: where, depends on the machine's CPU."""
    return keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)


ADAPTED = {
    "lora": add_lora,
    "frozen": freeze,
    "int8": quantize("int8", config=only_weights),
    "int4": quantize("int4"),
    "int8 with lora": quantize("int8", add_lora, config=only_weights),
}


@LATER
@pytest.mark.parametrize("onto", ["2x4", "one"])
@pytest.mark.parametrize("form", ["keras", "weights"])
@pytest.mark.parametrize("case", ADAPTED)
def test_what_is_tuned_is_loaded_as_on_one_device(case, form, onto, tmp_path):
    """With LoRA a file has the products merged into the kernels, and what loads it begins with new ones of zeros."""
    adapt = ADAPTED[case]
    loaded, predicted = [], []
    for saved_on, mesh in (("8x1", onto), ("one", "one")):
        model = take_two_steps(made(saved_on, adapt))
        folder = tmp_path / mesh / saved_on
        folder.mkdir(parents=True)
        loaded.append(FORMS[form](model, mesh, folder, adapt))
        predicted += [one.predict(data()[0], verbose=0) for one in (model, loaded[-1])]
    assert_layouts(loaded[0], onto, adapt)
    own, its, _, of_one = predicted
    if case == "int8 with lora":  # which quantises the sum once more, and rounds one in a thousand the other way
        for one, other in zip(*(model.non_trainable_variables for model in loaded), strict=True):
            np.testing.assert_allclose(one.numpy().astype(float), other.numpy(), rtol=1e-5, atol=1.001)
        np.testing.assert_allclose(its, of_one, atol=1e-3)
        np.testing.assert_allclose(its, own, atol=1e-2)
        return
    assert_values(*loaded, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(its, of_one, atol=1e-5)
    np.testing.assert_allclose(its, own, atol=1e-5)
    for one in loaded:
        take_two_steps(one)
    assert_values(*loaded, atol=1e-5, rtol=1e-5)


@LATER
def test_stock_keras_loads_lora_so_that_it_never_trains_again(tmp_path):
    """Both factors are zeros, and so are both gradients; ours does as Keras does. If this fails, Keras mended it."""
    with scope_of("2x4"):
        model = network(lambda model: model.get_layer("up").enable_lora(4))
        model.compile("sgd", "mse")
    take_two_steps(model).save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    take_two_steps(model)
    assert not np.any(model.get_layer("up").lora_kernel_a)
    assert not np.any(model.get_layer("up").lora_kernel_b)


# Keras's own distribution, and ours beside it.


def stock(patterns):
    kte.strategy_scope(replicas=8)  # makes the devices
    mesh = keras.distribution.DeviceMesh((2, 4), ("data", "model"), keras.distribution.list_devices("cpu")[:8])
    layouts = keras.distribution.LayoutMap(mesh)
    for pattern, axes in patterns.items():
        layouts[pattern] = axes
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="data")


UP = {".*up/kernel": (None, "model")}


@LATER
def test_stock_keras_loads_onto_shards_within_its_scope(tmp_path):
    with stock(UP).scope():
        model = take_two_steps(compiled(network(make=keras.Model)))
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        other = compiled(network(make=keras.Model))
        other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "model.weights.h5")
    for one in (loaded, other):
        assert_values(one, model, rtol=0)
        assert [spec_of(variable) for variable in all_of(one)] == [spec_of(variable) for variable in all_of(model)]
        assert spec_of(one.get_layer("up").kernel) == (None, "model")


@LATER
def test_stock_keras_cannot_train_what_was_loaded_outside_of_the_scope_and_ours_can(tmp_path):
    """If the first half fails, Keras lays out variables that were made elsewhere."""
    take_two_steps(compiled(network(make=keras.Model))).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with (
        stock(UP).scope(),
        pytest.raises(ValueError, match="incompatible devices"),
    ):
        take_two_steps(loaded)
    expected = take_two_steps(keras.saving.load_model(tmp_path / "model.keras"))
    scope = scope_of("2x4")
    with scope:
        model = kte.TPUModel.from_model(keras.saving.load_model(tmp_path / "model.keras"))
    outside = keras.saving.load_model(tmp_path / "model.keras")
    with scope:
        adopted = compiled(kte.TPUModel.from_model(outside))
    adopted.optimizer.build(adopted.trainable_variables)
    adopted.load_weights(tmp_path / "model.keras")
    take_two_steps(adopted)
    assert_values(adopted, expected, atol=1e-5)
    assert any(spec_of(adopted.get_layer("up").kernel))
    assert any(spec_of(model.get_layer("up").kernel))


# Orbax.


OF_ORBAX = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def orbax_saved(model, folder, **options):
    pytest.importorskip("orbax.checkpoint")
    callback = keras.callbacks.OrbaxCheckpoint(str(folder), **options)
    return take_two_steps(model, epochs=2, callbacks=[callback])


@LATER
@OF_ORBAX
@pytest.mark.parametrize("onto", MESHES)
@pytest.mark.parametrize("saved_on", ["8x1", "2x4"])
def test_a_checkpoint_of_orbax_is_loaded_onto_another_mesh(saved_on, onto, tmp_path):
    model = orbax_saved(made(saved_on), tmp_path / "steps", save_on_background=saved_on == "2x4")
    with scope_of(onto):
        loaded = keras.saving.load_model(str(tmp_path / "steps"))
    assert_values(loaded, model, rtol=0)
    assert_layouts(loaded, onto)
    for one in (loaded, model):
        take_two_steps(one)
    assert_values(loaded, model, atol=1e-5)


@LATER
@OF_ORBAX
@pytest.mark.parametrize("within", [True, False], ids=["within", "outside"])
@pytest.mark.parametrize("onto", ["2x4", "1x8", "one"])
def test_weights_of_orbax_are_loaded_onto_another_mesh(onto, within, tmp_path):
    model = orbax_saved(made("8x1"), tmp_path / "steps")
    scope = scope_of(onto)
    with scope:
        loaded = compiled(network())
        loaded.optimizer.build(loaded.trainable_variables)
    with scope if within else contextlib.nullcontext():
        loaded.load_weights(str(tmp_path / "steps"))
    assert_values(loaded, model, rtol=0)
    assert_layouts(loaded, onto)
    for one in (loaded, model):
        take_two_steps(one)
    assert_values(loaded, model, atol=1e-5)


@LATER
@OF_ORBAX
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="load_model makes a Sequential whose paths lack its name, by which a checkpoint of Orbax has its weights: "
    "none of them is loaded, without a word",
)
@pytest.mark.parametrize("make", [lambda model: model, kte.TPUModel.from_model], ids=["stock", "ours"])
def test_keras_loads_a_sequential_model_from_orbax(make, tmp_path):
    """If this fails, Keras mended it."""
    pytest.importorskip("orbax.checkpoint")
    model = compiled(make(keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)], name="all")))
    callback = keras.callbacks.OrbaxCheckpoint(str(tmp_path / "steps"), save_on_background=False)
    model.fit(*data(), batch_size=16, verbose=0, callbacks=[callback])
    np.testing.assert_array_equal(
        keras.saving.load_model(str(tmp_path / "steps")).layers[-1].bias, model.layers[-1].bias
    )


# Memory.


def on_first_device(array):
    if array.is_deleted() or all(device.id for device in array.sharding.device_set):
        return 0
    return int(np.prod(array.sharding.shard_shape(array.shape), dtype=int)) * array.dtype.itemsize


@LATER
@pytest.mark.parametrize("form", ["keras", "weights"])
def test_no_device_holds_the_whole_model_while_it_is_loaded(form, tmp_path, monkeypatch):
    """One variable at a time is on one device as a whole, and not more."""

    def build():
        layers = [keras.layers.Dense(256, use_bias=False) for _ in range(8)]
        return compiled(kte.TPUModel.from_model(keras.Sequential([keras.Input((256,)), *layers])))

    with scope_of("8x1"):
        model = build()
    model.optimizer.build(model.trainable_variables)
    file = tmp_path / ("model.keras" if form == "keras" else "model.weights.h5")
    model.save(file) if form == "keras" else model.save_weights(file)
    whole = sum(variable.value.nbytes for variable in all_of(model))
    largest = max(variable.value.nbytes for variable in all_of(model))
    del model
    known = jax.live_arrays()
    ids, held = {id(array) for array in known}, []
    assign = keras.Variable._direct_assign

    def watched(variable, value):
        held.append(sum(on_first_device(array) for array in jax.live_arrays() if id(array) not in ids))
        assign(variable, value)

    monkeypatch.setattr(keras.Variable, "_direct_assign", watched)
    with scope_of("8x1"):
        loaded = keras.saving.load_model(file) if form == "keras" else build()
    if form == "weights":
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(file)
    assert len(held) >= len(all_of(loaded))
    assert whole / 8 <= max(held) < whole / 8 + 2 * largest + 2**16 < whole / 2


_MEMORY = """
import gc, json, pathlib, sys
import jax, keras, numpy as np
import keras_tpu_ext as kte

file, how, form, units, count = *sys.argv[1:4], *map(int, sys.argv[4:])

def read(name):
    text = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name)) / 1024

def since():
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    return read("VmRSS")

def build():
    layers = [keras.layers.Dense(units, use_bias=False, kernel_initializer="ones") for _ in range(count)]
    return kte.TPUModel.from_model(keras.Sequential([keras.Input((units,)), *layers]))

kte.strategy_scope(require="cpu", replicas=8)
scope = kte.strategy_scope(shard="fsdp", replicas=8) if how == "fsdp" else kte.strategy_scope(require="cpu")
if how == "save":
    model = build()
    model.save_weights(file) if form == "weights" else model.save(file)
    sys.exit()
with scope:
    keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
first = since()
with scope:
    if form == "weights":
        model = build()
        built = read("VmHWM") - first
        before = since()
        model.load_weights(file)
    else:
        built, before = 0, first
        model = keras.saving.load_model(file)
peak = read("VmHWM")
weights = sum(variable.value.nbytes for variable in model.variables) / 2**20
if how == "fsdp":
    assert all(len(v.value.addressable_shards) == 8 and any(v.value.sharding.spec) for v in model.variables)
print(json.dumps({"weights": weights, "built": built, "loading": peak - before, "all": peak - first}))
"""


def memory(*args):
    """Return MiB: of the weights, of building, by how much loading grows the process, and by how much both do."""
    # Or what is freed may stay with the process.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    options = {"capture_output": True, "text": True, "env": environment, "check": False}
    run = subprocess.run([sys.executable, "-c", _MEMORY, *map(str, args)], **options)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1]) if "save" not in args else None


# In times of the weights: those of the model, what is read into NumPy, and for .keras all of the file, which Keras
# reads into memory (saving_lib._load_model_from_fileobj). `assign` puts a variable onto one device as a whole first.
MOST = {("weights", 8): 2, ("weights", 1): 3.5, ("keras", 8): 3.5, ("keras", 1): 5.5}


@LATER
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's peak of a process")
@pytest.mark.parametrize(("units", "count"), [(2560, 8), (7168, 1)], ids=["eight layers", "one layer"])
@pytest.mark.parametrize("form", ["weights", "keras"])
def test_how_much_of_the_host_loading_takes(form, units, count, tmp_path):
    """Some 200 MB of weights. Virtual devices share the memory of the host."""
    file = tmp_path / ("model.weights.h5" if form == "weights" else "model.keras")
    memory(file, "save", form, units, count)
    for how in ("one", "fsdp"):
        found = memory(file, how, form, units, count)
        print(form, units, count, how, {name: round(value) for name, value in found.items()})
        assert found["weights"] < found["all"] < MOST[form, count] * found["weights"]
