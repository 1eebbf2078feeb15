"""`optimize`: what it does to a pipeline, and that no element changes."""

import logging
import random

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext.data.pipeline import nodes

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]

RANGE = tf.data.Dataset.range(23)
TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant([10, 20], tf.int64)), -1
)
VARIABLE = tf.Variable(3, dtype=tf.int64)


@tf.function
def doubled(x):
    tf.debugging.assert_none_equal(x, tf.constant(-(10**12), tf.int64))
    return x * 2


def plain(structure):
    """Return the elements of a structure as lists, whatever tensors they are."""
    if structure is None or isinstance(structure, int | bytes):
        return structure
    if isinstance(structure, dict):
        return {key: plain(value) for key, value in structure.items()}
    if isinstance(structure, tuple):
        return type(structure).__name__, [plain(one) for one in structure]
    if isinstance(structure, tf.data.Dataset):
        return [plain(one) for one in structure]
    if isinstance(structure, tf.SparseTensor):
        structure = tf.sparse.to_dense(structure)
    if isinstance(structure, tf.RaggedTensor):
        return structure.to_list()
    return structure.numpy().tolist()


def elements(dataset, most=200):
    return [plain(element) for element in dataset.take(most)]


def assert_same(dataset, *, again=None, epochs=2, **options):
    """Return what `optimize` makes of `dataset`, after comparing all elements of some epochs.

    `again` is a dataset like it: where nothing below a shuffle is changed, both have that very shuffle.
    """
    made = kte.data.optimize(dataset, **options)
    dataset = dataset if again is None else again
    assert made.element_spec == dataset.element_spec
    assert int(made.cardinality()) == int(dataset.cardinality())
    for _ in range(epochs):
        assert elements(made) == elements(dataset)
    return made


def classes(dataset):
    return [type(node).__name__ for node in nodes.nodes_of(dataset)]


def report(dataset, **options):
    return kte.data.optimization_report(kte.data.optimize(dataset, **options))


def inner(x):
    return tf.data.Dataset.range(x % 5).map(lambda y: x * 100 + y)


# Each takes a dataset of integers and gives one.
STEPS = {
    "map": lambda d: d.map(lambda x: x + 1),
    "map_parallel": lambda d: d.map(lambda x: x + 2, num_parallel_calls=2),
    "map_function": lambda d: d.map(doubled),
    "map_table": lambda d: d.map(lambda x: x + TABLE.lookup(x % 4)),
    "map_seeded": lambda d: d.map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64, seed=5)),
    "map_variable": lambda d: d.map(lambda x: x + VARIABLE),
    "map_numpy": lambda d: d.map(lambda x: tf.ensure_shape(tf.numpy_function(lambda v: v + 1, [x], tf.int64), [])),
    "filter": lambda d: d.filter(lambda x: x % 3 > 0),
    "batch_unbatch": lambda d: d.batch(4).map(lambda x: x[::-1]).unbatch(),
    "batch_flat": lambda d: d.batch(4, drop_remainder=True, name="b").flat_map(tf.data.Dataset.from_tensor_slices),
    "shuffle": lambda d: d.shuffle(7, seed=3),
    "shuffle_once": lambda d: d.shuffle(7, seed=3, reshuffle_each_iteration=False),
    "repeat": lambda d: d.repeat(2),
    "take": lambda d: d.take(17),
    "skip": lambda d: d.skip(2),
    "shard": lambda d: d.shard(2, 1),
    "cache": lambda d: d.cache(),
    "prefetch": lambda d: d.prefetch(2),
    "zip": lambda d: tf.data.Dataset.zip((d, d.map(lambda x: -x))).map(lambda a, b: a * 2 - b),
    "concatenate": lambda d: d.concatenate(d.map(lambda x: x * 3)),
    "interleave": lambda d: d.interleave(inner, cycle_length=3, block_length=2),
    "interleave_default": lambda d: d.interleave(inner),
    "interleave_parallel": lambda d: d.interleave(inner, cycle_length=2, num_parallel_calls=2),
    "flat_map": lambda d: d.flat_map(inner),
    "enumerate": lambda d: d.enumerate().map(lambda i, x: i * x),
    "window": lambda d: d.window(3, shift=2, drop_remainder=True).flat_map(lambda w: w),
    "options": lambda d: d.with_options(slack()),
    "take_while": lambda d: d.take_while(lambda x: x < 4000),
    "scan": lambda d: d.scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s + x)),
}


def slack():
    options = tf.data.Options()
    options.experimental_slack = True
    options.autotune.enabled = False
    return options


def chains(seed, of):
    """Return all steps in some order, cut into chains."""
    names = sorted(STEPS)
    random.Random(seed).shuffle(names)
    return [names[first : first + of] for first in range(0, len(names), of)]


def chained(names):
    dataset = RANGE
    for name in names:
        dataset = STEPS[name](dataset.take(60))
    return dataset.batch(3)


FIRST, *CHAINS = chains(1, 4)
MORE = [
    pytest.param(FIRST, marks=pytest.mark.exhaustive),
    *(pytest.param(names, marks=pytest.mark.exhaustive) for seed in (2, 3) for names in chains(seed, 5)),
]


@pytest.mark.parametrize("names", CHAINS + MORE, ids="-".join)
def test_no_element_changes(names):
    assert_same(chained(names), again=chained(names), cache_bytes=1e6 * (len(names) % 2))


def slices(*parts):
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])


def ragged():
    return tf.ragged.constant([[[1, 2], [3]], [[]], [[4, 5, 6]], [[7]]])


def from_generator():
    return tf.data.Dataset.from_generator(lambda: iter(range(5)), output_signature=tf.TensorSpec([], tf.int32))


ELEMENTS = {
    "ragged": lambda: slices(ragged()).map(lambda x: x).batch(2),
    "ragged_batch": lambda: slices(ragged().merge_dims(1, 2)).ragged_batch(2).map(lambda x: x * 2),
    "sparse": lambda: slices(tf.sparse.from_dense(np.eye(5))).map(lambda x: x * 2.0).batch(2),
    "none": lambda: RANGE.map(lambda x: (x, None)).map(lambda x, n: {"x": x, "n": n}).batch(5),
    "dict": lambda: slices({"a": np.arange(7), "b": {"c": np.ones((7, 2))}}).map(lambda d: d).batch(3, True),
    "strings": lambda: slices(["a", "bc", "d"]).map(tf.strings.length).batch(2),
    "padded": lambda: slices(np.arange(9.0), np.arange(9)).map(lambda x, y: (x, y)).padded_batch(4, ([], [])),
    "padded_sequences": lambda: RANGE.map(tf.range).padded_batch(4, [None], tf.constant(-1, tf.int64)),
    "pad_batches": lambda: kte.data.pad_batches(slices(np.arange(10.0), np.arange(10)).batch(4), 4),
    "windows": lambda: RANGE.map(lambda x: x + 1).window(4).map(lambda w: w.batch(2)).take(2),
    "zip_of_dict": lambda: tf.data.Dataset.zip({"a": RANGE.map(lambda x: x), "b": (RANGE, RANGE.map(lambda x: -x))}),
    "one": lambda: tf.data.Dataset.from_tensors(np.arange(4)).map(lambda x: x),
    "none_at_all": lambda: RANGE.take(0).map(lambda x: x).batch(2),
    "names": lambda: RANGE.map(lambda x: x + 1, name="first").batch(2, name="second").repeat(2, name="third"),
    "infinite": lambda: RANGE.map(lambda x: x + 1).repeat().batch(5).take(40),
    "generator": lambda: from_generator().map(lambda x: x + 1),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_of_every_kind_stay_what_they_are(name):
    made = assert_same(ELEMENTS[name](), epochs=1, cache_bytes=1e6)
    assert classes(made)[0] == "_PrefetchDataset"


def test_a_plain_pipeline_is_made_parallel():
    dataset = RANGE.map(lambda x: x + 1).interleave(inner, cycle_length=2).batch(4)
    made = assert_same(dataset)
    assert classes(made)[:4] == [
        "_PrefetchDataset",
        "_ParallelBatchDataset",
        "_ParallelInterleaveDataset",
        "_ParallelMapDataset",
    ]
    found = kte.data.optimization_report(made)
    assert found.ok
    assert found.done == (
        "map(function) runs in parallel",
        "interleave(inner) reads its inputs in parallel",
        "batch(4) puts batches together in parallel",
        "the end is prefetched",
    )
    assert str(found).startswith("Changed:\n- map(function) runs in parallel\n")
    assert "- the end is prefetched" in found._repr_html_()
    assert found.to_dict() == {"ok": True, "done": list(found.done), "left": []}


def test_a_flat_map_that_opens_files_stays_and_is_told(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02}.txt").write_text("".join(f"{number}-{line}\n" for line in range(number % 4)))
    dataset = tf.data.Dataset.list_files(f"{tmp_path}/*.txt", shuffle=False).flat_map(tf.data.TextLineDataset)
    made = assert_same(dataset.batch(3))
    assert kte.data.optimization_report(made).left == (
        "flat_map(TextLineDatasetV2) opens one file after the other. Write .interleave(TextLineDatasetV2, "
        "cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE), which gives another order.",
    )


def test_files_are_opened_by_many_threads(tmp_path):
    for i in range(10):
        (tmp_path / str(i)).write_text(str(i))
    names = tf.data.Dataset.from_tensor_slices([str(tmp_path / str(i)) for i in range(10)])
    for dataset in (names.map(tf.io.read_file), names.map(tf.io.read_file, num_parallel_calls=2)):
        optimized = kte.data.optimize(dataset.batch(2))
        assert optimized.options().threading.private_threadpool_size == 64
        assert [b"".join(batch.numpy()) for batch in optimized] == [b"01", b"23", b"45", b"67", b"89"]
        assert "64 threads, since most of them wait for files" in kte.data.optimization_report(optimized).done
    chosen = tf.data.Options()
    chosen.threading.private_threadpool_size = 3
    optimized = kte.data.optimize(names.map(tf.io.read_file).with_options(chosen))
    assert optimized.options().threading.private_threadpool_size == 3
    assert not kte.data.optimize(names.map(tf.strings.length)).options().threading.private_threadpool_size


def test_optimizing_twice_changes_nothing_more():
    once = kte.data.optimize(RANGE.map(lambda x: x + 1).batch(4))
    twice = kte.data.optimize(once)
    assert twice is once
    assert str(kte.data.optimization_report(twice)) == "Nothing was changed."


def test_functions_are_not_traced_again():
    traces = []

    def traced(x):
        traces.append(x)
        return x + np.random.randint(10**9)

    dataset = RANGE.map(traced).shuffle(5, seed=1).batch(3)
    before = len(traces)
    assert_same(dataset)
    assert len(traces) == before


def test_the_seeds_of_a_global_seed_stay_and_none_is_drawn():
    tf.random.set_seed(4)
    dataset = RANGE.map(lambda x: x).shuffle(23)
    tf.random.set_seed(4)
    other = RANGE.map(lambda x: x).shuffle(23)
    made = kte.data.optimize(dataset)
    after = tf.random.uniform([3]).numpy().tolist()
    assert elements(made) == elements(dataset)
    tf.random.set_seed(4)
    RANGE.shuffle(23)
    assert tf.random.uniform([3]).numpy().tolist() == after
    del other


def test_the_parts_of_a_split_stay_apart():
    whole = tf.data.Dataset.range(100).map(lambda x: x + 1).shuffle(100, reshuffle_each_iteration=False)
    assert {"_seed", "_seed2"} <= vars(whole).keys()
    tf.random.set_seed(None)
    unseeded = tf.data.Dataset.range(100).map(lambda x: x + 1).shuffle(100, reshuffle_each_iteration=False)
    kept = tf.data.Dataset.range(100).map(abs).shuffle(100).cache()
    elements(kept)
    for source in (whole, unseeded, unseeded.cache(), kept):
        first, rest = (kte.data.optimize(part.map(lambda x: x)) for part in (source.take(50), source.skip(50)))
        assert len(set(elements(first)) | set(elements(rest))) == 100


@pytest.mark.parametrize(
    ("step", "options", "sentence"),
    [
        ("map_seeded", {}, "map(function) draws random numbers in turn: in parallel its results could be others. "),
        ("map_variable", {}, "map(function) reads a variable: in parallel its results could be others. Write "),
        ("map_variable", {}, "No prefetch at the end: a function reads a variable, which could have another value "),
        ("map_numpy", {}, "map(function) runs Python, which may rely on its order: in parallel its results could"),
        (
            "interleave_default",
            {},
            "interleave(inner) has no cycle_length, and in parallel TensorFlow chooses another",
        ),
        ("interleave_parallel", {}, "interleave is not known well enough to be made again, nor what is below it."),
        ("scan", {}, "_ScanDataset is not known well enough to be made again, nor what is below it."),
        ("shuffle", {"cache_bytes": 8}, "No cache was added: it would take 0 MiB, and may take 0 MiB."),
        ("strings", {"cache_bytes": 8}, "No cache was added: the size of the elements after map is not known."),
    ],
)
def test_what_is_left_is_told_with_the_reason(step, options, sentence):
    strings = RANGE.map(tf.strings.as_string)
    found = report(strings if step == "strings" else STEPS[step](RANGE.map(lambda x: x + 1)), **options)
    assert not found.ok
    assert any(one.startswith(sentence) for one in found.left), found
    assert f"Left as it was:\n- {found.left[0]}" in str(found)


def test_an_unseeded_shuffle_that_keeps_its_order_is_told():
    tf.random.set_seed(None)
    kept = RANGE.map(lambda x: x).shuffle(23, reshuffle_each_iteration=False)
    kept._seed = kept._seed2 = tf.constant(0, tf.int64)  # as without the seed that every test starts with
    (sentence,) = report(kept).left
    assert sentence.startswith(
        "shuffle without a seed keeps one order, on which another dataset may rely, as the oth"
    )


def test_what_is_allowed_is_done():
    stateful = RANGE.map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64)).interleave(inner)
    made = kte.data.optimize(stateful, allow_reorder=True, allow_stateful=True)
    assert kte.data.optimization_report(made).ok
    assert classes(made)[:3] == ["_PrefetchDataset", "_ParallelInterleaveDataset", "_ParallelMapDataset"]
    variable = RANGE.map(lambda x: x + VARIABLE)
    assert classes(assert_same(variable, allow_stateful=True))[:2] == ["_PrefetchDataset", "_ParallelMapDataset"]


def test_a_cache_after_a_shuffle_stays_and_is_told():
    dataset = RANGE.map(lambda x: x + 1).shuffle(23, seed=1).batch(5).cache()
    for options in ({}, {"allow_reorder": True}):
        found = report(dataset, **options)
        assert found.left[0].startswith(
            "cache comes after shuffle, so every epoch has the order of the first. Write "
        )
    made = assert_same(dataset)
    assert classes(made)[:4] == ["_PrefetchDataset", "CacheDataset", "_ParallelBatchDataset", "_ShuffleDataset"]


def test_what_is_joined_is_optimized_before_it_is_joined():
    mapped = RANGE.map(lambda x: x + 1)
    joined = tf.data.Dataset.zip((mapped, mapped.map(abs))).map(lambda x, y: x + y)
    made = assert_same(joined)
    assert classes(made)[:3] == ["_PrefetchDataset", "_ParallelMapDataset", "_ZipDataset"]
    assert kte.data.optimization_report(made).left == (
        "zip is not known well enough to be made again, nor what is below it. Write kte.data.optimize(dataset) for "
        "that.",
    )


def test_a_cache_is_added_where_it_fits():
    dataset = RANGE.map(lambda x: x + 1).map(lambda x: x + 1).shuffle(9, seed=2).batch(5)
    made = assert_same(dataset, cache_bytes=23 * 8)
    assert classes(made)[2:5] == ["_ShuffleDataset", "CacheDataset", "_ParallelMapDataset"]
    done = kte.data.optimization_report(made).done
    assert "a cache after map, whose elements are the same in every epoch" in done
    assert "CacheDataset" not in classes(kte.data.optimize(dataset, cache_bytes=23 * 8 - 1))
    assert report(dataset.cache(), cache_bytes=1e6).left[-1]
    assert "there is one already" in " ".join(report(RANGE.map(abs).cache().map(abs), cache_bytes=1e6).left)


def test_keras_image_folders(tmp_path):
    keras = kte._runtime.keras
    for number in range(7):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        pixels = np.full((9, 8, 3), 30 * number, "uint8")
        tf.io.write_file(str(folder / f"{number}.png"), tf.io.encode_png(pixels))
    folder = str(tmp_path)
    dataset, again = (
        keras.utils.image_dataset_from_directory(folder, batch_size=3, image_size=(6, 6), seed=1) for _ in range(2)
    )
    made = assert_same(dataset.map(lambda x, y: (x / 255, y)), again=again.map(lambda x, y: (x / 255, y)))
    assert "_ParallelBatchDataset" in classes(made)
    assert kte.data.optimize(dataset).class_names == ["a", "b"]


def test_names_put_on_a_dataset_stay():
    dataset = RANGE.map(lambda x: x).batch(2)
    dataset.class_names = ["a"]
    assert kte.data.optimize(dataset).class_names == ["a"]


def test_options_stay_and_autotune_off_means_numbers():
    dataset = RANGE.map(lambda x: x).with_options(slack()).batch(2)
    made = assert_same(dataset)
    assert made.options().experimental_slack is True
    assert nodes.attribute(made, "_buffer_size") == 2


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
        kte.data.optimize(RANGE.map(lambda x: x))
    assert caplog.messages == ["optimize: map(function) runs in parallel; the end is prefetched (left: 0)"]


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


@pytest.mark.parametrize("size", [-1, "1", True, float("nan")])
def test_a_wrong_cache_size(size):
    with pytest.raises(kte.errors.ArgumentError, match=r"cache_bytes must be a number of bytes of at least 0; got "):
        kte.data.optimize(RANGE, cache_bytes=size)


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
