"""`advise`: what it finds in a pipeline, what it measures, and that it leaves the pipeline alone."""

import json
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext.data import Advice, Finding
from keras_tpu_ext.data.pipeline import measuring as _measuring
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
    return kte.data.advise(dataset, measure=False, tpu=False, **options)


def good(dataset):
    return dataset.batch(64, drop_remainder=True, num_parallel_calls=AUTO).prefetch(AUTO)


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
    "map": (good(RANGE.map(plus)), "map(plus) works on", ".map(plus, num_parallel_calls=tf.data.AUTOTUNE)"),
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
    "batch": (RANGE.batch(64).prefetch(1), "batch(64) copies one", ".batch(64, num_parallel_calls=tf.data.AUTOTUNE)"),
    "prefetch": (
        RANGE.batch(64, True, AUTO),
        "Nothing is prefetched at the end: while the devices train, no batch is made ahead.",
        "dataset = dataset.prefetch(tf.data.AUTOTUNE)",
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
        good(RANGE).cache(),
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
    allowed = {kind} | ({"prefetch"} if kind == "cache-after-prefetch" else set())
    assert set(found) <= allowed


@pytest.mark.parametrize(
    "dataset",
    [
        good(RANGE),
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
    advice = looked_at(dataset)
    if isinstance(dataset.element_spec, tuple):  # the map of pad_batches itself
        advice = [one for one in advice if one.kind != "map"]
    assert advice == []
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
    assert kinds == {"cache-after-shuffle", "cache-after-prefetch", "batch", "prefetch"}


def test_a_grpc_tpu_cannot_read_local_files(monkeypatch):
    local = good(tf.data.TFRecordDataset(["/data/a.tfrecord"]))
    remote = good(tf.data.TFRecordDataset(["gs://bucket/a.tfrecord"]))
    address = "grpc://10.0.0.2:8470"
    (finding,) = kte.data.advise(local, tpu=address, measure=False)
    assert (finding.kind, finding.write) == ("local-files", '"gs://your-bucket/a.tfrecord"')
    assert finding.what == f"/data/a.tfrecord is on this machine, and the TPU at {address} cannot read it."
    assert kte.data.advise(remote, tpu=address, measure=False) == []
    assert kte.data.advise(local, tpu="local", measure=False) == []
    monkeypatch.setenv("TPU_NAME", address)
    assert not kte.data.advise(local, measure=False).ok


def test_large_files_are_no_finding(tmp_path):
    (tmp_path / "large").write_bytes(bytes(2**21))
    names = [str(tmp_path / "large")] * 1000
    assert looked_at(with_threads(good(slices(names).map(tf.io.read_file, num_parallel_calls=AUTO)))).ok


def test_files_are_opened_by_many_threads():
    names = slices(["/no/such/file"] * 64)
    line = "options.threading.private_threadpool_size = 64; dataset = dataset.with_options(options)"
    (sequential,) = looked_at(good(names.map(tf.io.read_file)))
    assert (sequential.kind, sequential.write) == ("map", f".map(read_file, num_parallel_calls=64), and {line}")
    (parallel,) = looked_at(good(names.map(tf.io.read_file, num_parallel_calls=AUTO)))
    assert (parallel.kind, parallel.write) == ("threads", line)
    assert parallel.what == (
        f"Files are opened by a thread for each core ({os.cpu_count()}), which wait for storage most of the time."
    )
    assert looked_at(with_threads(good(names.map(tf.io.read_file, num_parallel_calls=AUTO)))) == []


@pytest.mark.exhaustive
def test_a_pipeline_of_slow_batches_is_measured():
    advice = kte.data.advise(RANGE.map(plus).batch(64), seconds=0.4, clock=Stopwatch(step=5.0), tpu=False)
    assert {one.kind: one.measured for one in (*advice, *advice.left_out)} == {
        "map": True,
        "batch": True,
        "prefetch": True,
    }


def test_a_pipeline_that_waits_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr(_measuring, "_PATIENCE", 0.1)
    never = threading.Event()
    monkeypatch.setattr(_measuring, "_run_in_turns", lambda *_: never.wait(60))
    advice = kte.data.advise(RANGE.map(plus).batch(64), seconds=0.1, tpu=False)
    never.set()
    assert advice.note == "Nothing was measured: the pipeline gave too few elements in that time."
    assert not any(one.measured for one in advice)


def slow_source(x):
    """Give an element every 20 ms, as a file on a network does, without Python."""
    source = tf.data.experimental.to_variant(tf.data.Dataset.range(500).map(lambda y: x + y))
    slow = tf.raw_ops.SleepDataset(
        input_dataset=source, sleep_microseconds=20_000, output_types=[tf.int64], output_shapes=[[]]
    )
    return tf.data.experimental.from_variant(slow, tf.TensorSpec([], tf.int64))


class Stopwatch:
    """A clock that has gone on by `step` at every look."""

    def __init__(self, step=0.01):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def test_what_can_be_rewritten_is_measured():
    dataset = tf.data.Dataset.range(8).interleave(slow_source, cycle_length=8).batch(4, True, AUTO).prefetch(1)
    advice = kte.data.advise(dataset, seconds=2.0, tpu=False)
    assert [one.kind for one in advice] == ["interleave", "batch-small"]
    assert advice[0].measured
    assert advice[0].gain > 1.5  # about 8 where nothing else runs
    assert not advice.ok


@pytest.mark.exhaustive
def test_what_gains_nothing_does_not_matter():
    advice = kte.data.advise(RANGE.batch(64, True, AUTO), clock=Stopwatch(), seconds=4.0, tpu=False)
    assert advice == []
    assert advice.ok
    (finding,) = advice.left_out
    assert (finding.kind, finding.measured, finding.gain) == ("prefetch", True, pytest.approx(1.0, abs=0.05))
    assert str(advice) == (
        "Nothing in this pipeline needs another line.\n"
        f"Measured, and not worth a line: prefetch ({finding.gain:.2f} times as fast)."
    )


@pytest.mark.exhaustive
def test_the_time_is_bounded_also_on_infinite_datasets():
    clock = Stopwatch()
    kte.data.advise(RANGE.map(plus).repeat().batch(64), clock=clock, seconds=2.0, tpu=False)
    assert 1.5 < clock.now < 2.5


@pytest.mark.exhaustive
def test_measuring_leaves_no_trace(tmp_path):
    def make():
        return RANGE.map(plus).cache().shuffle(640, seed=3).batch(64)

    dataset, other, threads = make(), make(), threading.active_count()
    iterator = iter(dataset)
    first = next(iterator).numpy()
    kte.data.advise(dataset, seconds=0.2, tpu=False)
    for thread in threading.enumerate():
        if thread.name == "kte-advise":
            thread.join(120)  # TensorFlow can take its time to end an iterator
    assert threading.active_count() <= threads  # one of an earlier test's may have ended
    rest = [batch.numpy() for batch in iterator]
    np.testing.assert_array_equal([first, *rest], list(other.as_numpy_iterator()))
    np.testing.assert_array_equal(list(dataset.as_numpy_iterator()), list(other.as_numpy_iterator()))
    cached = RANGE.cache(str(tmp_path / "cache")).batch(64)
    assert kte.data.advise(cached, seconds=0.2, tpu=False).note == (
        "Nothing was measured: the pipeline has a cache in a file."
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (RANGE.map(in_python).batch(64), "it would run Python, or change a state, of yours"),
        (RANGE.map(noisy).batch(64), "it would run Python, or change a state, of yours"),
        (generator().batch(64), "it would run Python, or change a state, of yours"),
        (RANGE.scan(np.int64(0), lambda s, x: (s, x)).batch(64), "_ScanDataset cannot be copied"),
        (tf.data.Dataset.zip((RANGE, RANGE)).batch(64), "zip cannot be copied"),
    ],
)
def test_what_would_be_noticed_is_not_run(dataset, why):
    advice = kte.data.advise(dataset, seconds=0.2, tpu=False)
    assert advice.note == f"Nothing was measured: {why}."
    assert advice
    assert not any(one.measured for one in advice)


@pytest.mark.exhaustive
def test_a_cached_pipeline_says_that_its_gains_are_of_the_first_epoch():
    advice = kte.data.advise(RANGE.map(plus).cache().batch(64), seconds=0.4, clock=Stopwatch(), tpu=False)
    assert advice.note == "The gains are those of a first epoch; the cache serves the later ones."


def test_a_pipeline_that_fails_is_a_finding():
    advice = kte.data.advise(slices(["/no/such/file"] * 64).map(tf.io.read_file).batch(64), seconds=0.2, tpu=False)
    (failure,) = [one for one in advice if one.kind == "failure"]
    assert "/no/such/file" in failure.what
    assert not advice.ok


def test_an_empty_pipeline_is_not_measured():
    advice = kte.data.advise(RANGE.take(0).batch(64), seconds=0.2, tpu=False)
    assert advice.note == "Nothing was measured: the pipeline gave too few elements in that time."


def test_findings_are_ranked_and_shown():
    little = Finding("little", "A <little>.", "one()", 1.02, True)
    unknown = Finding("unknown", "Who knows.", "two()")
    much = Finding("much", "Much <of it>.", "three()", 3.4, True)
    advice = Advice([little, unknown, much], note="A note.")
    assert [one.kind for one in advice] == ["much", "unknown"]
    assert advice.left_out == (little,)
    assert str(advice) == (
        "2 things to change in this pipeline:\n"
        "1. much (3.4 times as fast, measured): Much <of it>.\n    three()\n"
        "2. unknown (gain not known): Who knows.\n    two()\n"
        "Measured, and not worth a line: little (1.02 times as fast).\n"
        "A note."
    )
    assert json.loads(json.dumps(advice.to_dict()))["findings"][0] == {
        "kind": "much",
        "what": "Much <of it>.",
        "write": "three()",
        "gain": 3.4,
        "measured": True,
        "matters": True,
    }
    assert "Much &lt;of it&gt;." in advice._repr_html_()
    assert "2 things to change in this pipeline:\n1. much (3.4 times" in advice._repr_html_()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"replicas": 0}, r"`replicas` must be an integer of at least 1; got 0. Write replicas=scope.num_replicas."),
        ({"seconds": 0}, r"`seconds` must be a number above 0; got 0. Write seconds=10.0, or measure=False to run"),
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
        (found,) = looked_at(dataset.map(lambda x, y: (x, y + 1)).prefetch(AUTO))
        assert found.kind == "map"
