"""`kte.data.tfrecords`."""

import json
import os
import struct

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from sample_images import claimed_png, in_time, jpeg, photographs, plain_pixels, rows, write_crops

FILES, EACH, BATCH, SIZE = 3, 20, 7, (24, 24)
NUMBER = FILES * EACH
pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]
AssertionFailed = tf.errors.InvalidArgumentError


def example(**values):
    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value).tolist()))

    features = {name: feature(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def crop_of(number):
    return jpeg(photographs()[0][number : number + 24, :24])


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as file:
        for record in records:
            file.write(record)


@pytest.fixture
def folder(tmp_path):
    for file in range(FILES):
        numbers = range(file * EACH, (file + 1) * EACH)
        write(tmp_path / f"{file}.tfrecord", [example(image=crop_of(n), label=n) for n in numbers])
    return tmp_path


def tfrecords(source, **options):
    return kte.data.tfrecords(source, **{"batch_size": BATCH, "size": SIZE, **options})


def order(files, each, block=16):
    """Return what comes first, of files that are read in turns, `block` records at a time."""
    found = []
    for first in range(0, each, block):
        for file in range(files):
            found += range(file * each + first, file * each + min(first + block, each))
    return found


def test_records_come_whole_and_in_order(folder):
    pixels, labels = rows(tfrecords(folder))
    assert labels.tolist() == order(FILES, EACH)
    np.testing.assert_array_equal(pixels, [plain_pixels(crop_of(number), SIZE) for number in labels])
    (first, *_) = tfrecords(folder, label=None)
    np.testing.assert_array_equal(first, pixels[:BATCH])


def test_the_same_seed_gives_the_same_sequence_of_orders(folder):
    def epochs():
        dataset = tfrecords(folder, shuffle=True, crop="random")
        return [rows(dataset) for _ in range(2)]

    first, again = epochs(), epochs()
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one[0], two[0])
        assert one[1].tolist() == two[1].tolist()
        assert sorted(one[1]) == [*range(NUMBER)]
    assert first[0][1].tolist() != first[1][1].tolist()


def test_hosts_have_parts_that_are_everything_together(folder):
    parts = [rows(tfrecords(folder, shard=(index, 2)))[1].tolist() for index in range(2)]
    assert sorted(parts[0] + parts[1]) == [*range(NUMBER)]
    with pytest.raises(kte.errors.ArgumentError, match=r"one file for each of 4 hosts; there are 3, .*--shards 4"):
        tfrecords(folder, shard=(0, 4))


def records_in(path):
    """Return where each record of a file begins, and its end."""
    content, places = path.read_bytes(), [0]
    while places[-1] < len(content):
        places.append(places[-1] + struct.unpack("<Q", content[places[-1] :][:8])[0] + 16)
    return places


def cut_at(number, offset):
    def damage(path):
        path.write_bytes(path.read_bytes()[: records_in(path)[number] + offset])

    return damage


def flipped_at(number, offset):
    def damage(path):
        content = bytearray(path.read_bytes())
        content[records_in(path)[number] + offset] ^= 0xFF
        path.write_bytes(bytes(content))

    return damage


def as_text(path):
    path.write_text("this is no TFRecord")


def as_folder(path):
    path.unlink()
    path.mkdir()


# What is done to a file, and how many of its records are left.
DAMAGES = {
    "cut in a record": (cut_at(5, 300), 5),
    "cut in the length of a record": (cut_at(5, 4), 5),
    "cut in the last record": (cut_at(EACH - 1, 30), EACH - 1),
    "a byte of a record": (flipped_at(5, 300), 5),
    "a byte of a length": (flipped_at(17, 2), 17),
    "a text": (as_text, 0),
    "a folder": (as_folder, 0),
    "gone after it was listed": (os.unlink, 0),
}


def damaged(tmp_path, names, **options):
    """Return a dataset of files of which each has one of the damages, and the labels and places to expect."""
    labels, places = [], []
    for file, name in enumerate(names):
        path = tmp_path / f"{file}.tfrecord"
        write(path, [example(image=crop_of(n), label=file * EACH + n) for n in range(EACH)])
        labels += range(file * EACH, file * EACH + DAMAGES[name][1])
        places.append(f"{path}, from record {DAMAGES[name][1]} on")
    write(tmp_path / "whole.tfrecord", [example(image=crop_of(0), label=1000)])
    dataset = tfrecords(tmp_path, **options)
    for file, name in enumerate(names):
        DAMAGES[name][0](tmp_path / f"{file}.tfrecord")
    return dataset, [*labels, 1000], tuple(places)


@pytest.mark.parametrize(
    "name",
    [
        "cut in a record",
        pytest.param("cut in the length of a record", marks=pytest.mark.exhaustive),
        pytest.param("gone after it was listed", marks=pytest.mark.exhaustive),
    ],
)
def test_a_damaged_file_is_raised(tmp_path, name):
    dataset, _, (place,) = damaged(tmp_path, [name])
    with pytest.raises(AssertionFailed) as raised:
        in_time(dataset)
    text = str(raised.value)
    assert f"keras_tpu_ext.data.tfrecords: {place} cannot be read: the file is damaged or cut off" in text
    assert f"{DAMAGES[name][1]} records came; how many are lost is not known without a manifest." in text


def test_damaged_files_are_skipped_and_counted(tmp_path):
    dataset, labels, places = damaged(tmp_path, DAMAGES, on_error="skip")
    assert sorted(rows(in_time(dataset))[1]) == labels
    report = kte.data.skipped(dataset)
    assert (report.places, report.failed, report.at_least) == (places, len(DAMAGES), True)
    assert "at least 8 records" in str(report)


def test_the_manifest_knows_how_many_are_lost(tmp_path):
    write_crops(tmp_path / "photos", 10)
    kte.data.write_tfrecords(tmp_path / "photos", tmp_path / "out", shards=2, progress=False)
    path = sorted((tmp_path / "out").glob("*.tfrecord"))[1]
    dataset = tfrecords(tmp_path / "out")
    assert len(dataset) == len(list(dataset)) == 3
    whole = path.stat().st_size
    cut_at(4, 0)(path)  # where TensorFlow and the bytes see no damage
    with pytest.raises(
        AssertionFailed, match=r"from record 4 on cannot.* The manifest needs 10 records, and 4 came\."
    ):
        in_time(dataset)
    text = f"'{path}' to be the file that .* it has {path.stat().st_size} bytes and not {whole}: it was cut off, cha"
    for source in (tmp_path / "out", [path], tmp_path / "out" / "*.tfrecord"):
        with pytest.raises(kte.errors.ArgumentError, match=text):
            tfrecords(source)
    dataset = tfrecords(tmp_path / "out", on_error="skip")
    in_time(dataset)
    report = kte.data.skipped(dataset)
    assert (report.failed, report.came, report.at_least) == (6, 14, False)
    path.unlink()
    with pytest.raises(
        kte.errors.ArgumentError, match=f"all 2 shards that .*; 1 are not there, such as '{path.name}'"
    ):
        tfrecords(tmp_path / "out")


@pytest.fixture
def written(tmp_path):
    """A set of two shards with as many records each."""
    write_crops(tmp_path / "photos", 6)
    kte.data.write_tfrecords(tmp_path / "photos", tmp_path / "out", shards=2, progress=False)
    return tmp_path / "out"


def shards_of(folder):
    return sorted(folder.glob("*.tfrecord"))


def swapped(folder):
    one, two = shards_of(folder)
    one.rename(folder / "x")
    two.rename(one)
    (folder / "x").rename(two)


def with_changed_start(folder):
    flipped_at(0, 300)(shards_of(folder)[0])


def with_an_extra(folder):
    (folder / "extra.tfrecord").write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda folder: shards_of(folder)[0].unlink(),
            r"needs all 2 shards that .*; 1 are not there, such as 'data-0",
        ),
        (
            with_an_extra,
            r"needs the shards to be those that .*manifest.json' names; 'extra.tfrecord' is not one .*Move",
        ),
        (swapped, r"needs '.*data-00000-of-00002.tfrecord' to be the file .* it has \d+ bytes and not \d+"),
        (with_changed_start, r"needs '.*data-00000-of-00002.tfrecord' to be the file .* it begins with other bytes"),
    ],
)
def test_shards_that_are_not_those_of_the_manifest_are_told(written, change, text):
    change(written)
    with pytest.raises(kte.errors.ArgumentError, match=f"^tfrecords {text}"):
        tfrecords(written)
    with pytest.raises(
        kte.errors.ArgumentError, match=f"^write_tfrecords {text.replace('to be the file .* it', '.*')}"
    ):
        kte.data.write_tfrecords(written.parent / "photos", written, shards=2, progress=False)


def test_a_pattern_may_leave_out_shards_and_has_no_others(written):
    one, _ = shards_of(written)
    assert len(tfrecords([one])) == 1
    with_an_extra(written)
    with pytest.raises(kte.errors.ArgumentError, match=r"'extra.tfrecord' is not one of them"):
        tfrecords(written / "*.tfrecord")
    write(written / "extra.tfrecord", [example(image=crop_of(0), label=7)])
    assert rows(tfrecords(written / "extra.tfrecord"))[1].tolist() == [7]  # the manifest is not about it


def test_a_shard_of_another_set_is_told_of_while_skipping(written):
    one, two = shards_of(written)
    one.write_bytes(two.read_bytes())
    dataset = tfrecords(written, on_error="skip")
    in_time(dataset)
    report = kte.data.skipped(dataset)
    assert report.places == (f"{one}, from record 6 on",)
    assert not report.ok


def with_shard(manifest, change):
    """Change what a manifest says of its first shard."""
    name = min(manifest["shards"])
    return manifest | {"shards": {**manifest["shards"], name: {**manifest["shards"][name], **change}}}


MANIFESTS = [
    (lambda _: '{"format": 2,', r"the text must be JSON \(.*\); got b'{\"format\": 2,'"),
    (lambda _: b"\xff\xfe", r"the text must be JSON"),
    (lambda _: '{"format": 2, "format": 1}', r"the text must be JSON \(a key stands there twice\)"),
    (
        lambda _: {"format": 1},
        r"it must be an object with the key 'records'; got an object with the keys \['format'\]",
    ),
    (lambda _: {"shards": {}}, r"format must be an integer from 1 to 2; got None"),
    (lambda found: found | {"format": 3}, r"format must be an integer from 1 to 2; got 3"),
    (lambda found: found | {"format": True}, r"format must be an integer from 1 to 2; got True"),
    (lambda found: found | {"more": 1}, r"it must be an object with no other keys than .*; got 'more'"),
    (lambda found: found | {"shards": {}}, r"records must be the sum of those of the shards, 0; got 12"),
    (lambda found: found | {"records": 13}, r"records must be the sum of those of the shards, 12; got 13"),
    (lambda found: found | {"class_names": "cat"}, r"class_names must be a list; got 'cat'"),
    (lambda found: with_shard(found, {"records": "6"}), r"shards\['data-0.*'\].records must be an int.* 0; got '6'"),
    (lambda found: with_shard(found, {"records": -6}), r"shards.*.records must be an integer of at least 0; got -6"),
    (
        lambda found: with_shard(found, {"records": 2**70}),
        r"shards.*.records must be an int.* 0; got 11805916207",
    ),
    (lambda found: found | {"shards": {"../x": {}}}, r"a key of shards must be the plain name of a file; got '../x'"),
    (lambda found: found | {"shards": {"": {}}}, r"a key of shards must be the plain name of a file; got ''"),
    (lambda found: found | {"shards": {"..": {}}}, r"a key of shards must be the plain name of a file; got '..'"),
    (lambda found: found | {"shards": {"a\\b": {}}}, r"a key of shards must be the plain name of a file; got 'a"),
]


@pytest.mark.parametrize(("change", "text"), MANIFESTS)
def test_a_manifest_that_is_none_is_told(written, change, text):
    path = written / "manifest.json"
    content = change(json.loads(path.read_text()))
    content = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    shards_of(written)[0].unlink()  # nothing may be read without a word
    what = (
        f"needs '{path}' to be the manifest that write_tfrecords wrote; {text}.*Copy the folder again, or write the"
    )
    with pytest.raises(kte.errors.ArgumentError, match=f"^tfrecords {what}"):
        tfrecords(written)
    with pytest.raises(kte.errors.ArgumentError, match=f"^tfrecords {what}"):
        tfrecords(written / "*.tfrecord")
    with pytest.raises(kte.errors.ArgumentError, match=f"^write_tfrecords {what}"):
        kte.data.write_tfrecords(written.parent / "photos", written, shards=2, progress=False)


def test_a_manifest_of_format_1_is_read(written):
    path = written / "manifest.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"format": 1, "shards": dict.fromkeys(found["shards"], 6)}))
    assert len(tfrecords(written)) == 2
    cut_at(4, 0)(shards_of(written)[1])
    with pytest.raises(AssertionFailed, match=r"The manifest needs 6 records, and 4 came"):
        in_time(tfrecords(written))


@pytest.mark.parametrize(
    "content",
    [
        '{"name": "an app", "icons": []}',
        *(pytest.param(other, marks=pytest.mark.exhaustive) for other in ("[]", "3")),
    ],
)
def test_a_manifest_of_another_program_is_ignored(folder, content):
    (folder / "manifest.json").write_text(content)
    assert rows(tfrecords(folder))[1].tolist() == order(FILES, EACH)


def test_an_image_that_is_too_large_is_raised_or_skipped(folder):
    write(folder / "3.tfrecord", [example(image=crop_of(0), label=90), example(image=claimed_png(60_000), label=91)])
    with pytest.raises(AssertionFailed) as raised:
        in_time(tfrecords(folder))
    text = str(raised.value).replace("\\", "")
    assert (
        f"{folder}/3.tfrecord, record 1 is too large to be decoded. It must have at most 100000000 pixels; what"
        in text
    )
    assert "came has 60000 x 60000 (height x width), 3600000000 in all. Write max_pixels=3600000000" in text
    dataset = tfrecords(folder, on_error="skip")
    assert sorted(rows(in_time(dataset))[1]) == [*range(NUMBER), 90]
    assert kte.data.skipped(dataset).places == (f"{folder}/3.tfrecord, record 1",)


@pytest.mark.exhaustive  # as test_tensorflow_images.py does, by the same function
def test_the_bound_is_that_of_the_caller(folder):
    height, width, _ = tf.io.decode_jpeg(crop_of(0)).shape
    assert len(rows(tfrecords(folder, max_pixels=height * width))[1]) == NUMBER
    with pytest.raises(
        AssertionFailed, match=f"at most {height * width - 1} pixels; .* Write max_pixels={height * width}"
    ):
        in_time(tfrecords(folder, max_pixels=height * width - 1))


BAD = {
    "no example": b"no tf.train.Example",
    "no image": example(label=1),
    "a damaged image": example(image=b"\xff\xd8\xff\xe0 and no more", label=1),
}


def test_a_bad_record_is_raised(folder):
    write(folder / "3.tfrecord", [example(image=crop_of(0), label=90), BAD["a damaged image"]])
    with pytest.raises(AssertionFailed) as raised:
        in_time(tfrecords(folder))
    text = str(raised.value).replace("\\", "")
    needed = "It must be a tf.train.Example with 'image' (the bytes of a JPEG, PNG, BMP or GIF image)"
    assert f"{folder}/3.tfrecord, record 1 cannot be used. {needed}" in text
    assert f"what came is a record of {len(BAD['a damaged image'])} bytes" in text


def test_bad_records_are_skipped_and_counted(folder):
    write(folder / "3.tfrecord", [example(image=crop_of(0), label=90), *BAD.values()])
    dataset = tfrecords(folder, on_error="skip")
    assert sorted(rows(in_time(dataset))[1]) == [*range(NUMBER), 90]
    assert kte.data.skipped(dataset).places == tuple(f"{folder}/3.tfrecord, record {n}" for n in (1, 2, 3))
    assert not kte.data.skipped(dataset).at_least


@pytest.mark.exhaustive
def test_features_and_formats_of_ones_own(tmp_path):
    write(tmp_path / "a.tfrecord", [example(x=[[n, 1], [2, 3]], y=n) for n in range(10)] + [example(x=[1, 2], y=0)])
    x = tf.io.FixedLenFeature([2, 2], tf.int64)
    options = {"batch_size": 5, "on_error": "skip"}
    dataset = kte.data.tfrecords(tmp_path, features={"x": x}, **options)
    batches = in_time(dataset)
    assert [batch["x"][:, 0, 0].numpy().tolist() for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert kte.data.skipped(dataset).places == (f"{tmp_path}/a.tfrecord, record 10",)
    with pytest.raises(
        AssertionFailed, match=r"record 10 .*'x.*' \(int64, shape \(2, 2\)\); what came is a record of"
    ):
        in_time(kte.data.tfrecords(tmp_path, features={"x": x}, batch_size=5))

    def parse(record):
        found = tf.io.parse_single_example(record, {"x": tf.io.VarLenFeature(tf.int64)})
        return tf.ensure_shape(tf.sparse.to_dense(found["x"]), [4])

    (first, _) = in_time(kte.data.tfrecords(tmp_path, parse=parse, **options))
    assert first.shape == (5, 4)


@pytest.mark.exhaustive
def test_compressed_files(tmp_path):
    records = [example(image=crop_of(n), label=n) for n in range(5)]
    path = tmp_path / "a.tfrecord.gz"
    write(path, records, "GZIP")
    assert rows(tfrecords(tmp_path, compression="GZIP"))[1].tolist() == [*range(5)]
    whole = path.read_bytes()
    for left in (whole[:-400], b""):
        path.write_bytes(left)
        with pytest.raises(AssertionFailed, match=r"a.tfrecord.gz, from record . on cannot be read"):
            in_time(tfrecords(tmp_path, compression="GZIP"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("content", [[], [b"junk"] * 40])
def test_nothing_but_bad_records_ends_in_an_error(tmp_path, content):
    write(tmp_path / "a.tfrecord", content)
    text = f"needs at least 1 records for a batch; it found 0 that can be read and {len(content)} that cannot"
    with pytest.raises(AssertionFailed, match=text):
        in_time(tfrecords(tmp_path, on_error="skip", repeat=True))


ARGUMENTS = [
    (
        {"image": "pixels"},
        r"first one of '.*0.tfrecord' has no 'pixels'. It has 'image' \(bytes_list\), 'label' \(int",
    ),
    ({"features": {}, "parse": len}, "both features and parse, .* Write one of the two"),
    ({"features": {"x": tf.io.VarLenFeature(tf.int64)}}, "features to give dense tensors whose shapes are all known"),
    ({"parse": lambda record: tf.io.decode_raw(record, tf.uint8)}, r"parse to give dense .*Write tf.ensure_shape"),
    ({"compression": "zip"}, '`compression` must be None, "GZIP" or "ZLIB"; got \'zip\''),
    ({"max_pixels": 0}, "`max_pixels` must be an integer of at least 1; got 0. Write max_pixels=100000000"),
    ({"shuffle": -1}, "`shuffle` must be an integer of at least 0; got -1"),
]


@pytest.mark.parametrize(("options", "text"), ARGUMENTS)
def test_arguments_that_cannot_be(folder, options, text):
    with pytest.raises(kte.errors.ArgumentError, match=text):
        tfrecords(folder, **options)


def test_sources_that_have_nothing(tmp_path):
    with pytest.raises(
        kte.errors.ArgumentError, match=rf"in the folder '{tmp_path}' for files named \*.tfrecord.*none"
    ):
        tfrecords(tmp_path)
    with pytest.raises(kte.errors.ArgumentError, match=r"found nothing that matches the pattern '.*/\*.tfrec'"):
        tfrecords(tmp_path / "*.tfrec")
    (tmp_path / "unfinished.json").write_text("{}")
    with pytest.raises(kte.errors.ArgumentError, match=r"not all written yet. Run `keras-tpu-ext tfrecords` again"):
        tfrecords(tmp_path)
