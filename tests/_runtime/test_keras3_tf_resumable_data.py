"""Passes over `tf.data` pipelines that go on in another process."""

import itertools
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext._runtime.training.batch_source import SavedIterators, Source
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses

pytestmark = pytest.mark.runtimes("keras3_tf")
EPOCHS = 3


def rows():
    return tf.data.Dataset.range(33)


def files(cycle_length, **options):
    def read(file):
        return tf.data.Dataset.range(file * 10, file * 10 + 7)

    return tf.data.Dataset.range(5).shuffle(5).interleave(read, cycle_length=cycle_length, **options).shuffle(8)


# Those that repeat are read in epochs of 5 batches.
PIPELINES = {
    "batched": lambda: rows().shuffle(10).batch(4).prefetch(2),
    "all in the buffer": lambda: rows().cache().shuffle(100).batch(4),
    "twice": lambda: rows().shuffle(10).batch(4).shuffle(3).prefetch(2),
    "files and records": lambda: files(2).batch(4).prefetch(2),
    "all files at once": lambda: files(8, num_parallel_calls=8, deterministic=True).batch(4).prefetch(2),
    "in a function": lambda: rows().batch(8).flat_map(lambda x: tf.data.Dataset.from_tensor_slices(x).shuffle(4, 1)),
    "3 times": lambda: rows().shuffle(10).batch(4).repeat(3).prefetch(2),
    "repeated": lambda: rows().shuffle(10).repeat().batch(4).prefetch(2),
    "repeated batches": lambda: rows().shuffle(10).batch(4).repeat().prefetch(2),
    "repeated files": lambda: files(2).batch(4).repeat().prefetch(2),
    "without an order": lambda: rows().batch(4).prefetch(2),
    "no state": lambda: rows().shuffle(10).map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)).batch(4),
}


def made(name):
    tf.random.set_seed(3)
    return PIPELINES[name]()


def expected(name):
    dataset = made(name)
    if "repeated" not in name:
        return [[batch.numpy() for batch in dataset] for _ in range(EPOCHS)]
    batches = [batch.numpy() for batch in dataset.take(20 * EPOCHS)]
    return [batches[20 * epoch : 20 * (epoch + 1)] for epoch in range(EPOCHS)]


class Process:
    """Reads the batches as Keras does.

    Args:
        name: Of a pipeline.
        begin: The epoch, the batch in it, the number of batches in all, and the place.
    """

    def __init__(self, name, begin=(0, 0, 0, None)):
        dataset = made(name)
        self._source = Source(lambda: dataset)
        self._data = ResumablePasses(reads_ahead=False, spans_epochs="repeated" in name)
        self._data.has_length = "in a function" not in name
        self._begin = begin

    def epochs(self, sizes):
        """Yield the epoch, batch, number of all, and place before each batch, and the batch."""
        epoch, batch, trained, place = self._begin
        if place is not None:
            self._data.resume(place, batch)
        iterator = None
        for later in range(epoch, EPOCHS):
            self._data.begin_epoch(trained)
            batch = self._data.take_first_batch()[0]
            if iterator is None or not self._data.spans_epochs:
                if not batch:
                    yield (later, 0, trained, self._data.place(at_once=True)), None
                iterator = self._data.begin_pass(self._source)
            for number in range(batch, sizes[later]):
                self._data.note_trained(trained)
                at = (later, number, trained, self._data.place(at_once=True)) if number else None
                yield at, next(iterator).numpy()
                trained += 1


def check(process, batches):
    """Check what a process reads, and return the places that it tells."""
    places = []
    sizes = [len(epoch) for epoch in batches]
    epoch, batch, *_ = process._begin
    left = list(itertools.chain.from_iterable(batches))[sum(sizes[:epoch]) + batch :]
    for at, got in process.epochs(sizes):
        places += [] if at is None else [at]
        if got is not None:
            np.testing.assert_array_equal(got, left.pop(0), err_msg=f"begun at {process._begin[:3]}")
    assert not left
    return places


IN_GATE = ("twice",)


@pytest.mark.parametrize(
    "name", [name if name in IN_GATE else pytest.param(name, marks=pytest.mark.exhaustive) for name in PIPELINES]
)
def test_another_process_goes_on_with_the_same_batches_from_everywhere(name):
    batches = expected(name)
    places = check(Process(name), batches)
    assert len(places) > sum(len(epoch) for epoch in batches) - EPOCHS
    for place in places[::3]:
        again = check(Process(name, place), batches)
        check(Process(name, again[len(again) // 2]), batches) if again else None


@pytest.mark.parametrize(
    ("dataset", "shuffles"),
    [
        (lambda: rows().shuffle(3).batch(4).shuffle(3), 2),
        (lambda: rows().shuffle(3).repeat(2).batch(2), 1),
        (lambda: rows().batch(4), 0),
    ],
)
def test_how_tensorflow_names_what_a_shuffle_draws_from(dataset, shuffles):
    made = dataset()
    iterators = SavedIterators(lambda: made)
    next(iterators.begin())
    assert iterators._number_of_shuffles == shuffles
    assert iterators.save()[1]


def tries(dataset, monkeypatch, name, replacement):
    """Return which places are read again from where, when the state cannot be saved after the third batch."""
    data = ResumablePasses(reads_ahead=False, spans_epochs=False)
    data.has_length = True
    data.begin_epoch(0)
    batches = data.begin_pass(Source(lambda: dataset))
    places = []
    for number in range(6):
        with monkeypatch.context() as patch:
            if number == 3:
                patch.setattr(*name, replacement)
            data.note_trained(number)
            places.append(data.place(at_once=True))
        next(batches)
    return data, [place.read for place in places]


def no_space(*args, **kwargs):
    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")


def no_folder(*args, **kwargs):
    raise FileNotFoundError("no usable temporary directory")


@pytest.mark.parametrize(
    ("name", "replacement"),
    [((tf.train.Checkpoint, "write"), no_space), ((tempfile, "TemporaryDirectory"), no_folder)],
    ids=["no space", "no folder"],
)
def test_a_disk_that_cannot_hold_a_state_now_makes_more_to_be_read_again(name, replacement, monkeypatch):
    data, read = tries(made("batched"), monkeypatch, name, replacement)
    assert read == [0, 1, 2, 2, 4, 5]
    assert not data.is_not_saved
    assert not data.not_exact
