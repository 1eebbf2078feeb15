"""Shapes of a batch, and the rate of a pipeline by a clock of the test's own."""

from typing import NamedTuple

import numpy as np
import pytest

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.preflight import _batch
from keras_tpu_ext.preflight._batch import ArraySpec, batch_size, batch_spec, batches_per_sec, with_batch_size

pytestmark = pytest.mark.gate_on("keras3_jax")

V5E = "v5e-8", 8
IMAGES, LABELS = np.zeros((16, 4, 4, 3), "float32"), np.zeros(16, "int32")


class Pair(NamedTuple):
    left: object
    right: object


OF_IMAGES, OF_LABELS = ArraySpec((16, 4, 4, 3), "float32"), ArraySpec((16,), "int32")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IMAGES, OF_IMAGES),
        ((IMAGES,), (OF_IMAGES,)),
        ((IMAGES, None, None), OF_IMAGES),
        ([IMAGES, LABELS], ([OF_IMAGES, OF_LABELS],)),
        ({"a": IMAGES}, {"a": OF_IMAGES}),
        ((IMAGES, LABELS), (OF_IMAGES, OF_LABELS)),
        ((IMAGES, LABELS, None), (OF_IMAGES, OF_LABELS)),
        ((IMAGES, LABELS, LABELS), (OF_IMAGES, OF_LABELS, OF_LABELS)),
        (([IMAGES, LABELS], {"a": LABELS}), ([OF_IMAGES, OF_LABELS], {"a": OF_LABELS})),
        ((Pair(IMAGES, LABELS), LABELS), (Pair(OF_IMAGES, OF_LABELS), OF_LABELS)),
        ((IMAGES, [0.5] * 16), (OF_IMAGES, ArraySpec((16,), "float64"))),
        ((ArraySpec((16, 2), "bfloat16"), LABELS), (ArraySpec((16, 2), "bfloat16"), OF_LABELS)),
    ],
)
def test_a_batch_becomes_shapes_as_fit_packs_it(batch, expected):
    found = batch_spec(batch, *V5E, None)
    assert found == expected
    assert repr(found) == repr(expected)  # the types of tuples, too
    assert batch_size(found) == 16


def test_a_dtype_may_be_an_object_or_a_word():
    class Described:
        shape, dtype = (16, 2), "float16"

    assert batch_spec(Described(), *V5E, None) == ArraySpec((16, 2), "float16")


def test_examples_of_a_replica_are_those_of_all_by_their_number():
    x, y = batch_spec(({"a": IMAGES[:3]}, LABELS[:1]), *V5E, 64)
    assert (x, y) == ({"a": ArraySpec((512, 4, 4, 3), "float32")}, ArraySpec((512,), "int32"))
    assert with_batch_size((x, y), 8)[0] == {"a": ArraySpec((8, 4, 4, 3), "float32")}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            iter([IMAGES]),
            r"must be one batch of arrays; got a list_iterator, which has many\. Write preflight\(model, next",
        ),
        ((), r"preflight: `batch` must be of one to three parts; got a tuple of 0\. Write x, \(x, y\)"),
        ((IMAGES,) * 4, r"one to three parts; got a tuple of 4\."),
        (3.0, r"must be of arrays; got single numbers\. Write x, \(x"),
        ((IMAGES, np.float32(1)), "must be of arrays; got single numbers"),
        ({}, "must be of arrays; got single numbers"),
        ((IMAGES, LABELS[:8]), r"the same number of examples, at least 1; got \[16, 8\]\. Write"),
        (IMAGES[:0], r"at least 1; got \[0\]"),
        (ArraySpec((None, 3), "float32"), r"at least 1; got \[None\]"),
        (
            IMAGES[:12],
            r"A batch of 12 cannot be shared evenly by the 8 replicas of v5e-8\. "
            r"Write per_replica_batch=1, which is a batch of 8\.",
        ),
        (np.zeros((37, 2)), "Write per_replica_batch=4, which is a batch of 32"),
        (IMAGES[:5], "Write per_replica_batch=1, which is a batch of 8"),
    ],
)
def test_what_is_no_batch_for_the_slice_says_what_to_write(batch, message):
    with pytest.raises(ArgumentError, match=message):
        batch_spec(batch, *V5E, None)


def test_a_dataset_is_not_a_batch():
    class Dataset:
        element_spec = None

    with pytest.raises(ArgumentError, match=r"got a Dataset, which has many.*pipeline=dataset"):
        batch_spec(Dataset(), *V5E, None)


class Clock:
    """Time that passes only where the test says so."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(_batch.time, "perf_counter", lambda: self.now)

    def pipeline(self, *batches):
        """Yield batches of (seconds that one takes, its examples)."""
        for seconds, rows in batches:
            self.now += seconds
            yield {"image": np.zeros((rows, 2)), "label": np.zeros(rows)}


def test_the_rate_of_a_pipeline_leaves_out_its_first_batch(monkeypatch):
    clock = Clock(monkeypatch)
    assert batches_per_sec(clock.pipeline((50.0, 8), *[(0.25, 8)] * 100), 8) == pytest.approx(4.0)
    assert clock.now == pytest.approx(152.0)  # after two seconds it is known


def test_the_rate_counts_batches_of_the_size_that_is_asked_for(monkeypatch):
    clock = Clock(monkeypatch)
    assert batches_per_sec(clock.pipeline(*[(0.25, 8)] * 100), 32) == pytest.approx(1.0)


def test_a_pipeline_that_ends_early_is_measured_to_its_end(monkeypatch):
    clock = Clock(monkeypatch)
    assert batches_per_sec(clock.pipeline((9.0, 8), (0.5, 8), (0.5, 4)), 8) == pytest.approx(1.5)


def test_a_slow_pipeline_is_measured_by_one_batch(monkeypatch):
    clock = Clock(monkeypatch)
    assert batches_per_sec(clock.pipeline((9.0, 8), (5.0, 8), (5.0, 8)), 8) == pytest.approx(0.2)


@pytest.mark.parametrize("count", [0, 1])
def test_a_pipeline_without_two_batches_cannot_be_measured(count):
    with pytest.raises(ArgumentError, match=r"at least two batches; got fewer\. Write pipeline=dataset, with more"):
        batches_per_sec([IMAGES] * count, 16)
