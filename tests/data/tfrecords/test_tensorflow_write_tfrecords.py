"""`kte.data.write_tfrecords` and `keras-tpu-ext tfrecords`."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext_command import main
from sample_images import CLASSES, claimed_png, rows, write_crops

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def photos(tmp_path):
    write_crops(tmp_path / "photos", 20)
    return tmp_path / "photos"


def write(source, out, **options):
    return kte.data.write_tfrecords(source, out, **{"shards": 4, "progress": False, **options})


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def records(folder):
    paths = sorted(map(str, folder.glob("*.tfrecord")))
    found = [
        tf.train.Example.FromString(record.numpy()).features.feature for record in tf.data.TFRecordDataset(paths)
    ]
    return {record["name"].bytes_list.value[0].decode(): record for record in found}


def test_files_are_copied_and_read_back(photos, tmp_path):
    report = write(photos, tmp_path / "out")
    assert (report.ok, report.records, report.shards, report.shards_now) == (True, 40, 4, 4)
    assert report.class_names == CLASSES
    found = records(tmp_path / "out")
    assert sorted(found) == sorted(str(path.relative_to(photos)) for path in photos.glob("*/*.jpg"))
    for name, record in found.items():
        assert record["image"].bytes_list.value[0] == (photos / name).read_bytes()
        assert record["label"].int64_list.value[0] == CLASSES.index(name.split("/")[0])
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["format"], manifest["records"], len(manifest["shards"])) == (2, 40, 4)
    for name, shard in manifest["shards"].items():
        content = (tmp_path / "out" / name).read_bytes()
        head = hashlib.sha256(content[:1024]).hexdigest()
        assert shard == {"records": 10, "bytes": len(content), "head": head}
    assert len(list((tmp_path / "out").iterdir())) == 5  # nothing of the work is left
    dataset = kte.data.tfrecords(tmp_path / "out", batch_size=16, size=24)
    assert dataset.class_names == list(CLASSES)
    assert sorted(rows(dataset)[1]) == [0] * 20 + [1] * 20


def test_smaller_images_and_no_labels(photos, tmp_path):
    report = write(photos, tmp_path / "out", size=36, labels=None, shuffle=False)
    assert report.class_names == ()
    found = records(tmp_path / "out")
    assert list(found) == sorted(found)
    assert not any("label" in record for record in found.values())
    image = tf.io.decode_jpeg(found["china/000.jpg"]["image"].bytes_list.value[0]).numpy()
    assert image.shape == (36, 48, 3)
    whole = tf.io.decode_jpeg((photos / "china" / "000.jpg").read_bytes())
    assert np.abs(image - tf.image.resize(whole, (36, 48), antialias=True).numpy()).mean() < 3
    write(photos, tmp_path / "same", size=500, labels=None)
    name = "china/000.jpg"
    assert records(tmp_path / "same")[name]["image"].bytes_list.value[0] == (photos / name).read_bytes()


def command(photos, out):
    arguments = [sys.executable, "-m", "keras_tpu_ext", "tfrecords", str(photos), str(out), "--shards", "6"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([*arguments, "--quiet", "--json"], stdout=subprocess.PIPE, env=environ)


@pytest.mark.exhaustive
def test_a_killed_run_goes_on_where_it_was(tmp_path):
    write_crops(tmp_path / "photos", 150, height=300, width=400)
    write(tmp_path / "photos", tmp_path / "whole", shards=6)
    out = tmp_path / "out"
    first = command(tmp_path / "photos", out)
    end = time.monotonic() + 120
    while not list(out.glob("*.tfrecord")):
        assert first.poll() is None
        assert time.monotonic() < end
        time.sleep(0.002)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    left = sorted(path.name for path in out.glob("*.tfrecord"))
    assert (out / "unfinished.json").exists()
    assert not (out / "manifest.json").exists()
    with pytest.raises(
        kte.errors.ArgumentError, match="needs an empty folder, or one it began with the same files and"
    ):
        write(tmp_path / "photos", out, shards=5)
    report = write(tmp_path / "photos", out, shards=6)
    assert 0 < len(left) < 6
    assert report.shards_now == 6 - len(left)
    assert contents(out) == contents(tmp_path / "whole")


def test_what_was_written_stays(photos, tmp_path):
    write(photos, tmp_path / "out")
    before = contents(tmp_path / "out")
    assert write(photos, tmp_path / "out").shards_now == 0
    assert contents(tmp_path / "out") == before
    (photos / "china" / "000.jpg").write_bytes((photos / "china" / "001.jpg").read_bytes())
    for options in ({}, {"size": 30}):
        with pytest.raises(kte.errors.ArgumentError, match=r"a set was written from other ones: .* Write to another"):
            write(photos, tmp_path / "out", **options)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.tfrecord").write_text("mine")
    with pytest.raises(kte.errors.ArgumentError, match=r"has 'a.tfrecord', which it did not write"):
        write(photos, tmp_path / "other")


def test_the_order_is_that_of_the_seed(photos, tmp_path):
    orders = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(photos, tmp_path / name, shards=1, seed=seed)
        orders.append(list(records(tmp_path / name)))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_who_goes_on_without_skipping_is_told_of_what_was_skipped(photos, interrupt):
    (photos / "china" / "003.jpg").write_text("a text")
    out = interrupt(on_error="skip")
    with pytest.raises(
        kte.errors.ArgumentError, match=r"to be a whole JPEG, PNG, BMP or GIF image; '.*003.jpg' is not"
    ):
        write(photos, out, shards=2)
    report = write(photos, out, shards=2, on_error="skip")
    assert (report.records, report.shards_now) == (39, 0)


@pytest.mark.parametrize("content", ["", '{"plan"', "[]", "{}", '{"plan": 3}', "null"])
def test_a_damaged_plan_is_told(photos, begun, content):
    (begun / "unfinished.json").write_text(content)
    what = (
        f"needs '{begun}/unfinished.json' to be the plan of a set that it began; .* Write to another folder, or rem"
    )
    with pytest.raises(kte.errors.ArgumentError, match=f"^write_tfrecords {what}"):
        write(photos, begun, shards=2)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"records": 10, "skipped": []}', None])
def test_a_shard_whose_counts_are_damaged_is_written_again(photos, tmp_path, begun, content):
    path = begun / "data-00001-of-00002.tfrecord.done.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"records": 9}) if content is None else content)
    assert write(photos, begun, shards=2).shards_now == 1
    write(photos, tmp_path / "whole", shards=2)
    assert contents(begun) == contents(tmp_path / "whole")


def test_a_shard_that_was_cut_off_is_written_again(photos, tmp_path, begun):
    path = begun / "data-00001-of-00002.tfrecord"
    path.write_bytes(path.read_bytes()[:-100])
    assert write(photos, begun, shards=2).shards_now == 1
    write(photos, tmp_path / "whole", shards=2)
    assert contents(begun) == contents(tmp_path / "whole")


def test_images_that_are_too_large_are_raised_or_counted(photos, tmp_path, capsys):
    path = photos / "china" / "large.png"
    path.write_bytes(claimed_png(60_000))
    arguments = ["tfrecords", str(photos), str(tmp_path / "out"), "--quiet"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert (
        f"needs every file to have at most 100000000 pixels; '{path}' has 60000 x 60000 (height x width), 36" in error
    )
    assert "3600000000 in all. Write --max-pixels 3600000000 to take it, or write on_error=" in error
    assert write(photos, tmp_path / "out2", on_error="skip").skipped == (str(path),)
    with pytest.raises(kte.errors.ArgumentError, match="a set was written from other ones"):
        write(photos, tmp_path / "out2", on_error="skip", max_pixels=1000)
    assert main([*arguments[:2], str(tmp_path / "out3"), "--quiet", "--skip-errors", "--max-pixels", "1000"]) == 2
    assert "none of 41 can" in capsys.readouterr().err


def test_bad_images_are_raised_or_counted(photos, tmp_path, capsys):
    bad = [photos / "china" / "003.jpg", photos / "flower" / "007.jpg"]
    bad[0].write_bytes(bad[0].read_bytes()[:-500])
    bad[1].write_text("a text")
    arguments = ["tfrecords", str(photos), str(tmp_path / "out"), "--shards", "4", "--no-shuffle"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert f"every file to be a whole JPEG, PNG, BMP or GIF image; '{bad[0]}' is not: " in error
    assert "function_node" not in error
    assert "(--skip-errors)" in error
    assert main([*arguments, "--skip-errors", "--quiet", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    report = json.loads(captured.out)
    assert report["records"] == 38
    assert report["skipped"] == [str(path) for path in bad]
    assert main([*arguments, "--skip-errors"]) == 0
    text = capsys.readouterr().out
    assert "38 records of 2 classes in 4 shards (4 of them were there from a run before)" in text
    assert "2 files could not be read and are left out, such as" in text


def test_nothing_but_bad_images_is_an_error(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.jpg").write_text("a text")
    with pytest.raises(kte.errors.ArgumentError, match="at least one image that can be decoded; none of 1 can"):
        write(tmp_path / "photos", tmp_path / "out", on_error="skip")


def test_the_bar_is_on_the_standard_error(photos, tmp_path, capsys):
    assert main(["tfrecords", str(photos), str(tmp_path / "out"), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["records"] == 40
    assert "40/40" in captured.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shards": 0}, "`shards` must be an integer of at least 1; got 0. Write shards=8"),
        ({"size": 0}, "`size` must be an integer of at least 1; got 0. Write size=256"),
        ({"quality": 101}, "`quality` must be an integer from 1 to 100; got 101"),
        ({"max_pixels": 0}, "`max_pixels` must be an integer of at least 1; got 0. Write max_pixels=100000000"),
        ({"on_error": "stop"}, '`on_error` must be "raise" or "skip"; got \'stop\''),
    ],
)
def test_arguments_that_cannot_be(photos, tmp_path, options, text):
    with pytest.raises(kte.errors.ArgumentError, match=text):
        write(photos, tmp_path / "out", **options)
