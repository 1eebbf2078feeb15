"""Manifests, plans and counts that are whole JSON with another content."""

import json
import shutil

import pytest
import tensorflow as tf

import fuzzing
import keras_tpu_ext as kte
from keras_tpu_ext.data.tfrecords.shards import find_shards, make_shards

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]


@pytest.fixture
def photos(tmp_path):
    """Six images of one pixel, and a shard that no manifest may lead to."""
    for number in range(6):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(tf.fill([1, 1, 3], tf.constant(number, tf.uint8))).numpy())
    (tmp_path / "x").write_bytes(b"outside")
    return tmp_path / "photos"


def write(photos, out):
    return kte.data.write_tfrecords(photos, out, shards=2, progress=False)


def told(error, function):
    assert str(error).startswith(f"{function} needs ")
    return "told"


def opened(source):
    """Return what `tfrecords` reads: the paths, and how many records it expects of each."""
    shards = make_shards(*find_shards(source), (0, 1), "")
    return shards.paths, shards.counts


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("reader", ["a folder", "a list"])
def test_a_manifest(photos, tmp_path, pytestconfig, number, reader):
    out = tmp_path / "out"
    write(photos, out)
    valid = json.loads((out / "manifest.json").read_text())
    if number == 1:
        valid |= {"format": 1, "shards": {name: one["records"] for name, one in valid["shards"].items()}}
        (out / "manifest.json").write_text(json.dumps(valid))
    source = out if reader == "a folder" else sorted(map(str, out.glob("*.tfrecord")))
    right = opened(source)
    tally = fuzzing.Tally(f"manifest.json of format {number}, {reader}", tmp_path, ["out"])

    def read(values):
        (out / "manifest.json").write_text(json.dumps(values))
        try:
            found = opened(source)
        except kte.errors.ArgumentError as error:
            return told(error, "tfrecords")
        is_ours = isinstance(values, dict) and {"format", "shards", "records", "plan"} & values.keys()
        assert found == (right if is_ours else (right[0], (-1, -1)))
        return "right" if is_ours else "another program's"

    fuzzing.each(pytestconfig, fuzzing.mutated(valid), tally, read, share=4)
    assert tally.counts["told"] > 15


def test_a_manifest_of_what_is_written(photos, tmp_path, pytestconfig):
    out = tmp_path / "out"
    report = write(photos, out)
    valid = json.loads((out / "manifest.json").read_text())
    tally = fuzzing.Tally("manifest.json, write_tfrecords", tmp_path, ["out"])

    def read(values):
        (out / "manifest.json").write_text(json.dumps(values))
        try:
            found = write(photos, out)
        except kte.errors.ArgumentError as error:
            return told(error, "write_tfrecords")
        assert (found.records, found.shards, found.shards_now) == (report.records, report.shards, 0)
        return "right"

    fuzzing.each(pytestconfig, fuzzing.mutated(valid), tally, read, share=4)
    assert tally.counts["told"] > 15


@pytest.mark.parametrize("name", ["unfinished.json", "data-00001-of-00002.tfrecord.done.json"])
def test_what_a_killed_run_has_left(photos, tmp_path, pytestconfig, begun, name):
    valid = json.loads((begun / name).read_text())
    write(photos, tmp_path / "whole")
    tally = fuzzing.Tally(f"*{name[-15:]}", tmp_path, ["out"])
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}

    def read(values):
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(begun, out)
        (out / name).write_text(json.dumps(values))
        try:
            report = write(photos, out)
        except kte.errors.ArgumentError as error:
            return told(error, "write_tfrecords") if name == "unfinished.json" else "told of its own file"
        assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
        return "written again" if report.shards_now else "right"

    fuzzing.each(pytestconfig, fuzzing.mutated(valid), tally, read, share=10)
    assert set(tally.counts) == {"right", "told" if name == "unfinished.json" else "written again"}
