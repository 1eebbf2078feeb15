"""`pad_batches` on a `tf.data.Dataset`."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_tpu_ext as kte
from padded import assert_nothing_is_lost, is_mark

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts)


def collected(padded):
    return [tuple(None if part is None else part.numpy() for part in batch) for batch in padded]


# Each example makes a dataset or two, which takes some time: fewer of them than the hundred of hypothesis.
@settings(max_examples=25)
@given(rows=st.integers(1, 40), size=st.integers(1, 17), batched=st.booleans(), per_step=st.booleans())
def test_nothing_is_lost_and_all_shapes_are_one(rows, size, batched, per_step):
    x = np.arange(rows * 3, dtype="float32").reshape(rows, 3)
    y = np.arange(rows)
    w = np.linspace(0.0, 1.0, rows * 2).reshape(rows, 2) if per_step else np.linspace(0.0, 1.0, rows)
    source = dataset(x, y, w).batch(size) if batched else dataset(x, y, w)
    padded = kte.data.pad_batches(source, size)
    assert [spec.shape for spec in padded.element_spec] == [(size, 3), (size,), (size, *w.shape[1:])]
    batches = collected(padded)
    assert int(padded.cardinality()) == len(batches) == -(-rows // size)
    assert_nothing_is_lost(batches, x, y, w)


def test_a_padded_row_is_a_copy_of_the_last_one():
    (x, y, w) = collected(kte.data.pad_batches(dataset([1.0, 2.0, 3.0], ["a", "b", "c"]).batch(5), 5))[0]
    assert x.tolist() == [1, 2, 3, 3, 3]
    assert y.tolist() == [b"a", b"b", b"c", b"c", b"c"]
    assert w.tolist() == [1, 1, 1, 0, 0]
    assert is_mark(w).tolist() == [False, False, False, True, True]


def test_a_minus_zero_of_the_users_is_a_zero():
    (_, _, w) = collected(kte.data.pad_batches(dataset([1.0, 2.0], [1, 2], [-0.0, 0.0]), 3))[0]
    assert is_mark(w).tolist() == [False, False, True]


def test_nested_parts():
    source = tf.data.Dataset.from_tensor_slices(
        ({"a": [1.0, 2.0, 3.0], "b": [[1], [2], [3]]}, ([1, 2, 3], [4, 5, 6]), {"out": [0.5, 0.5, 0.5]})
    ).batch(2)
    x, y, w = list(kte.data.pad_batches(source, 2))[-1]
    assert x["b"].numpy().tolist() == [[3], [3]]
    assert [part.numpy().tolist() for part in y] == [[3, 3], [6, 6]]
    assert is_mark(w["out"].numpy()).tolist() == [False, True]


@pytest.mark.parametrize("source", [lambda x: x, lambda x: (x,), lambda x: {"a": x}], ids=["x", "(x,)", "dict"])
def test_without_targets(source):
    padded = kte.data.pad_batches(tf.data.Dataset.from_tensor_slices(source([1.0, 2.0, 3.0])).batch(2), 2)
    for batch in padded:
        assert batch.y is None
        assert tf.nest.flatten(batch.x)[0].shape == (2,)


def test_nothing_stays_nothing():
    source = dataset([1.0, 2.0, 3.0], [1, 2, 3]).batch(2).map(lambda x, y: ((None, x), (y, y), (None, x)))
    batch = list(kte.data.pad_batches(source, 2))[-1]
    assert batch.x[0] is None
    assert batch.x[1].numpy().tolist() == [3, 3]
    assert batch.sample_weight[0] is None
    assert is_mark(batch.sample_weight[1].numpy()).tolist() == [False, True]


def test_shorter_batches_in_the_middle_are_filled_up():
    source = dataset([1, 2, 3], [1, 2, 3]).batch(2).repeat(2)
    assert [batch.x.numpy().tolist() for batch in kte.data.pad_batches(source, 4)] == [
        [1, 2, 2, 2],
        [3, 3, 3, 3],
        [1, 2, 2, 2],
        [3, 3, 3, 3],
    ]


def test_examples_of_unknown_length_are_refused_by_batch_and_not_in_silence():
    source = tf.data.Dataset.from_generator(
        lambda: iter([np.zeros(2), np.zeros(3)]), output_signature=tf.TensorSpec([None], tf.float32)
    )
    batches = list(kte.data.pad_batches(source, 4))  # taken for batches, as the docstring says
    assert [batch.x.shape for batch in batches] == [(4,), (4,)]


def test_batches_of_another_static_size_can_be_told():
    source = dataset([1, 2, 3, 4], [1, 2, 3, 4]).batch(2, drop_remainder=True)
    batches = list(kte.data.pad_batches(source, 3, batched=True))
    assert [batch.x.numpy().tolist() for batch in batches] == [[1, 2, 2], [3, 4, 4]]


def test_examples_that_look_like_batches_can_be_told():
    pictures = tf.data.Dataset.from_tensor_slices(np.zeros([5, 4, 4, 1], "float32"))
    assert kte.data.pad_batches(pictures, 4).element_spec.x.shape == (4, 4, 1)
    assert kte.data.pad_batches(pictures, 4, batched=False).element_spec.x.shape == (4, 4, 4, 1)


def test_a_batch_that_is_too_large():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"more rows than batch_size=2\. Write dataset.rebatch"):
        list(kte.data.pad_batches(dataset([1, 2, 3], [1, 2, 3]).batch(3), 2))


def test_a_batch_without_rows():
    empty = dataset([1, 2], [1, 2]).batch(2).map(lambda x, y: (x[:0], y[:0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a batch has no row at all"):
        list(kte.data.pad_batches(empty, 2))


ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [1, 2]]))
WRONG = {
    "arrays": (
        lambda: kte.data.pad_batches(np.ones(3), 2),
        "pad_batches needs a tf.data.Dataset or a keras.utils.PyDataset; got ndarray. "
        "Write pad_batches(tf.data.Dataset.from_tensor_slices((x, y)), 2).",
    ),
    "four parts": (
        lambda: kte.data.pad_batches(dataset([1], [2], [3], [4]), 2),
        "pad_batches needs a dataset of x, (x, y) or (x, y, sample_weight); its elements have 4 parts. "
        "Put several inputs into one structure: dataset.map(lambda a, b, y: ((a, b), y)).",
    ),
    "ragged": (
        lambda: kte.data.pad_batches(ragged, 2),
        "pad_batches needs dense tensors; the dataset has a RaggedTensorSpec. "
        "Write dataset.map(...) with .to_tensor() for ragged and tf.sparse.to_dense() for sparse tensors.",
    ),
    "unknown rank": (
        lambda: kte.data.pad_batches(tf.data.Dataset.from_generator(lambda: iter([[1]]), output_types=tf.int32), 2),
        "pad_batches needs to know how many dimensions each tensor has; the dataset has one of unknown rank. "
        "Write from_generator(..., output_signature=tf.TensorSpec([None, 28, 28], tf.float32)).",
    ),
    "twice": (
        lambda: kte.data.pad_batches(kte.data.pad_batches(dataset([1], [2]), 2), 2),
        "pad_batches got a dataset that is padded already. Call it once.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_dataset_is_named(name):
    act, expected = WRONG[name]
    with pytest.raises(kte.errors.ArgumentError) as error:
        act()
    assert str(error.value) == expected


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8", None])
def test_a_wrong_batch_size_is_named(size):
    with pytest.raises(kte.errors.ArgumentError) as error:
        kte.data.pad_batches(dataset([1], [2]), size)
    assert str(error.value) == (
        f"pad_batches: `batch_size` must be an integer of at least 1; got {size!r}. "
        "Write batch_size=scope.global_batch_size(128)."
    )
