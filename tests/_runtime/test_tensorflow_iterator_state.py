"""Iterators over shuffled datasets that go on in another process."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext._runtime.common.iterator_state import SavedIterators

SIZE, BATCH = 33, 4


def shuffled(repeats):
    """Return iterators over a new dataset, as another process has it."""
    tf.random.set_seed(3)
    dataset = tf.data.Dataset.range(SIZE).shuffle(10)
    dataset = (dataset.repeat() if repeats else dataset).batch(BATCH).prefetch(2)
    return SavedIterators(lambda: iter(dataset))


@pytest.mark.parametrize("repeats", [False, True])
def test_it_gives_the_same_batches_after_every_batch(repeats):
    batches = 30 if repeats else -(-SIZE // BATCH)
    saved = shuffled(repeats)
    iterator = saved.begin()
    expected, states = [], []
    for batch in itertools.islice(iterator, batches):
        states.append(saved.save())
        expected.append(batch.numpy())
    of_the_next = [batch.numpy() for batch in saved.begin()] if not repeats else []
    for number, state in enumerate(states):
        resumed = shuffled(repeats)
        rest = itertools.islice(resumed.begin(state), batches - number - 1)
        got = [batch.numpy() for batch in rest] + ([] if repeats else [batch.numpy() for batch in resumed.begin()])
        for one, other in zip(got, expected[number + 1 :] + of_the_next, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"saved after batch {number}")
