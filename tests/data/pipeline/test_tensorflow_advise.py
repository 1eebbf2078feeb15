"""`advise`: what it finds in a pipeline."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext.data import Advice, Finding
from sample_images import write_crops

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]

RANGE = tf.data.Dataset.range(640)
AUTO = tf.data.AUTOTUNE


def plus(x):
    return x + 1


def noisy(x):
    return x + tf.random.uniform([], 0, 9, tf.int64)


def in_python(x):
    return tf.numpy_function(lambda value: value, [x], tf.int64)


def inner(x):
    return tf.data.Dataset.range(x % 5)


def looked_at(dataset, **options):
    return kte.data.advise(dataset, tpu=False, **options)


def good(dataset):
    return dataset.batch(64, drop_remainder=True)


def without_autotuning(dataset):
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def with_threads(dataset):
    options = tf.data.Options()
    options.threading.private_threadpool_size = 64
    return dataset.with_options(options)


def slices(*parts):
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])


def generator():
    return tf.data.Dataset.from_generator(lambda: iter([0]), output_signature=tf.TensorSpec([], tf.int64))


PIXELS = tf.zeros([64, 6, 6, 3], tf.uint8)
FOUND = {
    "map": (
        good(RANGE.map(noisy)),
        "map(noisy) draws random numbers in turn, so it works on one element at a time.",
        ".map(noisy, num_parallel_calls=tf.data.AUTOTUNE)",
    ),
    "autotune": (
        without_autotuning(good(RANGE)),
        "Autotuning is off: maps and batches without num_parallel_calls are made one at a time.",
        "dataset, without options.autotune.enabled = False",
    ),
    "interleave": (
        good(RANGE.interleave(inner, cycle_length=2)),
        "interleave(inner) reads one of its inputs at a time.",
        ".interleave(inner, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)",
    ),
    "flat_map": (
        slices(["a", "b"]).flat_map(tf.data.TextLineDataset).batch(8, True, AUTO).prefetch(1),
        "flat_map(TextLineDatasetV2) opens one file after the other.",
        ".interleave(TextLineDatasetV2, cycle_length=16, ",
    ),
    "from-generator": (good(generator()), "from_generator runs Python, one", "tf.data.Dataset.from_tensor_slices"),
    "python": (good(RANGE.map(in_python, AUTO)), "map(in_python) runs Python (numpy_function", "def in_python(...)"),
    "cache-after-shuffle": (
        good(RANGE.shuffle(640).cache()),
        "cache comes after shuffle: every epoch has the order of the first.",
        ".cache().shuffle(...)",
    ),
    "cache-after-random": (
        good(RANGE.map(noisy, num_parallel_calls=AUTO).cache()),
        "cache comes after random augmentation: ",
        ".cache().map(augment, num_parallel_calls=tf.data.AUTOTUNE)",
    ),
    "cache-after-batch": (
        RANGE.batch(64, True, AUTO).cache().shuffle(10).prefetch(1),
        "cache comes after batch and before shuffle: whole batches are shuffled, not examples.",
        ".cache().shuffle(...).batch(...)",
    ),
    "cache-after-prefetch": (
        good(RANGE).prefetch(1).cache(),
        "cache comes right after prefetch, which then has nothing to do after the first epoch.",
        ".cache().prefetch(tf.data.AUTOTUNE)",
    ),
    "float-images": (
        good(slices(PIXELS).map(lambda x: tf.cast(x, tf.float32) / 255, num_parallel_calls=AUTO)),
        "Images go to the devices as float32: 4 times the bytes of uint8, if they come from 8-bit files.",
        "keep uint8 in the pipeline, and begin the model with keras.layers.Rescaling(1 / 255)",
    ),
    "unbatched": (RANGE.prefetch(1), "The elements are examples and no batches.", "dataset = dataset.batch(128)"),
    "batch-small": (
        RANGE.batch(4, True, AUTO).prefetch(1),
        "A batch has 4 examples: on 1 replica fewer than 8 each, and a TPU works on 8 rows at a time.",
        ".batch(128)  # 128 a replica",
    ),
    "batch-multiple": (
        RANGE.batch(100, True, AUTO).prefetch(1),
        "A batch has 100 examples, which on 1 replica is no multiple of 8 each: a TPU fills the rest up.",
        ".batch(104)",
    ),
    "tail": (
        RANGE.batch(96, num_parallel_calls=AUTO).prefetch(1),
        "The last batch has 64 examples and the others 96: a TPU compiles the step twice.",
        "dataset = kte.data.pad_batches(dataset, 96), or .batch(96, drop_remainder=True)",
    ),
    "shuffle-small": (
        good(RANGE.shuffle(60)),
        "shuffle(60) mixes each example with its 60 neighbours only, of 640.",
        ".shuffle(640), or shuffle the names of the files first",
    ),
    "small-files": (
        with_threads(
            good(slices([f"{number}.png" for number in range(1000)]).map(tf.io.read_file, num_parallel_calls=AUTO))
        ),
        "1000 small files are opened one by one, in every epoch.",
        "keras-tpu-ext tfrecords: write them once into a few large TFRecord files",
    ),
}


@pytest.mark.parametrize("kind", FOUND)
def test_it_is_found_with_the_line_to_write(kind):
    dataset, what, write = FOUND[kind]
    advice = looked_at(dataset)
    found = {one.kind: one for one in advice}
    assert kind in found
    assert found[kind].what.startswith(what)
    assert found[kind].write.startswith(write)
    assert not advice.ok
    assert set(found) == {kind}


@pytest.mark.parametrize(
    "dataset",
    [
        good(RANGE),
        good(RANGE.map(plus)),
        good(RANGE.shuffle(640).repeat()),
        good(RANGE.shuffle(64)),
        good(RANGE.filter(lambda x: x > 3)),
        good(RANGE).repeat().take(7),
        good(RANGE.cache().shuffle(640).map(noisy, num_parallel_calls=AUTO)),
        good(slices(["a", "b"]).shuffle(2).interleave(tf.data.TextLineDataset, 2, 1, AUTO).cache().shuffle(9)),
        good(slices(PIXELS)),
        good(slices(np.zeros((640, 5), "float32"))),
        good(RANGE).with_options(tf.data.Options()),
        # It drops the last batch, and then TensorFlow does not know what size the others have.
        RANGE.batch(96, True, AUTO).map(lambda x: tf.boolean_mask(x, x >= 0), num_parallel_calls=AUTO).prefetch(1),
        kte.data.pad_batches(RANGE.batch(96, num_parallel_calls=AUTO), 96).prefetch(1),
        tf.data.Dataset.from_tensors(np.zeros((640, 5))).repeat().prefetch(1),
    ],
)
def test_a_good_pipeline_has_no_findings(dataset):
    assert looked_at(dataset) == []
    assert str(Advice()) == "Nothing in this pipeline needs another line."


def test_the_replicas_share_a_batch():
    assert [one.kind for one in looked_at(good(RANGE), replicas=8)] == []
    (multiple,) = looked_at(RANGE.batch(160, True, AUTO).prefetch(1), replicas=8)
    assert multiple.write == ".batch(192)"
    (small,) = looked_at(RANGE.batch(32, True, AUTO).prefetch(1), replicas=8)
    assert small.what.startswith("A batch has 32 examples: on 8 replicas fewer than 8 each")


def test_the_reuters_tutorial():
    dataset = slices(np.zeros((640, 5)), np.zeros(640)).shuffle(640).batch(64).prefetch(AUTO).cache()
    kinds = {one.kind for one in looked_at(dataset)}
    assert kinds == {"cache-after-shuffle", "cache-after-prefetch"}


def test_a_grpc_tpu_cannot_read_local_files(monkeypatch):
    local = good(tf.data.TFRecordDataset(["/data/a.tfrecord"]))
    remote = good(tf.data.TFRecordDataset(["gs://bucket/a.tfrecord"]))
    address = "grpc://10.0.0.2:8470"
    (finding,) = kte.data.advise(local, tpu=address)
    assert (finding.kind, finding.write) == ("local-files", '"gs://your-bucket/a.tfrecord"')
    assert finding.what == f"/data/a.tfrecord is on this machine, and the TPU at {address} cannot read it."
    assert kte.data.advise(remote, tpu=address) == []
    assert kte.data.advise(local, tpu="local") == []
    monkeypatch.setenv("TPU_NAME", address)
    assert not kte.data.advise(local).ok


def test_large_files_are_no_finding(tmp_path):
    (tmp_path / "large").write_bytes(bytes(2**21))
    names = [str(tmp_path / "large")] * 1000
    assert looked_at(with_threads(good(slices(names).map(tf.io.read_file, num_parallel_calls=AUTO)))).ok


def test_files_are_opened_by_many_threads():
    names = slices(["/no/such/file"] * 64)
    line = "options.threading.private_threadpool_size = 64; dataset = dataset.with_options(options)"
    (sequential,) = looked_at(good(names.map(tf.io.read_file)))
    (parallel,) = looked_at(good(names.map(tf.io.read_file, num_parallel_calls=AUTO)))
    assert (parallel.kind, parallel.write) == (sequential.kind, sequential.write) == ("threads", line)
    assert parallel.what == (
        f"Files are opened by a thread for each core ({os.cpu_count()}), which wait for storage most of the time."
    )
    assert looked_at(with_threads(good(names.map(tf.io.read_file, num_parallel_calls=AUTO)))) == []


def test_findings_are_shown():
    advice = Advice([Finding("much", "Much <of it>.", "three()"), Finding("more", "Who knows.", "two()")])
    assert str(advice) == (
        "2 things to change in this pipeline:\n1. much: Much <of it>.\n    three()\n2. more: Who knows.\n    two()"
    )
    assert json.loads(json.dumps(advice.to_dict())) == {
        "ok": False,
        "findings": [
            {"kind": "much", "what": "Much <of it>.", "write": "three()"},
            {"kind": "more", "what": "Who knows.", "write": "two()"},
        ],
    }
    assert "Much &lt;of it&gt;." in advice._repr_html_()
    assert "2 things to change in this pipeline:\n1. much: Much" in advice._repr_html_()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"replicas": 0}, r"`replicas` must be an integer of at least 1; got 0. Write replicas=scope.num_replicas."),
        ({"tpu": ""}, r"`tpu` must be \"auto\", \"local\""),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(kte.errors.ArgumentError, match=text):
        kte.data.advise(RANGE, **options)


def test_only_tf_data_is_looked_at():
    with pytest.raises(
        kte.errors.ArgumentError, match=r"kte.data.advise needs a tf.data.Dataset; got list. Write kte"
    ):
        kte.data.advise([1])
    with pytest.raises(
        kte.errors.ArgumentError, match=r"got list_iterator. Write kte.data.advise\(tf.data.Dataset.f"
    ):
        kte.data.advise(iter([1]))


def test_nothing_is_wrong_with_what_images_and_tfrecords_return_and_later_stages_are_looked_at(tmp_path):
    write_crops(tmp_path / "photos", 20)
    kte.data.write_tfrecords(tmp_path / "photos", tmp_path / "shards", progress=False)
    options = {"batch_size": 16, "size": (32, 32), "shuffle": True, "drop_remainder": True}
    for dataset in (
        kte.data.images(tmp_path / "photos", **options),
        kte.data.tfrecords(tmp_path / "shards", **options),
    ):
        assert list(looked_at(dataset)) == []
        (found,) = looked_at(dataset.map(lambda x, y: (x, noisy(tf.cast(y, tf.int64)))))
        assert found.kind == "map"
