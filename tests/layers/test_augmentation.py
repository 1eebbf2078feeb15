"""What the layers that augment images have in common: seeds, steps, replicas, saving."""

import json

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import plain_augmentation as plain
from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

L = kte.layers
ON_IMAGES = [L.RandomFlipCrop, L.RandomAffine, L.RandomErasing]
ALL = [*ON_IMAGES, L.MixUp, L.CutMix]
PLAIN = {L.RandomFlipCrop: plain.flip_crop, L.RandomAffine: plain.affine, L.RandomErasing: plain.erasing}


def numpy_of(values):
    return np.asarray(keras.ops.convert_to_numpy(values))


def images_of(layer, count=16, **options):
    images, classes = plain.digits(count)
    if type(layer) in ON_IMAGES:
        return numpy_of(layer(images, **options))
    return numpy_of(layer((images, plain.one_hot(classes)), **options)[0])


def calls_of(model):
    return [int(numpy_of(layer.calls)) for layer in _runtime.models.flatten_layers(model) if hasattr(layer, "calls")]


def classifier(model_class, rate=0.05):
    """A model of digits that trains on crops, turned, with erased parts."""
    inputs = keras.Input((8, 8, 1))
    x = L.RandomFlipCrop(padding=1, horizontal=False, vertical=True, seed=1, name="crop")(inputs)
    x = L.RandomAffine(rotation=0.04, translation=0.0, horizontal=False, seed=1, name="turn")(x)
    x = L.RandomErasing(probability=0.7, seed=1, name="erase")(x)
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(x))
    model = model_class(inputs, keras.layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return model


def mixed(layer_class, model_class):
    """A model that learns mixed labels of mixed images; what it returns is what they are off."""
    images, labels = keras.Input((8, 8, 1)), keras.Input((10,))
    x, soft = layer_class(alpha=1.0, seed=1)((images, labels))
    x = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(x)))
    model = model_class([images, labels], keras.layers.Subtract()([soft, x]))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


def trained(build, model_class, replicas, x, y, batch_size=16):
    keras.utils.set_random_seed(2)
    with kte.strategy_scope(require="cpu", replicas=replicas):
        model = build(model_class)
        history = model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0).history
    return model, history


def assert_same(got, expected):
    (model, history), (plain_model, plain_history) = got, expected
    for name in plain_history:
        np.testing.assert_allclose(history[name], plain_history[name], rtol=2e-5, atol=1e-6)  # sums in another order
    for have, want in zip(model.get_weights(), plain_model.get_weights(), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    assert calls_of(model) == calls_of(plain_model)


@pytest.mark.parametrize("layer_class", ALL)
def test_a_seed_tells_the_numbers_and_each_call_draws_others(layer_class):
    first, again = layer_class(seed=5), layer_class(seed=5)
    other = images_of(layer_class(seed=6), training=True)
    steps = [images_of(first, training=True) for _ in range(3)]
    np.testing.assert_array_equal(images_of(again, training=True), steps[0])
    assert not np.array_equal(steps[0], other)
    assert not np.array_equal(steps[0], steps[1])
    assert not np.array_equal(steps[1], steps[2])
    assert int(numpy_of(first.calls)) == 3


@pytest.mark.parametrize("layer_class", ON_IMAGES)
def test_an_example_gets_the_same_in_a_batch_of_any_size(layer_class):
    all_of_them = images_of(layer_class(seed=5), count=16, training=True)
    np.testing.assert_array_equal(images_of(layer_class(seed=5), count=9, training=True), all_of_them[:9])


@pytest.mark.parametrize("layer_class", ALL)
def test_without_a_seed_one_is_drawn_that_set_random_seed_decides_and_that_is_saved(layer_class):
    keras.utils.set_random_seed(1)
    first, second = layer_class(), layer_class()
    keras.utils.set_random_seed(1)
    assert layer_class().seed == first.seed != second.seed
    assert layer_class.from_config(json.loads(json.dumps(first.get_config()))).seed == first.seed


def test_layers_of_several_classes_draw_different_numbers_of_one_seed():
    drawn = []
    for layer_class in ALL:
        layer = layer_class(seed=3)
        images_of(layer)  # builds it
        drawn.append(np.stack([numpy_of(word) for word in layer._random_bits(50, 4)]))
    assert len(np.unique(drawn)) == len(ALL) * 4 * 50


@pytest.mark.parametrize(
    "layer",
    [
        L.RandomFlipCrop(height=7, width=6, padding=1, horizontal=False, vertical=True, seed=8),
        L.RandomAffine(rotation=0.2, zoom=0.2, shear=0.1, translation=0.05, horizontal=False, vertical=True, seed=8),
        L.RandomErasing(probability=0.25, scale=(0.1, 0.2), ratio=(0.5, 2.0), value=(1.0,), seed=8),
        L.MixUp(alpha=0.7, seed=8),
        L.CutMix(alpha=0.7, seed=8),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_config_makes_the_same_layer(layer):
    config = json.loads(json.dumps(layer.get_config()))
    again = type(layer).from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    np.testing.assert_array_equal(images_of(again, training=True), images_of(layer, training=True))
    assert keras.saving.get_registered_name(type(layer)) == f"keras_tpu_ext>{type(layer).__name__}"


@pytest.mark.parametrize("layer_class", ALL)
@pytest.mark.parametrize("seed", [-1, 1.5, "one", 2**32, True])
def test_a_seed_that_cannot_work_is_refused(layer_class, seed):
    with pytest.raises(ArgumentError) as raised:
        layer_class(seed=seed)
    assert str(raised.value).startswith(f"{layer_class.__name__}: `seed` must be an integer from 0 to 4294967295; ")
    assert f"got {seed!r}. Write seed=0." in str(raised.value)


@pytest.mark.parametrize("layer_class", ALL)
def test_several_processes_need_a_seed(layer_class, monkeypatch):
    monkeypatch.setattr(_runtime.devices, "num_workers", lambda: 2)
    with pytest.raises(
        ArgumentError, match=r"`seed` must be given where 2 processes train together.*got None. Write"
    ):
        layer_class()
    assert layer_class(seed=4).seed == 4


@pytest.mark.parametrize("layer_class", ON_IMAGES)
@pytest.mark.parametrize(
    ("images", "text"),
    [
        (
            np.zeros((4, 8, 8), "float32"),
            "`inputs` must be images of shape (batch, height, width, channels), of which all but the",
        ),
        (
            np.zeros((4, 8, 8, 1), "int32"),
            "`inputs` must be images of floats or of dtype uint8; got int32. Write images.",
        ),
    ],
)
def test_what_are_no_images_is_refused(layer_class, images, text):
    for training in (True, False):
        with pytest.raises(ArgumentError) as raised:
            layer_class()(images, training=training)
        assert f"{layer_class.__name__}: {text}" in str(raised.value)


@pytest.mark.runtimes(
    "keras3_tf", "keras3_jax", reason="Keras 2: AutoGraph makes an error of its own of it, with the same text"
)
@pytest.mark.parametrize("layer_class", ALL)
def test_symbols_that_are_no_images_are_refused(layer_class):
    symbols = keras.Input((8, 8, 1), dtype="int32")
    with pytest.raises(ArgumentError, match=f"{layer_class.__name__}: `inputs` must be images of floats or of dtype"):
        layer_class()(symbols if layer_class in ON_IMAGES else (symbols, keras.Input((10,))))


@pytest.mark.parametrize("layer_class", ON_IMAGES)
def test_sizes_that_are_not_known_are_refused(layer_class):
    with pytest.raises(ArgumentError, match=r"got shape \(None, None, 8, 1\). Write keras.Input\(\(224, "):
        layer_class()(keras.Input((None, 8, 1)))


@pytest.mark.parametrize("layer_class", ON_IMAGES)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_symbols_and_a_mixed_policy_keep_the_dtype(layer_class, dtype):
    layer = layer_class(seed=1, dtype="mixed_bfloat16")
    symbol = layer(keras.Input((8, 8, 1), dtype=dtype))
    assert tuple(symbol.shape) == (None, 8, 8, 1) == tuple(layer.compute_output_shape((None, 8, 8, 1)))
    assert dtype in str(symbol.dtype)
    images = plain.digits(4)[0].astype(dtype)
    assert numpy_of(layer(images, training=True)).dtype == dtype
    drawn = numpy_of(layer_class(seed=1)(images, training=True))
    tolerance = 1e-6 if layer_class is L.RandomAffine and dtype == "float32" else 0.0  # others compute nothing
    np.testing.assert_allclose(drawn, PLAIN[layer_class](layer, images, 0), rtol=tolerance, atol=tolerance)


# Of 61 the last batch has 13: on eight replicas the last has none. Of 64 TensorFlow knows how many a replica has.
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(64, marks=pytest.mark.exhaustive),
        pytest.param(61, marks=pytest.mark.gate_on("keras3_jax")),
    ],
)
@pytest.mark.parametrize(
    "replicas", [pytest.param(1, marks=pytest.mark.exhaustive), 2, pytest.param(8, marks=pytest.mark.exhaustive)]
)
def test_training_is_that_of_one_device_at_any_number_of_replicas(count, replicas):
    images, classes = plain.digits(count)
    expected = trained(classifier, keras.Model, 1, images, classes)
    assert calls_of(expected[0]) == [8, 8, 8]
    assert_same(trained(classifier, kte.TPUModel, replicas, images, classes), expected)


@pytest.mark.exhaustive  # one device and the layers are compared with loops anyway
def test_the_step_trains_on_what_loops_make_of_the_images():
    images, classes = plain.digits(32)
    model, _ = trained(classifier, kte.TPUModel, 8, images, classes)
    keras.utils.set_random_seed(2)
    by_hand = classifier(keras.Model)
    crop, turn, erase = (by_hand.get_layer(name) for name in ("crop", "turn", "erase"))
    by_hand = keras.Model(by_hand.layers[4].input, by_hand.output)  # without the three layers
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    by_hand.compile(keras.optimizers.SGD(0.05), loss)
    for step in range(4):
        rows = slice(16 * (step % 2), 16 * (step % 2) + 16)
        batch = plain.affine(turn, plain.flip_crop(crop, images[rows], step), step).astype("float32")
        batch = plain.erasing(erase, batch, step)
        by_hand.train_on_batch(batch, classes[rows])
    for have, want in zip(model.layers[-1].get_weights(), by_hand.layers[-1].get_weights(), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


# Eight replicas have two examples each. Of a batch of 13 the last is alone on its replica, and has no neighbour on
# one device either; two replicas would have 7 and 6, and part two neighbours.
@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("layer_class", [L.MixUp, pytest.param(L.CutMix, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("count", "numbers"), [pytest.param(32, (1, 2, 8), marks=pytest.mark.exhaustive), (29, (1, 8))]
)
def test_mixing_is_that_of_one_device_where_replicas_have_even_numbers(layer_class, count, numbers):
    images, classes = plain.digits(count)
    x, y = [images, plain.one_hot(classes)], np.zeros((count, 10), "float32")

    def build(model_class):
        return mixed(layer_class, model_class)

    expected = trained(build, keras.Model, 1, x, y)
    for replicas in numbers:
        assert_same(trained(build, kte.TPUModel, replicas, x, y), expected)


@pytest.mark.parametrize("layer_class", [L.MixUp, pytest.param(L.CutMix, marks=pytest.mark.exhaustive)])
def test_rows_that_fill_a_batch_up_are_mixed_with_no_example(layer_class):
    import sources

    images, classes = plain.digits(29)
    x, y = (images, plain.one_hot(classes)), np.zeros((29, 10), "float32")
    trainings = []
    for padded in (False, True):
        keras.utils.set_random_seed(2)
        model = mixed(layer_class, kte.TPUModel)
        batches = sources.Batches(sources.cut((x, y), 16))
        batches = kte.data.pad_batches(batches, 16) if padded else batches
        trainings.append((model, model.fit(batches, epochs=2, shuffle=False, verbose=0).history))
    assert_same(trainings[1], trainings[0])


@pytest.mark.exhaustive
def test_a_model_that_was_saved_goes_on_with_the_next_numbers(tmp_path):
    images, classes = plain.digits(32)
    model, _ = trained(classifier, kte.TPUModel, 8, images, classes)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert calls_of(again) == [4, 4, 4]
    crops = numpy_of(again.get_layer("crop")(images, training=True))
    np.testing.assert_array_equal(crops, plain.flip_crop(again.get_layer("crop"), images, 4))
    np.testing.assert_allclose(
        again.predict(images, verbose=0), model.predict(images, verbose=0), rtol=1e-5, atol=1e-5
    )
    assert calls_of(model) == [4, 4, 4]  # neither prediction nor evaluation draws
    model.evaluate(images, classes, verbose=0)
    assert calls_of(model) == [4, 4, 4]


@pytest.mark.exhaustive
def test_a_model_learns():
    images, classes = plain.digits(400)
    with kte.strategy_scope(require="cpu", replicas=2):
        model = classifier(kte.TPUModel, rate=0.5)
        history = model.fit(images, classes, batch_size=32, epochs=5, verbose=0).history
    assert history["loss"][-1] < 0.95 * history["loss"][0]
