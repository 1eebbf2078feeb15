"""`optimize`: what it does to a pipeline, and that no element changes."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]

RANGE = tf.data.Dataset.range(23)


def left(dataset):
    return kte.data.optimization_report(kte.data.optimize(dataset)).left


def noisy(x):
    return x + tf.random.uniform([], 0, 9, tf.int64)


def test_files_are_opened_by_many_threads(tmp_path):
    for i in range(10):
        (tmp_path / str(i)).write_text(str(i))
    names = tf.data.Dataset.from_tensor_slices([str(tmp_path / str(i)) for i in range(10)])
    for dataset in (names.map(tf.io.read_file), names.map(tf.io.read_file, num_parallel_calls=2)):
        optimized = kte.data.optimize(dataset.batch(2))
        assert optimized.options().threading.private_threadpool_size == 64
        assert [b"".join(batch.numpy()) for batch in optimized] == [b"01", b"23", b"45", b"67", b"89"]
        assert kte.data.optimization_report(optimized).done == (
            "64 threads open files, since most of them wait for storage",
        )
        assert kte.data.optimization_report(kte.data.optimize(optimized)).done == ()
    chosen = tf.data.Options()
    chosen.threading.private_threadpool_size = 3
    optimized = kte.data.optimize(names.map(tf.io.read_file).with_options(chosen))
    assert optimized.options().threading.private_threadpool_size == 3
    assert not kte.data.optimize(names.map(tf.strings.length)).options().threading.private_threadpool_size


def test_nothing_is_changed_where_tensorflow_does_it_all():
    dataset = RANGE.map(lambda x: x + 1).batch(4)
    made = kte.data.optimize(dataset)
    assert str(kte.data.optimization_report(made)) == "Nothing was changed."
    assert kte.data.optimization_report(made).ok
    assert [batch.numpy().tolist() for batch in made] == [batch.numpy().tolist() for batch in dataset]


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (
            RANGE.map(noisy),
            "map(noisy) draws random numbers in turn, so it works on one element at a time. Write .map(noisy, "
            "num_parallel_calls=tf.data.AUTOTUNE)",
        ),
        (
            tf.data.Dataset.from_tensor_slices(["a"]).flat_map(tf.data.TextLineDataset),
            "flat_map(TextLineDatasetV2) opens one file after the other. Write .interleave(TextLineDatasetV2, "
            "cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)",
        ),
        (
            RANGE.shuffle(23).cache(),
            "cache comes after shuffle: every epoch has the order of the first. Write .cache().shuffle(...)",
        ),
    ],
)
def test_what_is_left_is_told_with_the_line_to_write(dataset, sentence):
    assert left(dataset.batch(8)) == (sentence,)


def test_the_order_may_change_if_that_is_allowed():
    made = kte.data.optimize(RANGE, allow_reorder=True)
    assert made.options().deterministic is False
    assert kte.data.optimization_report(made).done == ("elements come in the order in which they are ready",)
    assert sorted(int(x) for x in made) == list(range(23))


def test_names_put_on_a_dataset_stay():
    dataset = RANGE.map(lambda x: x).batch(2)
    dataset.class_names = ["a"]
    assert kte.data.optimize(dataset).class_names == ["a"]


def test_options_stay():
    options = tf.data.Options()
    options.experimental_slack = True
    assert kte.data.optimize(RANGE.with_options(options).batch(2)).options().experimental_slack is True


def test_a_model_takes_it():
    keras = kte._runtime.keras
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((10, 2), "float32"), np.ones((10, 1), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x * 2, y)).batch(4)
    history = model.fit(kte.data.optimize(dataset), epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2


def test_it_logs_one_line(caplog):
    with caplog.at_level(logging.INFO, "keras_tpu_ext"):
        kte.data.optimize(RANGE.map(noisy))
    assert caplog.messages == ["optimize: nothing to change (left: 1)"]


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (
            [1, 2],
            r"kte.data.optimize needs a tf.data.Dataset; got list. Write kte.data.optimize\(tf.data.Dataset.from",
        ),
        ((x for x in ()), r"got generator. Write kte.data.optimize\(tf.data.Dataset.from_generator\("),
        (np.ones(3), r"got ndarray. Write kte.data.optimize\(tf.data.Dataset.from_tensor_slices\(\(x, y\)\).batch"),
    ],
)
def test_only_tf_data_is_optimized(dataset, text):
    with pytest.raises(kte.errors.ArgumentError, match=text):
        kte.data.optimize(dataset)


def test_a_report_is_of_the_very_dataset():
    with pytest.raises(
        kte.errors.ArgumentError, match=r"optimization_report needs the very dataset that kte.data.opt"
    ):
        kte.data.optimization_report(RANGE)


def test_inside_a_tf_function():
    @tf.function(autograph=False)
    def inside():
        kte.data.optimize(tf.data.Dataset.range(2))

    with pytest.raises(
        kte.errors.ArgumentError, match=r"was called inside a tf.function. Call it where you make the"
    ):
        inside()
