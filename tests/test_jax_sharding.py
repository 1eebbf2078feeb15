"""Models that are sharded over a mesh: exact as on one device, laid out as asked, and told of."""

import json
import re
import warnings

import jax
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from fit_programs import text_of
from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError, LayoutWarning

pytestmark = pytest.mark.runtimes("keras3_jax", reason="models are sharded on JAX")

MESHES = {
    "8x1": {"shard": "fsdp", "replicas": 8},
    "4x2": {"shard": "fsdp", "mesh": {"data": 4, "model": 2}},
    "2x4": {"shard": "fsdp", "mesh": (("data", 2), ("model", 4))},
    "1x8": {"shard": "fsdp", "mesh": (("data", 1), ("model", 8))},
}
LATER = pytest.mark.exhaustive
SOME = [pytest.param(mesh, marks=[] if mesh == "2x4" else LATER) for mesh in MESHES]


def data(rows=43, features=32):
    x = np.random.default_rng(0).normal(size=(rows, features)).astype("float32")
    return x, np.tanh(x[:, :3] * 2)


def network(make=kte.TPUModel):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32,))
    x = keras.layers.Dense(64, "relu", name="up")(inputs)
    x = keras.layers.Reshape((8, 8))(keras.layers.BatchNormalization()(x))
    x = keras.layers.MultiHeadAttention(4, 16, name="attention")(x, x)
    return make(inputs, keras.layers.Dense(3, name="down")(keras.layers.Flatten()(x)))


def trained(scope, arrays=None, epochs=2, **options):
    """Return what a model is after training, and what it says."""
    x, y = data() if arrays is None else arrays
    with scope:
        model = network()
        optimizer = options.pop("optimizer", None) or keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, "mse", metrics=["mae"], **options)
    history = model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history
    said = model.evaluate(x, y, batch_size=16, verbose=0), model.predict(x, batch_size=16, verbose=0)
    return model, history["loss"], said


def one_device():
    return kte.strategy_scope(require="cpu")


def assert_equal(a, b, tolerance=1e-5):
    (model, loss, (evaluated, predicted)), (other, its_loss, (its_evaluated, its_predicted)) = a, b
    np.testing.assert_allclose(loss, its_loss, rtol=tolerance)
    np.testing.assert_allclose(evaluated, its_evaluated, rtol=tolerance)
    np.testing.assert_allclose(predicted, its_predicted, atol=tolerance)
    for one, its in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, its, atol=tolerance)


OPTIONS = {
    "plain": {},
    "clipping": {"optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1)},
    "accumulation": {"gradient_accumulation_steps": 2},
    "scaling": {"loss_scale": "dynamic"},
    # The gradient of the keys' bias is 0 but for rounding, which Adam divides by its size, if not for the epsilon.
    "averages": {"optimizer": lambda: keras.optimizers.Adam(0.01, epsilon=1e-3, use_ema=True, ema_momentum=0.9)},
}


def resolved(options):
    return {name: value() if callable(value) else value for name, value in options.items()}


IN_GATE = {("2x4", "plain")}  # the parity suite has more in the gate
CASES = [
    pytest.param(mesh, options, marks=[] if (mesh, options) in IN_GATE else LATER)
    for mesh in MESHES
    for options in ("plain", "clipping", "accumulation", "averages")
]


@pytest.mark.parametrize(("mesh", "options"), CASES)
def test_a_sharded_model_trains_as_on_one_device(mesh, options):
    """Batches of 16 with a last one of 11, normalization over the batch, attention."""
    scope = kte.strategy_scope(**MESHES[mesh])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayoutWarning)
        sharded = trained(scope, **resolved(OPTIONS[options]))
    assert any(any(row.spec) for row in scope.layout(sharded[0]).variables)
    assert_equal(sharded, trained(one_device(), **resolved(OPTIONS[options])))


@pytest.mark.parametrize("mesh", SOME)
def test_an_inf_in_one_shard_skips_the_step_on_all(mesh):
    x, y = data()
    x[3] = np.inf  # of the first batch, in the part of one replica
    sharded = trained(kte.strategy_scope(**MESHES[mesh]), (x[:40], y[:40]), 1, loss_scale="dynamic")
    one = trained(one_device(), (x[:40], y[:40]), 1, loss_scale="dynamic")
    skipped = _runtime.progress.skipped_steps
    assert skipped(sharded[0]) == skipped(one[0]) == 1
    for a, b in zip(sharded[0].trainable_variables, one[0].trainable_variables, strict=True):
        assert np.isfinite(np.asarray(a.value)).all()
        np.testing.assert_allclose(a.value, b.value, atol=1e-5)


@pytest.mark.parametrize("mesh", SOME)
def test_each_device_has_its_part_of_weights_and_optimizer(mesh):
    scope = kte.strategy_scope(**MESHES[mesh])
    with scope:
        model = kte.TPUModel.from_model(
            keras.Sequential([keras.Input((256,)), keras.layers.Dense(1024, "relu"), keras.layers.Dense(256)])
        )
        model.compile("adam", "mse")
    x = np.zeros((16, 256), "float32")
    model.fit(x, x, batch_size=16, verbose=0)
    variables = [*model.variables, *model.optimizer.variables]
    there = sum(variable.value.addressable_shards[0].data.nbytes for variable in variables)
    whole = sum(variable.value.nbytes for variable in variables)
    assert there == pytest.approx(whole / 8, rel=0.05)
    report = scope.layout(model)
    told = sum(row.bytes_per_device for row in report.variables if row.role in ("weight", "optimizer"))
    assert told == there
    weights = {variable.path: variable.value.sharding.spec for variable in model.variables}
    for slot in model.optimizer.variables:
        match = next((path for path in weights if slot.path.endswith(f"{path.replace('/', '_')}_momentum")), None)
        if match is not None:
            assert slot.value.sharding.spec == weights[match]


def test_a_pattern_lays_out_what_it_matches_and_the_rest_is_told():
    scope = kte.strategy_scope(
        shard={"up/kernel": (None, "model"), "down/kernel": (None, "model"), "gone": ("data",)},
        mesh={"data": 2, "model": 4},
    )
    with scope:
        model = network()
        model.compile("sgd", "mse")
    message = (
        r"the pattern 'gone' of `shard` matches no variable; down/kernel .*4 devices along 'model' do not divide 3"
    )
    with pytest.warns(LayoutWarning, match=message):
        model.fit(*data(16), verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayoutWarning)
        model.fit(*data(16), verbose=0)  # once
    report = scope.layout(model)
    specs = {row.path: row.spec for row in report.variables}
    assert specs["up/kernel"] == (None, "model")
    assert specs["down/kernel"] == specs["attention/query/kernel"][:2] == (None, None)
    assert not report.ok
    assert len(report.complaints) == 2
    up = next(variable for variable in model.variables if variable.path == "up/kernel")
    assert up.value.sharding.spec == jax.sharding.PartitionSpec(None, "model")


def test_activations_are_split_along_the_batch_whatever_the_weights_suggest():
    def program(**options):
        opened = _runtime.devices.abstract_strategy(8)
        if options:
            opened = _runtime.devices.shard(opened, "fsdp", tuple(options["mesh"].items()))
        x, y = data(16)
        with kte.strategy_scope(require="cpu"):
            model = network()
            model.compile("sgd", "mse")
        return text_of(_runtime.probes.lower_step(model, (x, y), opened, "TPU v5 lite"))

    constraints = re.findall(r"sdy.sharding_constraint .*", program(mesh={"data": 4, "model": 2}))
    assert len(constraints) >= 2 * len(network().layers) - 2  # forward and backward
    assert all('<@mesh, [{"data"}, ' in line and "?" in line for line in constraints if "16x64x" in line)
    assert "sharding_constraint" not in program(mesh={"data": 1, "model": 8})
    assert "sharding_constraint" not in program()


def test_two_patterns_for_one_variable_are_an_error():
    scope = kte.strategy_scope(shard={"up": ("data",), "kernel": (None, "data")}, replicas=8)
    message = r"Two patterns of `shard` match 'up/kernel': 'up' and 'kernel'\. .* Write a longer pattern"
    with scope, pytest.raises(ArgumentError, match=message):
        network()


def test_a_large_weight_that_stays_on_every_device_is_told():
    scope = kte.strategy_scope(shard="fsdp", replicas=8)
    with scope:
        model = kte.TPUModel.from_model(keras.Sequential([keras.Input((1023,)), keras.layers.Dense(1021)]))
        model.compile("sgd", "mse")
    (complaint,) = scope.layout(model).complaints
    assert complaint.endswith("(1023, 1021), 4.0 MiB, is not sharded")


@LATER
def test_a_layout_map_brings_its_mesh():
    kte.strategy_scope(replicas=8)  # makes the devices
    mesh = keras.distribution.DeviceMesh((4, 2), ("data", "model"), keras.distribution.list_devices("cpu")[:8])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*up/kernel"] = (None, "model")
    layouts[".*up/output"] = ("data", None)  # of an output
    layouts[".*gone"] = ("data",)
    scope = kte.strategy_scope(shard=layouts)
    assert scope.num_replicas == 4
    with pytest.warns(LayoutWarning, match=r"mistakes: the pattern '\.\*gone' of `shard` matches no variable\. "):
        sharded = trained(scope)
    assert {row.path: row.spec for row in scope.layout(sharded[0]).variables}["up/kernel"] == (None, "model")
    assert_equal(sharded, trained(one_device()))


def test_the_report():
    scope = kte.strategy_scope(**MESHES["2x4"])
    assert str(scope).endswith("sharded over a mesh of data 2 x model 4")
    with scope:
        model = network()
        model.compile("adam", "mse")
    report = scope.layout(model)
    data_ = json.loads(json.dumps(report.to_dict()))
    assert data_["ok"] is True
    assert data_["mesh"] == {"data": 2, "model": 4}
    assert data_["bytes_per_device"] == report.bytes_per_device < sum(row.bytes for row in report.variables)
    text = str(report)
    assert f"'{model.name}' on a mesh of data 2 x model 4" in text
    assert any(
        line.split()[:2] == ["attention/query/kernel", "(8,"] and "(-, model, data)" in line
        for line in text.splitlines()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shard": "zero"},
            r'`shard` must be "fsdp", "auto", a dict of patterns, or .*; got \'zero\'\. Write shard="fsdp"',
        ),
        ({"shard": {}}, "`shard` must be"),
        ({"mesh": {"data": 8}}, r'`mesh` is for models that are sharded\. Write shard="fsdp" as well'),
        ({"shard": "fsdp", "mesh": 8}, r"`mesh` must be a tuple of axes .*; got 8\. Write mesh="),
        (
            {"shard": "fsdp", "mesh": (("data", 2), ("data", 4))},
            "`mesh` must be a tuple of axes with a name of its own",
        ),
        ({"shard": "fsdp", "mesh": (("data", 0),)}, "`mesh` must be"),
        ({"shard": "fsdp", "mesh": (("data", float("inf")),)}, "`mesh` must be"),
        ({"shard": {"kernel": "model"}}, "the name of an axis, or None, for each dimension; got 'kernel': 'model'"),
        ({"shard": {"kernel": None}}, "the name of an axis, or None, for each dimension; got 'kernel': None"),
        ({"shard": {"kernel": ("data", "data")}}, "whose values name an axis once"),
        (
            {"shard": {"*kernel": ("data",)}},
            r"whose keys are regular expressions; got '\*kernel' \(nothing to repeat",
        ),
        ({"shard": np.zeros(3)}, "`shard` must be"),
        ({"shard": "fsdp", "mesh": {"data": 2, "model": 4}, "replicas": 4}, "replicas=4 and mesh=.* contradict"),
        (
            {"shard": {"kernel": ("model",)}, "replicas": 8},
            r"`shard` names the axis 'model' by 'kernel', and the mesh",
        ),
    ],
)
def test_what_cannot_work_is_an_error(options, message):
    with pytest.raises(ArgumentError, match=message):
        kte.strategy_scope(require="cpu", **options)


def test_a_layout_is_of_a_built_model():
    scope = kte.strategy_scope(**MESHES["8x1"])
    with pytest.raises(ArgumentError, match=r"`model` must be a Keras model that is built; got int\."):
        scope.layout(3)
    with scope:
        model = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(ArgumentError, match=r"which is not\. Write model\.build\(shape\) before"):
        scope.layout(model)


def test_a_pattern_with_too_many_axes_is_an_error():
    scope = kte.strategy_scope(shard={"kernel": ("data", None, None, None)}, replicas=8)
    with (
        scope,
        pytest.raises(ArgumentError, match=r"gives 'up/kernel' 4 axes .* Write one axis or None for each dim"),
    ):
        network()


@pytest.mark.parametrize("onto", ["2x4", pytest.param("8x1", marks=LATER), pytest.param(None, marks=LATER)])
def test_a_model_is_saved_and_loaded_onto_another_mesh(onto, tmp_path):
    """Weights and optimizer state go on where they were, on the layouts of the mesh that loads them."""
    one, *_ = trained(kte.strategy_scope(**MESHES["8x1"]), epochs=1)
    one.save(tmp_path / "model.keras")
    one.save_weights(tmp_path / "model.weights.h5")
    scope = one_device() if onto is None else kte.strategy_scope(**MESHES[onto])
    with scope:
        loaded = keras.models.load_model(tmp_path / "model.keras")
        with_weights = network()
    with_weights.load_weights(tmp_path / "model.weights.h5")
    if onto is not None:
        specs = {row.path: row.spec for row in scope.layout(loaded).variables}
        assert specs["up/kernel"] == {"2x4": ("data", "model"), "8x1": (None, "data")}[onto]
        up = next(variable for variable in loaded.variables if variable.path == "up/kernel")
        assert up.value.addressable_shards[0].data.nbytes == up.value.nbytes // 8
    for model in (loaded, with_weights):
        for its, own in zip(model.get_weights(), one.get_weights(), strict=True):
            np.testing.assert_array_equal(its, own)
    x, y = data()
    for model in (one, loaded):
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    for its, own in zip(loaded.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(its, own, atol=1e-5)


def convolutions(*layers, shape=(6, 6, 8)):
    return lambda: keras.Sequential([keras.Input(shape), *(make() for make in layers), keras.layers.Flatten()])


def layer(name, *args, **options):
    return lambda: getattr(keras.layers, name)(*args, **options)


CONVOLUTIONS = {
    "one": convolutions(layer("Conv2D", 16, 3), shape=(8, 8, 8)),
    "two": convolutions(*[layer("Conv2D", 16, 3, padding="same")] * 2),
    "groups": convolutions(*[layer("Conv2D", 16, 3, padding="same", groups=4)] * 2),
    "depthwise": convolutions(layer("DepthwiseConv2D", 3, depth_multiplier=2), layer("SeparableConv2D", 16, 3)),
    "transposed": convolutions(layer("Conv2DTranspose", 16, 3, strides=2)),
    "of one dimension": convolutions(layer("Conv1D", 16, 3), shape=(12, 8)),
    "recurrent": convolutions(layer("ConvLSTM2D", 8, 3), shape=(3, 6, 6, 8)),
}
CONVOLVED = [
    pytest.param(name, mesh, marks=[] if (name, mesh) == ("depthwise", "2x4") else LATER)
    for name in CONVOLUTIONS
    for mesh in MESHES
]


@pytest.mark.parametrize(("name", "mesh"), CONVOLVED)
def test_convolutions(name, mesh):
    """XLA's partitioner makes their gradients 2 or 4 times as large, or ends the process."""
    build = CONVOLUTIONS[name]
    results = []
    for scope in (kte.strategy_scope(**MESHES[mesh]), one_device()):
        keras.utils.set_random_seed(0)
        with scope:
            model = build()
            model.add(keras.layers.Dense(3))
            model.compile(keras.optimizers.SGD(0.1), "mse")
        rng = np.random.default_rng(0)
        x, y = (rng.normal(size=(22, *shape[1:])).astype("float32") for shape in (model.input_shape, (None, 3)))
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0, epochs=2)
        results.append(model.get_weights())
    for sharded, one in zip(*results, strict=True):
        np.testing.assert_allclose(sharded, one, atol=1e-5)


def test_a_variable_of_another_mesh_does_not_end_the_training():
    first, second = kte.strategy_scope(**MESHES["2x4"]), kte.strategy_scope(**MESHES["8x1"])
    with first:
        base = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64)])
    with second:
        inputs = keras.Input((32,))
        model = keras.Model(inputs, keras.layers.Dense(8)(base(inputs)))
        model.compile("sgd", "mse")
    with pytest.warns(LayoutWarning, match=r"kernel \(32, 64\): it is on another mesh, data 2 x model 4") as told:
        model.fit(np.zeros((16, 32), "float32"), np.zeros((16, 8), "float32"), verbose=0)
    assert told[0].filename == __file__
    report = second.layout(model)
    assert report.bytes_per_device < sum(row.bytes for row in report.variables)
    for row, variable in zip(report.variables, model.weights, strict=False):
        assert row.bytes_per_device == variable.value.addressable_shards[0].data.nbytes


def test_one_models_note_is_not_anothers():
    scope = kte.strategy_scope(shard={"kernel": (None, "model")}, mesh={"data": 2, "model": 4})
    complaints = []
    for units in (3, 8, 3):
        with scope:
            model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(units, name="head")], name="one")
        complaints.append(len(scope.layout(model).complaints))
    assert complaints == [1, 0, 1]


def test_a_pattern_is_for_weights_and_not_for_what_has_fewer_dimensions():
    scope = kte.strategy_scope(shard={"kernel": (None, "model")}, mesh={"data": 2, "model": 4})
    with scope:
        model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(8)])
        model.compile("adafactor", "mse")
    model.fit(np.zeros((16, 32), "float32"), np.zeros((16, 8), "float32"), verbose=0)


def classifier():
    keras.utils.set_random_seed(1)
    layers = keras.layers.Embedding(64, 16, mask_zero=True), keras.layers.LSTM(16), keras.layers.Dense(4)
    model = keras.Sequential([keras.Input((7,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, weighted_metrics=["accuracy"])
    return model


@pytest.mark.exhaustive  # the parity suite has such models in the gate
@pytest.mark.parametrize("mesh", MESHES)
def test_a_plain_model_with_masks_and_weights(mesh):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, (43, 7)), rng.integers(0, 4, 43)
    weights = rng.uniform(0, 2, 43).astype("float32")
    results = []
    for scope in (kte.strategy_scope(**MESHES[mesh]), one_device()):
        with scope:
            model = classifier()
        options = {"sample_weight": weights, "batch_size": 16, "verbose": 0}
        history = model.fit(x, y, shuffle=False, epochs=2, **options).history
        results.append((history["loss"], history["accuracy"], model.evaluate(x, y, **options), model.get_weights()))
    for sharded, one in zip(*results, strict=True):
        for its, own in zip(sharded, one, strict=True):
            np.testing.assert_allclose(its, own, atol=1e-5)


@LATER
@pytest.mark.parametrize("mesh", [{"data": 2, "model": 4}, {}], ids=str)
@pytest.mark.parametrize("kind", ["arrays", "generator"])
def test_a_model_is_laid_out_anew_for_its_first_batch_and_stays_exact(mesh, kind, monkeypatch):
    asked = []

    def choose(hardware, model, batch):
        asked.append([leaf.shape for leaf in batch])
        return mesh

    monkeypatch.setattr(kte.strategy, "fastest_mesh", choose)
    x, y = data()

    def fitted(scope):
        with scope:
            model = network()
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", gradient_accumulation_steps=2)
        for _ in range(2):
            batches = ((x[i : i + 16], y[i : i + 16]) for i in range(0, 43, 16))
            arrays = {"x": x, "y": y, "batch_size": 16}
            options = {"x": batches, "steps_per_epoch": 3} if kind == "generator" else arrays
            model.fit(**options, shuffle=False, verbose=0)
        return model

    scope = kte.strategy_scope(shard="auto", replicas=8)
    model = fitted(scope)
    assert asked == [[(16, 32), (16, 3)]]  # once
    specs = {row.path: row.spec for row in scope.layout(model).variables}
    assert specs["up/kernel"] == (("data", "model") if mesh else (None, None))
    up = next(variable for variable in model.variables if variable.path == "up/kernel")
    slot = next(variable for variable in model.optimizer.variables if "up_kernel" in variable.path)
    assert up.value.addressable_shards[0].data.shape == slot.value.addressable_shards[0].data.shape
    assert up.value.addressable_shards[0].data.size == up.value.size // (8 if mesh else 1)
    for one, its in zip(model.get_weights(), fitted(one_device()).get_weights(), strict=True):
        np.testing.assert_allclose(one, its, atol=1e-5)


def test_without_a_tpu_auto_is_fsdp():
    scope = kte.strategy_scope(shard="auto", replicas=8)
    with scope:
        model = network()
        model.compile("sgd", "mse")
    model.fit(*data(16), verbose=0)
    assert {row.path: row.spec for row in scope.layout(model).variables}["up/kernel"] == (None, "data")
