"""`kte.data.images`."""

import gc
import resource
import struct
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_tpu_ext as kte
from keras_tpu_ext.data import _decoding
from sample_images import CLASSES, claimed_png, gif, in_time, jpeg, photographs, plain_pixels, rows, write_crops

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


def bmp(height, width):
    """Return a BMP whose header has this height and width, and one pixel."""
    return b"BM" + struct.pack("<IIIIiiHH", 58, 0, 54, 40, width, height, 1, 24) + bytes(28)


CLAIMS = {
    "png": (claimed_png(60_000), "60000 x 60000", 3_600_000_000),
    "wide png": (claimed_png(2, 10**8), "2 x 100000000", 2 * 10**8),
    "bmp": (bmp(20_000, 30_000), "20000 x 30000", 6 * 10**8),
    "bmp from its top": (bmp(-20_000, 30_000), "20000 x 30000", 6 * 10**8),
    "screen of a gif": (gif((1, 1), screen=(20_000, 30_000)), "20000 x 30000", 6 * 10**8),
    "frame of a gif": (gif((20_000, 30_000)), "20000 x 30000", 6 * 10**8),
    "second frame of a gif": (gif((1, 1), (20_000, 30_000)), "20000 x 30000", 6 * 10**8 + 1),
    "all frames of a gif": (gif(*[(9_000, 9_000)] * 2), "9000 x 9000", 2 * 9_000**2),
    "jpeg": (
        jpeg(np.zeros((1, 1, 3), "uint8")).replace(b"\0\x11\x08\0\1\0\1", b"\0\x11\x08\xff\0\xff\0"),
        "65280 x 65280",
        65280**2,
    ),
}


def test_what_claims_too_many_pixels_is_raised_by_its_size(tmp_path):
    path = tmp_path / "1.png"
    path.write_bytes(CLAIMS["png"][0])
    with pytest.raises(AssertionFailed) as raised:
        in_time(images([path], labels=None))
    assert f"keras_tpu_ext.data.images: {path} is too large to be decoded." in str(raised.value)
    for content, shape, pixels in CLAIMS.values():
        text = _decoding.describe_fault(content, 10**8).numpy().decode()
        assert text == (
            f"is too large to be decoded. It must have at most 100000000 pixels; what came has {shape} (height x "
            f"width), {pixels} in all. Write max_pixels={pixels} to decode it."
        )


def test_what_claims_too_many_pixels_is_skipped_and_counted(folder):
    for name, (content, *_) in CLAIMS.items():
        (folder / "china" / f"{name}.png").write_bytes(content)
    dataset = images(folder, on_error="skip")
    assert len(rows(in_time(dataset))[1]) == 2 * PER_CLASS
    assert kte.data.skipped(dataset).failed == len(CLAIMS)


@pytest.mark.exhaustive
def test_what_is_too_large_is_not_decoded(tmp_path):
    """A process that decodes it takes 1.2 GB more."""
    tall = np.zeros((20_000, 20_000, 1), "uint8")
    (tmp_path / "large.png").write_bytes(tf.io.encode_png(tall).numpy())
    (tmp_path / "small.png").write_bytes(tf.io.encode_png(tall[:32, :24]).numpy())
    program = f"""
import pathlib
import keras_tpu_ext as kte

def peak(max_pixels, number):
    batches = kte.data.images({str(tmp_path)!r}, labels=None, batch_size=1, on_error="skip", max_pixels=max_pixels)
    assert len(list(batches)) == number
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) // 1024

start, bounded, whole = peak(1000, 1), peak(100_000_000, 1), peak(400_000_000, 2)
assert bounded - start < 200, (start, bounded)
assert whole - bounded > 900, (bounded, whole)  # so it would have been seen
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.parametrize(
    "crop", ["center", *(pytest.param(crop, marks=pytest.mark.exhaustive) for crop in ("random", None))]
)
def test_the_bound_is_that_of_the_caller(tmp_path, crop):
    pixels = photographs()[0][:40, :50]
    one, two = Image.fromarray(pixels), Image.fromarray(255 - pixels)
    one.save(tmp_path / "0.gif", save_all=True, append_images=[two])
    for number, kind in enumerate(("bmp", "jpg", "png"), 1):
        one.save(tmp_path / f"{number}.{kind}")
    Image.fromarray(pixels[:39]).save(tmp_path / "4.png")
    for most, left in {4000: [0, 1, 2, 3, 4], 3999: [1, 2, 3, 4], 1999: [4]}.items():
        dataset = images(tmp_path / "*", labels=range(5), crop=crop, max_pixels=most, on_error="skip")
        assert rows(in_time(dataset))[1].tolist() == left


@pytest.mark.parametrize("cut_off", [False, True])
def test_the_frames_of_a_gif_are_counted_through_all_its_blocks(tmp_path, cut_off):
    rng = np.random.default_rng(0)
    frames = [Image.fromarray(rng.integers(0, 256, (90, 70, 3), "uint8")) for _ in range(5)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    content = (tmp_path / "a.gif").read_bytes()
    content = content[: len(content) * 7 // 10] if cut_off else content
    counted = 4 if cut_off else 5
    assert _decoding.image_shape(content).numpy().tolist() == [90, 70, counted * 90 * 70]


def test_a_kind_that_is_none_of_the_four_is_a_fault(tmp_path):
    webp = b"RIFF\x1a\0\0\0WEBPVP8L\r\0\0\0/\0\0\0\x10\x07\x10\x11\x11\x88\x88\xfe\x07\0"
    contents = [webp, b"BM", b"GIF8", tf.io.encode_png(np.zeros((32, 24, 3), "uint8")).numpy()]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.png").write_bytes(content)
    dataset = images(tmp_path, labels=None, on_error="skip")
    assert [len(batch) for batch in in_time(dataset)] == [1]
    assert kte.data.skipped(dataset).failed == 3
    text = _decoding.describe_fault(webp, 10**8).numpy().decode()
    assert text.startswith(
        "cannot be decoded. It must be a whole JPEG, PNG, BMP or GIF image; what came has 34 bytes"
    )


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
    ({"max_pixels": 0}, "images: `max_pixels` must be an integer of at least 1; got 0. Write max_pixels=100000000."),
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
