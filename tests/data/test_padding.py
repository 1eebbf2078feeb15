"""`pad_batches` on a `keras.utils.PyDataset`, which needs no TensorFlow."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_tpu_ext as kte
import sources
from padded import assert_nothing_is_lost, is_mark

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")


def collected(padded):
    return [padded[i] for i in range(len(padded))]


def pad(*arrays, size, cut=None):
    return kte.data.pad_batches(sources.Batches(sources.cut(arrays, cut or size)), size)


@settings(max_examples=25)
@given(rows=st.integers(1, 40), size=st.integers(1, 17), per_step=st.booleans())
def test_nothing_is_lost_and_all_shapes_are_one(rows, size, per_step):
    x = np.arange(rows * 3, dtype="float32").reshape(rows, 3)
    y = np.arange(rows)
    w = np.linspace(0.0, 1.0, rows * 2).reshape(rows, 2) if per_step else np.linspace(0.0, 1.0, rows)
    batches = collected(pad(x, y, w, size=size))
    assert len(batches) == -(-rows // size)
    assert {(b.x.shape, b.y.shape, b.sample_weight.shape) for b in batches} == {
        ((size, 3), (size,), (size, *w.shape[1:]))
    }
    assert_nothing_is_lost(batches, x, y, w)


def test_a_padded_row_is_a_copy_of_the_last_one():
    (batch,) = collected(pad(np.array([1.0, 2.0, 3.0]), np.array(["a", "b", "c"]), size=5))
    assert batch.x.tolist() == [1, 2, 3, 3, 3]
    assert batch.y.tolist() == ["a", "b", "c", "c", "c"]
    assert batch.sample_weight.tolist() == [1, 1, 1, 0, 0]
    assert is_mark(batch.sample_weight).tolist() == [False, False, False, True, True]


def test_a_minus_zero_of_the_users_is_a_zero():
    (batch,) = collected(pad(np.ones(2), np.ones(2), np.array([-0.0, 0.0]), size=3))
    assert is_mark(batch.sample_weight).tolist() == [False, False, True]


def test_nested_parts_and_nothing():
    x = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([[1], [2], [3]])}
    dataset = sources.Batches([(x, (x["a"], None), {"out": np.full(3, 0.5), "other": None})])
    batch = kte.data.pad_batches(dataset, 4)[0]
    assert batch.x["b"].tolist() == [[1], [2], [3], [3]]
    assert batch.y[0].tolist() == [1, 2, 3, 3]
    assert batch.y[1] is None
    assert is_mark(batch.sample_weight["out"]).tolist() == [False, False, False, True]
    assert batch.sample_weight["other"] is None


@pytest.mark.parametrize("item", [lambda x: x, lambda x: (x,), lambda x: [x]], ids=["x", "(x,)", "[x]"])
def test_without_targets(item):
    batch = kte.data.pad_batches(sources.Batches([item(np.array([1.0, 2.0]))]), 3)[0]
    assert batch.y is None
    assert batch.x.tolist() == [1, 2, 2]


@pytest.mark.runtimes(
    "keras3_tf", "keras3_jax", reason="Keras 2: options are of `fit`, and there is no on_epoch_begin"
)
def test_the_other_dataset_hears_of_epochs_and_its_options_stay():
    heard = []

    class Hears(sources.Batches):
        def on_epoch_begin(self):
            heard.append("begin")

        def on_epoch_end(self):
            heard.append("end")

    dataset = Hears([])
    dataset.workers, dataset.max_queue_size = 3, 7
    padded = kte.data.pad_batches(dataset, 2)
    padded.on_epoch_begin()
    padded.on_epoch_end()
    assert heard == ["begin", "end"]
    assert (padded.workers, padded.use_multiprocessing, padded.max_queue_size) == (3, False, 7)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (
            (np.ones(3), np.ones(3)),
            "pad_batches got batch_size=2, and a batch of 3 rows. Give batch_size the size of the largest batch.",
        ),
        (
            (np.ones(0), np.ones(0)),
            "pad_batches got batch_size=2, and a batch of 0 rows. Leave such a batch out.",
        ),
        (
            (np.ones(2),) * 4,
            "pad_batches needs batches of x, (x, y) or (x, y, sample_weight); number 0 has 4 parts. "
            "Put several inputs into one structure: return (a, b), y.",
        ),
    ],
)
def test_a_wrong_batch_is_named(batch, text):
    with pytest.raises(kte.errors.ArgumentError) as error:
        kte.data.pad_batches(sources.Batches([batch]), 2)[0]
    assert str(error.value) == text


def test_without_tensorflow_other_data_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(kte.errors.MissingExtraError) as error:
        kte.data.pad_batches(np.ones(3), 2)
    assert str(error.value) == (
        "pad_batches works on keras.utils.PyDataset, and on tf.data.Dataset where TensorFlow is installed. "
        "Write: pip install tensorflow-cpu"
    )


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8", None])
def test_a_wrong_batch_size_is_named(size):
    with pytest.raises(kte.errors.ArgumentError) as error:
        kte.data.pad_batches(sources.Batches([]), size)
    assert str(error.value) == (
        f"pad_batches: `batch_size` must be an integer of at least 1; got {size!r}. "
        "Write batch_size=scope.global_batch_size(128)."
    )
