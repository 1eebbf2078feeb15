"""What batches tell of the data: their one size, if they have one."""

import numpy as np
import pytest

from keras_tpu_ext.resume.data_spec import DataSpec, SeenBatches

KIND = DataSpec("generator")


def seen(*passes, before=None, spec=KIND):
    batches = SeenBatches(spec, before)
    told = [
        change
        for sizes in passes
        for index, rows in enumerate(sizes)
        for change in batches.see(np.zeros((rows, 2)), rows, index)
    ]
    return batches.spec().batch_size, told


@pytest.mark.parametrize(
    ("passes", "size"),
    [
        ([[16]], None),
        ([[16, 16]], 16),
        ([[16, 16, 10], [10, 16, 16], [16, 10, 16]], 16),
        ([[10, 16, 16, 16]], 16),
        ([[10, 16, 10]], None),
        ([[16, 16, 8, 8]], None),
        ([[8, 8, 16, 16]], None),
        ([[8, 8], [16, 16]], None),
    ],
)
def test_the_size_is_known_if_at_most_one_batch_of_a_pass_is_shorter(passes, size):
    assert seen(*passes) == (size, [])


def test_a_pass_without_an_end_has_epochs():
    endless = [[16, 16, 10] * 4]
    assert seen(*endless)[0] is None
    assert seen(*endless, spec=KIND._replace(steps_per_epoch=3))[0] == 16


@pytest.mark.parametrize(
    ("passes", "told"),
    [
        ([[16, 16, 10]], None),
        ([[10, 16]], None),
        ([[10], [10, 16]], None),
        ([[10, 10]], "now 10"),
        ([[16, 32]], "now 32"),
        ([[32, 32]], "now 32"),
        ([[16, 16, 32]], None),
    ],
)
def test_two_batches_tell_another_size(passes, told):
    expected = [] if told is None else [f"batches of 16 rows, {told}"]
    assert seen(*passes, before=KIND._replace(batch_size=16))[1] == expected


def test_sizes_that_varied_are_not_compared():
    assert seen([8, 8, 8], before=KIND) == (None, [])
