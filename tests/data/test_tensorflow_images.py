"""`kte.data.images`."""

import gc
import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from sample_images import CLASSES, in_time, photographs, plain_pixels, rows, write_crops

PER_CLASS, BATCH, SIZE = 20, 7, (32, 24)
pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]
AssertionFailed = tf.errors.InvalidArgumentError


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    write_crops(folder, PER_CLASS)
    return folder


@pytest.fixture
def folder(tmp_path):
    write_crops(tmp_path / "photos", PER_CLASS)
    return tmp_path / "photos"


def cut(path):
    path.write_bytes(path.read_bytes()[:-400])


def emptied(path):
    path.write_bytes(b"")


def as_text(path):
    path.write_text("this is no image")


def as_folder(path):
    path.unlink()
    path.mkdir()


def removed(path):
    path.unlink()


FAULTS = {
    cut: "begins as a JPEG does and is damaged or cut off",
    emptied: "what came is empty, 0 bytes",
    as_text: "what came has 16 bytes and begins with the bytes 116 104 105 115",
    as_folder: "cannot be read: it must be a file that is there and that this process may read",
    removed: "cannot be read: it must be a file that is there and that this process may read",
}


def images(source, **options):
    return kte.data.images(source, **{"batch_size": BATCH, "size": SIZE, **options})


@pytest.mark.parametrize("crop", ["center", None])
def test_pixels_labels_and_order_are_those_of_the_plain_way(clean, crop):
    dataset = images(clean, crop=crop)
    assert [(spec.shape.as_list(), spec.dtype) for spec in dataset.element_spec] == [
        ([None, *SIZE, 3], tf.uint8),
        ([None], tf.int32),
    ]
    assert dataset.class_names == list(CLASSES)
    batches = list(dataset)
    assert len(dataset) == len(batches) == 6
    pixels, labels = rows(batches)
    paths = sorted(clean.glob("*/*.jpg"))
    assert labels.tolist() == [CLASSES.index(path.parent.name) for path in paths]
    expected = np.stack([plain_pixels(path.read_bytes(), SIZE, crop) for path in paths])
    if crop is None:
        np.testing.assert_array_equal(pixels, expected)
    else:
        # libjpeg smooths colours across the edge of a window that it decodes alone: a few values are off by a little.
        difference = np.abs(pixels.astype(int) - expected)
        assert difference.mean() < 0.05
        assert difference.max() <= 12


def test_other_formats_of_the_size_come_as_they_are(tmp_path):
    pixels = photographs()[0][:32, :24]
    (tmp_path / "a.png").write_bytes(tf.io.encode_png(pixels).numpy())
    gray = tf.io.encode_png(pixels[..., :1]).numpy()
    (tmp_path / "b.png").write_bytes(gray)
    (batch,) = images(tmp_path, labels=None)
    np.testing.assert_array_equal(batch[0], pixels)
    np.testing.assert_array_equal(batch[1], np.repeat(pixels[..., :1], 3, -1))


def test_patterns_lists_and_labels(clean):
    paths = sorted(map(str, clean.glob("flower/*.jpg")))
    expected, _ = rows(images(paths, labels=range(PER_CLASS)))
    pixels, found = rows(images(clean / "flower" / "*.jpg", labels=[*range(PER_CLASS)]))
    np.testing.assert_array_equal(pixels, expected)
    assert found.tolist() == [*range(PER_CLASS)]
    assert rows(images(str(clean / "*" / "00*.jpg")))[1].tolist() == [0] * 10 + [1] * 10


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_sequence_of_orders(clean):
    def epochs(**options):
        dataset = images(clean, shuffle=True, crop="random", **options)
        return [rows(dataset) for _ in range(2)]

    first, again = epochs(), epochs()
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one[0], two[0])
        assert one[1].tolist() == two[1].tolist()
    assert first[0][1].tolist() != first[1][1].tolist()
    assert sorted(first[1][1]) == [0] * PER_CLASS + [1] * PER_CLASS


def test_random_windows_are_new_in_each_epoch(clean):
    dataset = images(clean, crop="random")
    one, two = (rows(dataset)[0] for _ in range(2))
    assert (one != two).any(axis=(1, 2, 3)).all()


def test_hosts_have_parts_that_are_everything_together(clean):
    paths = sorted(map(str, clean.glob("*/*.jpg")))
    parts = [images(paths, labels=range(len(paths)), shard=(index, 2)) for index in range(2)]
    found = [rows(part)[1].tolist() for part in parts]
    assert sorted(found[0] + found[1]) == [*range(len(paths))]
    policies = tf.data.experimental.AutoShardPolicy
    assert {part.options().experimental_distribute.auto_shard_policy for part in parts} == {policies.OFF}
    assert images(clean).options().experimental_distribute.auto_shard_policy == policies.DATA


def test_whole_batches_have_static_shapes(clean):
    dataset = images(clean, drop_remainder=True)
    assert dataset.element_spec[0].shape == (BATCH, *SIZE, 3)
    assert len(dataset) == len(list(dataset)) == 5


@pytest.mark.parametrize(
    "fault",
    [cut, *(pytest.param(fault, marks=pytest.mark.exhaustive) for fault in (emptied, as_text, as_folder))],
    ids=lambda fault: fault.__name__,
)
def test_a_bad_file_is_raised_by_its_name(folder, fault):
    # The last one, behind which no other shows that it is gone.
    path = folder / "flower" / f"{PER_CLASS - 1:03d}.jpg"
    dataset = images(folder)
    fault(path)
    with pytest.raises(AssertionFailed) as raised:
        in_time(dataset)
    assert f"keras_tpu_ext.data.images: {path} " in str(raised.value)
    assert FAULTS[fault] in str(raised.value)
    assert "on_error=" in str(raised.value)


def test_bad_files_are_skipped_and_counted(folder, capfd):
    dataset = images(folder, on_error="skip")
    bad = [folder / "china" / f"{number:03d}.jpg" for number in range(4)] + [folder / "flower" / "019.jpg"]
    for fault, path in zip(FAULTS, bad, strict=True):
        fault(path)
    left = [CLASSES.index(path.parent.name) for path in sorted(folder.glob("*/*.jpg")) if path not in bad]
    for _ in range(2):
        batches = in_time(dataset)
        assert [len(y) for _, y in batches] == [BATCH] * 5
        assert rows(batches)[1].tolist() == left
        report = kte.data.skipped(dataset)
        assert (report.failed, report.came, report.ok, report.at_least) == (5, 35, False, False)
        assert report.places == tuple(sorted(map(str, bad)))
    assert str(report).startswith("The last pass left out 5 records and gave 35: ")
    line = "keras_tpu_ext.data.images: this pass gave 35 records and left out 5 that cannot be read, such as"
    assert capfd.readouterr().err.count(line) == 2
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.exhaustive
def test_more_bad_files_in_a_row_than_have_names_are_counted(tmp_path):
    write_crops(tmp_path, 60)
    for path in (tmp_path / "china").glob("*.jpg"):
        as_text(path)
    dataset = images(tmp_path, on_error="skip")
    assert rows(in_time(dataset))[1].tolist() == [1] * 60
    assert kte.data.skipped(dataset).failed == 60


@pytest.mark.parametrize("on_error", [pytest.param("raise", marks=pytest.mark.exhaustive), "skip"])
def test_nothing_but_bad_files_ends_in_an_error(tmp_path, on_error):
    write_crops(tmp_path, 20)
    for path in tmp_path.glob("*/*.jpg"):
        as_text(path)
    needed = "needs at least 1 records for a batch; it found 0 that can be read and 40 that cannot"
    with pytest.raises(AssertionFailed, match=needed if on_error == "skip" else "china/0...jpg cannot be decoded"):
        in_time(images(tmp_path, on_error=on_error, repeat=True))


def test_it_repeats(clean):
    dataset = images(clean, repeat=True, shuffle=True)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    labels = np.concatenate([y for _, y in dataset.take(18)])
    assert [sorted(labels[first : first + 40]) for first in (0, 40, 80)] == [[0] * 20 + [1] * 20] * 3


def model_of(model_class):
    inputs = keras.Input((*SIZE, 3))
    hidden = keras.layers.Conv2D(4, 3, strides=4, activation="relu")(keras.layers.Rescaling(1 / 255)(inputs))
    model = model_class(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(hidden)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    start = np.random.default_rng(1)
    model.set_weights([start.normal(0, 0.1, value.shape).astype("float32") for value in model.get_weights()])
    return model


# Keras says so at the end of any data whose length it does not know.
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Your input ran out of data; interrupting training:UserWarning")
def test_replicas_train_on_it_as_one_device_does_on_arrays(folder, scope8):
    as_text(folder / "china" / "003.jpg")
    dataset = images(folder, on_error="skip", batch_size=8)
    plain = model_of(keras.Model)
    expected = plain.fit(*rows(dataset), batch_size=8, shuffle=False, epochs=2, verbose=0).history
    with scope8:
        model = model_of(kte.TPUModel)
    history = model.fit(dataset, shuffle=False, epochs=2, verbose=0).history
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4)  # float32 adds in another order on replicas
    assert (kte.data.skipped(dataset).failed, kte.data.skipped(dataset).came) == (1, 39)


@pytest.mark.exhaustive
def test_many_passes_do_not_grow(clean):
    dataset = images(clean)

    def passes(number):
        for _ in range(number):
            for _ in dataset:
                pass
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = passes(3)
    # What one pass holds, with its threads, is some 3 MB: 8 passes that kept it would be far above.
    assert passes(8) - before < 15_000


ARGUMENTS = [
    ({"batch_size": 0}, "images: `batch_size` must be an integer of at least 1; got 0. Write batch_size=128."),
    ({"size": (1, 2, 3)}, r"images: `size` must be \(height, width\) in pixels; got \(1, 2, 3\)"),
    ({"crop": "middle"}, '`crop` must be "center", "random" or None; got \'middle\'. Write crop="center"'),
    ({"on_error": "ignore"}, '`on_error` must be "raise" or "skip"; got \'ignore\''),
    ({"shard": (2, 2)}, r"`shard` must be \(index, count\), with index from 0 to count - 1; got \(2, 2\)"),
    ({"seed": -1}, "`seed` must be an integer of at least 0; got -1"),
    ({"labels": [1, 2]}, "one label for each file; there are 40 files, .* and 2 labels. Write labels="),
    ({"labels": "files"}, "labels to be 'folder', None or one whole number for each file; got 'files'"),
    ({"shard": (0, 41)}, "needs at least 1 files for each of 41 hosts; there are 40. Write shard=None"),
    ({"batch_size": 41, "drop_remainder": True}, "at least 41 files .* Write drop_remainder=False, a smaller batch"),
]


@pytest.mark.parametrize(("options", "text"), ARGUMENTS)
def test_arguments_that_cannot_be(clean, options, text):
    with pytest.raises(kte.errors.ArgumentError, match=text):
        images(clean, **options)


def test_sources_that_have_nothing(tmp_path):
    text = rf"looked in the folder '{tmp_path}' for images \(.jpg, .*\) in class folders, such as .*cat/1.jpg.*none"
    with pytest.raises(kte.errors.ArgumentError, match=text):
        images(tmp_path)
    with pytest.raises(
        kte.errors.ArgumentError, match=r"found nothing that matches the pattern '.*/\*.jpg', seen from"
    ):
        images(tmp_path / "*.jpg")
    with pytest.raises(kte.errors.ArgumentError, match=r"nothing that matches the folder or file '.*/no'"):
        images(tmp_path / "no")
    with pytest.raises(kte.errors.ArgumentError, match=r"a folder, a pattern or a list of paths; got \[\]"):
        images([])
    (tmp_path / "1.jpg").write_bytes(b"")
    with pytest.raises(kte.errors.ArgumentError, match="There are 1 in the folder itself: write labels=None"):
        images(tmp_path)


def test_skipped_needs_the_dataset_itself(clean):
    assert str(kte.data.skipped(images(clean))) == "No pass over the data has ended, and nothing was left out so far."
    with pytest.raises(kte.errors.ArgumentError, match="needs the dataset that images or tfrecords returned; got"):
        kte.data.skipped(images(clean).take(1))
