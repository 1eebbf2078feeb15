"""`DeviceNormalization` against NumPy in float64, and against Keras's `Normalization`."""

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images

import keras_tpu_ext as kte
import sources
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers.device_normalization import StreamingMoments

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

ON_JAX = keras.backend.backend() == "jax"
MEAN = np.array([123.675, 116.28, 103.53])  # of ImageNet's red, green and blue
DEVIATION = np.array([58.395, 57.12, 57.375])
# The difference and the factor are each rounded to float32, and so are the mean and the result.
FLOAT32 = {"rtol": 4e-7, "atol": 1e-7 * np.max(MEAN / DEVIATION)}
HALF_A_LAST_BIT = {"float32": 0, "mixed_bfloat16": 2**-8, "mixed_float16": 2**-11}


@pytest.fixture(scope="module")
def photos():
    """Two photographs of uint8, as 40 images of 64 x 64."""
    return np.concatenate(
        [
            image[:256, :320].reshape(4, 64, 5, 64, 3).swapaxes(1, 2).reshape(-1, 64, 64, 3)
            for image in load_sample_images().images
        ]
    )


@pytest.fixture(scope="module")
def digits():
    """100 images of uint8 and their labels."""
    found = load_digits()
    return found.images[:100, ..., None].astype("uint8"), found.target[:100].astype("int32")


def array(values):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(values, "float32"))).astype("float64")


def layer_of(**options):
    return kte.layers.DeviceNormalization(mean=MEAN, variance=DEVIATION**2, **options)


@pytest.mark.parametrize("policy", HALF_A_LAST_BIT)
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_it_rounds_once(photos, policy, dtype):
    expected = (photos - MEAN) / DEVIATION
    outputs = layer_of(dtype=policy)(photos.astype(dtype))
    assert policy.removeprefix("mixed_") in str(outputs.dtype)
    tolerance = {**FLOAT32, "rtol": FLOAT32["rtol"] + HALF_A_LAST_BIT[policy]}
    np.testing.assert_allclose(array(outputs), expected, **tolerance)


def test_keras_rounds_before_it_calculates(photos):
    """A mean of 123.5 for 123.675 is 0.003 of a deviation, which is all there is of a value near the mean."""
    expected = (photos - MEAN) / DEVIATION
    stock = keras.layers.Normalization(mean=MEAN, variance=DEVIATION**2, dtype="mixed_bfloat16")
    near = np.abs(expected) < 0.1
    off = [np.abs(array(layer(photos)) - expected)[near].max() for layer in (layer_of(dtype="mixed_bfloat16"), stock)]
    assert off[0] < 0.1 * 2**-8
    assert off[1] > 5 * off[0]


def test_a_mean_far_from_nought_loses_no_digits():
    """Folded into `x * scale + offset`, float32 would be off by 0.1 here."""
    inputs = 1e6 + np.arange(-4.0, 4.0, 0.25)[:, None]
    layer = kte.layers.DeviceNormalization(mean=1e6, variance=1.0)
    np.testing.assert_array_equal(array(layer(inputs.astype("float32"))), inputs - 1e6)


def test_a_float_is_not_rounded_before_the_mean_is_off():
    inputs = np.array([[1000.0], [1001.0], [1002.5]], "float32")
    layer = kte.layers.DeviceNormalization(mean=1001.0, variance=1.0, dtype="mixed_bfloat16")
    inside = keras.Input((1,))
    for outputs in (layer(inputs), keras.Model(inside, layer(inside))(inputs)):
        np.testing.assert_array_equal(array(outputs), [[-1], [0], [1.5]])


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    ("axis", "mean", "variance"),
    [
        (-1, [1.0, 2.0, 3.0], [4.0, 0.0, 9.0]),  # a variance of nought too
        (-1, 2.0, 3.0),
        (None, 2.0, 3.0),
        (1, [1.0, 2.0], [3.0, 4.0]),
        ((1, 2), [[1.0, 2.0, 3.0]] * 2, [[3.0, 4.0, 5.0]] * 2),
    ],
)
def test_arguments_mean_what_they_mean_to_keras(axis, mean, variance, invert):
    inputs = np.arange(24.0, dtype="float32").reshape(4, 2, 3)
    options = {"axis": axis, "mean": mean, "variance": variance, "invert": invert}
    expected = keras.layers.Normalization(**options)(inputs)
    np.testing.assert_allclose(array(kte.layers.DeviceNormalization(**options)(inputs)), array(expected), rtol=1e-6)


def batches(images, kind):
    parts = [images[:7], images[7:30], images[30:]]
    if kind == "generator of pairs":
        return ((part, np.zeros(len(part))) for part in parts)
    if kind == "PyDataset":
        return sources.Batches([(part,) for part in parts])
    if kind == "tf.data":
        tf = pytest.importorskip("tensorflow")
        return tf.data.Dataset.from_tensor_slices(images).batch(7)
    if kind == "tensor":
        return keras.ops.convert_to_tensor(images)
    return {"array": images, "list": parts}[kind]


@pytest.mark.parametrize("kind", ["array", "tensor", "list", "generator of pairs", "PyDataset", "tf.data"])
@pytest.mark.parametrize("axis", [-1, None, (1, 3)])
def test_adapt_finds_mean_and_variance_of_all(photos, kind, axis):
    layer = kte.layers.DeviceNormalization(axis=axis)
    layer.adapt(batches(photos, kind))
    kept = {-1: (3,), None: ()}.get(axis, axis)
    others = tuple(i for i in range(4) if i not in kept)
    mean, variance, count = layer.get_weights()
    np.testing.assert_allclose(mean, photos.mean(others, dtype="float64"), rtol=2**-24)
    np.testing.assert_allclose(variance, photos.var(others, dtype="float64"), rtol=2**-24)
    assert count == photos.size / mean.size


def test_sums_far_from_nought_keep_their_digits():
    values = 1e8 + np.random.default_rng(0).normal(size=(1000, 2))
    found = StreamingMoments()
    for start in range(0, 1000, 7):
        found.add(values[start : start + 7], (1,))
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-15)
    np.testing.assert_allclose(found.variance, values.var(0), rtol=1e-7)  # a value is rounded to 1e-8 of a deviation


def test_adapt_takes_steps_of_what_never_ends(photos):
    layer = kte.layers.DeviceNormalization()
    layer.adapt((photos[:5] for _ in iter(int, 1)), steps=2)
    np.testing.assert_array_equal(layer.get_weights()[0], photos[:5].mean((0, 1, 2)).astype("float32"))
    assert layer.get_weights()[2] == 2 * 5 * 64 * 64


def test_rows_that_fill_up_do_not_count(photos):
    padded = kte.data.pad_batches(sources.batched((photos, np.zeros(40)), 16), 16)
    layer = kte.layers.DeviceNormalization()
    layer.adapt(padded)
    np.testing.assert_array_equal(layer.get_weights()[0], photos.mean((0, 1, 2)).astype("float32"))


def test_a_second_adapt_counts_in_a_compiled_model(photos):
    inputs = keras.Input((64, 64, 3), dtype="uint8")
    layer = kte.layers.DeviceNormalization(dtype="mixed_bfloat16")
    layer.adapt(photos)
    model = keras.Model(inputs, layer(inputs))
    for images in (photos, photos[:2]):
        layer.adapt(images)
        expected = (photos - images.mean((0, 1, 2))) / images.std((0, 1, 2))
        np.testing.assert_allclose(
            model.predict(photos, verbose=0).astype("float64"), expected, rtol=2**-8, atol=1e-6
        )


def network(model_class, layer):
    inputs = keras.Input((8, 8, 1), dtype="uint8")
    hidden = keras.layers.Conv2D(4, 3, activation="relu")(layer(inputs))
    return model_class(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(hidden)))


def trained(model, start, data):
    model.set_weights(start)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(*data, batch_size=48, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), history.history["loss"]


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize(
    "replicas", [pytest.param(1, marks=pytest.mark.exhaustive), 2, pytest.param(8, marks=pytest.mark.exhaustive)]
)
def test_training_on_replicas_is_that_of_keras_on_one(digits, replicas):
    stock = keras.layers.Normalization()
    stock.adapt(digits[0].astype("float32"))
    plain = network(keras.Model, stock)
    start = plain.get_weights()
    expected, expected_loss = trained(plain, start, digits)
    with kte.strategy_scope(require="cpu", replicas=replicas):
        got, loss = trained(network(kte.TPUModel, kte.layers.DeviceNormalization()), start, digits)
    assert expected_loss[1] < 0.95 * expected_loss[0]
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", HALF_A_LAST_BIT)
def test_it_trains_under_every_policy(digits, policy):
    with kte.strategy_scope(require="cpu", replicas=2, precision=policy):
        layer = kte.layers.DeviceNormalization()
        layer.adapt(digits[0])
        model = network(kte.TPUModel, layer)
        _, loss = trained(model, model.get_weights(), digits)
    assert loss[1] < 0.95 * loss[0]


@pytest.mark.parametrize("known", ["adapted", "given"])
def test_a_model_is_saved_and_read(digits, tmp_path, known):
    layer = kte.layers.DeviceNormalization(mean=5.0, variance=36.0, invert=True)
    if known == "adapted":
        layer = kte.layers.DeviceNormalization()
        layer.adapt(digits[0])
    model = network(keras.Model, layer)
    model.save(tmp_path / "model.keras")
    read = keras.models.load_model(tmp_path / "model.keras")
    assert type(read.layers[1]) is kte.layers.DeviceNormalization
    assert read.layers[1].get_config() == layer.get_config()
    np.testing.assert_array_equal(read.predict(digits[0], verbose=0), model.predict(digits[0], verbose=0))


@pytest.mark.parametrize("axis", [-1, None, (1, 2)])
def test_configs_and_weights_go_both_ways(axis):
    images = np.arange(48.0, dtype="float32").reshape(4, 2, 3, 2)
    stock = keras.layers.Normalization(axis=axis, name="normal")
    stock.adapt(images)
    ours = kte.layers.DeviceNormalization.from_config(stock.get_config())
    ours.build((None, 2, 3, 2))
    shown = [
        [(weight.name.split("/")[-1], tuple(weight.shape)) for weight in layer.weights] for layer in (stock, ours)
    ]
    assert sorted(shown[0]) == sorted(shown[1])
    ours.set_weights(stock.get_weights())
    np.testing.assert_allclose(array(ours(images)), array(stock(images)), rtol=1e-6, atol=1e-6)
    back = keras.layers.Normalization.from_config(ours.get_config())
    back.build((None, 2, 3, 2))
    ours.adapt(images[:2])
    back.set_weights(ours.get_weights())
    back.finalize_state()
    np.testing.assert_allclose(array(back(images)), array(ours(images)), rtol=1e-6, atol=1e-6)


def test_weights_of_keras_with_given_mean_are_none_here_too():
    stock = keras.layers.Normalization(mean=[1.0, 2.0], variance=[3.0, 4.0])
    ours = kte.layers.DeviceNormalization.from_config(stock.get_config())
    inputs = np.ones((1, 2), "float32")
    np.testing.assert_allclose(array(ours(inputs)), array(stock(inputs)), rtol=1e-6)
    assert ours.weights == []


UNKNOWN = r"`mean` must be set before the layer is called; got none. Write layer.adapt\(images\) first"


@pytest.mark.parametrize("call", ["layer", "model", "predict", "fit"])
def test_it_is_an_error_to_know_no_mean(digits, call):
    layer = kte.layers.DeviceNormalization()
    model = network(keras.Model, layer)
    model.compile("sgd", "mse")
    acts = {
        "layer": lambda: layer(digits[0]),
        "model": lambda: model(digits[0]),
        "predict": lambda: model.predict(digits[0], verbose=0),
        "fit": lambda: model.fit(digits[0], np.zeros((100, 10)), verbose=0),
    }
    with pytest.raises(Exception, match=UNKNOWN):  # Keras 2 makes a StagingError of it
        acts[call]()


def test_weights_from_a_file_are_known(digits, tmp_path):
    layer = kte.layers.DeviceNormalization()
    layer.adapt(digits[0])
    first, second = network(keras.Model, layer), network(keras.Model, kte.layers.DeviceNormalization())
    first.save_weights(tmp_path / "model.weights.h5")
    second.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(second.predict(digits[0], verbose=0), first.predict(digits[0], verbose=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": 1.0}, r"`variance` must be given with `mean`; got None. Write .*with variance too"),
        ({"variance": 1.0}, r"`mean` must be given with `variance`; got None. Write .*with mean too"),
        (
            {"mean": 1.0, "variance": [1.0, -1.0]},
            r"0 or more; got \[1.0, -1.0\]. Write variance=deviation\*\*2",
        ),
        ({"mean": 1.0, "variance": float("nan")}, r"0 or more; got nan"),
    ],
)
def test_arguments_that_cannot_work(options, message):
    with pytest.raises(ArgumentError, match=message):
        kte.layers.DeviceNormalization(**options)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        (
            {"mean": [1.0] * 4, "variance": [1.0] * 4},
            (None, 3),
            r"`mean` must .*fit \(3,\).*got shape \(4,\). Write ",
        ),
        ({"mean": 1.0, "variance": [1.0] * 2}, (None, 3), r"`variance` must .*fit \(3,\).*got shape \(2,\). Write "),
        ({"axis": 2}, (None, 3), r"shape is \(None, 3\); got \(2,\). Write axis=-1"),
        ({"axis": 1}, (None, None, 3), r"dimensions of known size"),
    ],
)
def test_inputs_that_do_not_fit(options, shape, message):
    with pytest.raises(ArgumentError, match=message):
        kte.layers.DeviceNormalization(**options).build(shape)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"must be one example or more; got none. Write layer.adapt\(images\)"),
        ("images", r"an iterable of batches; got a str. Write layer.adapt\(images\)"),
        (7, r"got a int"),
        ([{"image": np.ones((2, 3))}], r"batches of numbers.*got a dict with dtype object. Write layer.adapt\("),
        ([np.ones((2, 3)), np.ones((2, 4))], r"size \(3,\) on axis \(-1,\) as when"),
        ([np.ones((2, 3)), np.ones((2, 3, 3))], r"must be of 2 dimensions.*got a batch of shape \(2, 3, 3\)"),
    ],
)
def test_data_that_cannot_work(data, message):
    with pytest.raises(ArgumentError, match=message):
        kte.layers.DeviceNormalization().adapt(data)


def test_a_mean_that_is_given_is_not_adapted():
    with pytest.raises(ArgumentError, match=r"got a layer with mean=1.0. Write DeviceNormalization\(\) without"):
        kte.layers.DeviceNormalization(mean=1.0, variance=1.0).adapt(np.ones((2, 3)))
