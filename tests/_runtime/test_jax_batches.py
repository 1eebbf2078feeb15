"""What becomes of batches on their way to the devices: filled up or copied, grouped, and nothing lost."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.padding import MARK, PaddedBatch, UnweightedPaddedBatch
from keras_tpu_ext._runtime.jax.data_adapter import Batches, host_batch

pytestmark = pytest.mark.runtimes("keras3_jax")


@pytest.fixture
def distribution(scope8):
    return scope8.strategy


def batch(rows, first=0, width=3):
    return np.arange(first, first + rows * width, dtype="float32").reshape(rows, width), np.arange(rows)


def groups_of(distribution, batches, room=1, fills_up=True):
    replicas = 1 if distribution is None else 8
    maker = Batches(distribution, replicas, fills_up=fills_up)
    return maker.groups([host_batch(one) for one in batches], room)


def examples_in(group):
    """Return the rows of a group that count, in their order."""
    x = np.asarray(group.data[0])
    if group.steps is None:
        return [x if group.examples is None else x[: int(group.examples)]]
    counts = [x.shape[1]] * int(group.steps) if group.examples is None else group.examples
    return [x[i, : int(counts[i])] for i in range(int(group.steps))]


def shards(array):
    return sorted({shard.data.shape for shard in array.addressable_shards}), len(array.sharding.device_set)


# -- the rows of one batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "space"), [(1, 8), (7, 8), (8, 8), (9, 16), (20, 24)])
def test_a_batch_is_filled_up_with_its_last_row_to_what_the_devices_share_evenly(distribution, rows, space):
    (group,) = groups_of(distribution, [batch(rows)])
    x, y = (np.asarray(leaf) for leaf in group.data)
    assert (x.shape, y.shape, int(group.examples), group.steps) == ((space, 3), (space,), rows, None)
    np.testing.assert_array_equal(x[:rows], batch(rows)[0])
    np.testing.assert_array_equal(x[rows:], np.repeat(x[rows - 1 : rows], space - rows, axis=0))
    assert shards(group.data[0]) == ([(space // 8, 3)], 8)


def test_a_short_batch_takes_the_space_of_the_longest_before_it(distribution):
    maker = Batches(distribution, 8, fills_up=True)
    spaces = []
    for rows in (20, 3, 40, 20):
        (group,) = maker.groups([host_batch(batch(rows))])
        spaces.append((group.data[0].shape[0], int(group.examples)))
    assert spaces == [(24, 20), (24, 3), (40, 40), (40, 20)]


@pytest.mark.parametrize("rows", [8, 16])
def test_a_batch_that_is_not_filled_up_is_split_where_that_goes(distribution, rows):
    (group,) = groups_of(distribution, [batch(rows)], fills_up=False)
    assert group.examples is None
    assert shards(group.data[0]) == ([(rows // 8, 3)], 8)


@pytest.mark.parametrize("rows", [1, 7, 9])
def test_a_batch_that_is_not_filled_up_and_does_not_divide_is_whole_on_every_device(distribution, rows):
    (group,) = groups_of(distribution, [batch(rows)], fills_up=False)
    assert group.examples is None
    assert shards(group.data[0]) == ([(rows, 3)], 8)
    np.testing.assert_array_equal(np.asarray(group.data[0]), batch(rows)[0])


def test_without_a_distribution_a_batch_lies_on_one_device_as_it_is():
    (group,) = groups_of(None, [batch(5)])
    assert shards(group.data[0]) == ([(5, 3)], 1)


def test_parts_that_are_not_there_stay_nothing(distribution):
    x, y = batch(5)
    (group,) = groups_of(distribution, [({"a": x, "b": None}, y, None)])
    assert group.data[0]["b"] is None
    assert group.data[2] is None
    assert group.data[0]["a"].shape == (8, 3)


# -- rows that were padded before -----------------------------------------------------------------------------


def test_padded_rows_are_taken_off_and_their_space_is_kept():
    padded = kte.data.pad_batches(_dataset([batch(3)]), 16)[0]
    assert isinstance(padded, UnweightedPaddedBatch)
    host = host_batch(padded)
    assert (host.rows, host.space) == (3, 16)
    x, y, weights = host.data
    np.testing.assert_array_equal(x, batch(3)[0])
    np.testing.assert_array_equal(y, [0, 1, 2])
    assert weights is None  # they were made by the padding
    (group,) = groups_of(None, [padded])
    assert (group.data[0].shape, int(group.examples)) == ((16, 3), 3)


@pytest.mark.parametrize("real", [[True, True, False], [False, True, True], [True, False, True]])
def test_padded_rows_may_be_anywhere_and_a_weight_of_zero_is_no_mark(real):
    x = np.arange(3.0)
    weights = np.where(real, [0.0, 2.0, 3.0], MARK).astype("float32")
    host = host_batch(PaddedBatch(x, None, weights))
    np.testing.assert_array_equal(host.data[0], x[real])
    np.testing.assert_array_equal(host.data[2], weights[real])
    assert host.rows == 2


def test_a_row_is_padded_where_all_its_weights_are_marked():
    weights = np.array([[1.0, MARK], [MARK, MARK], [MARK, 2.0]], "float32")
    host = host_batch(PaddedBatch(np.arange(3.0), None, weights))
    assert host.data[0].tolist() == [0.0, 2.0]


def _dataset(batches):
    from sources import Batches as Items

    return Items(batches)


# -- several batches in an execution --------------------------------------------------------------------------


def test_batches_of_one_shape_are_one_group_and_short_ones_fit_in(distribution):
    (group,) = groups_of(distribution, [batch(16), batch(16, 100), batch(5, 200)], room=3)
    assert group.data[0].shape == (3, 16, 3)
    assert shards(group.data[0]) == ([(3, 2, 3)], 8)
    assert (group.examples.tolist(), int(group.steps)) == ([16, 16, 5], 3)


def test_an_execution_with_fewer_batches_keeps_the_room(distribution):
    (group,) = groups_of(distribution, [batch(8), batch(8)], room=4)
    assert group.data[0].shape == (4, 8, 3)
    assert (group.examples.tolist(), int(group.steps)) == ([8, 8, 0, 0], 2)


def test_another_shape_starts_another_group_and_the_order_stays(distribution):
    wide = batch(8, 500, width=4)
    groups = groups_of(distribution, [batch(8), wide, batch(8, 100)], room=2)
    assert [int(group.steps) for group in groups] == [1, 1, 1]
    assert [np.asarray(group.data[0]).flat[0] for group in groups] == [0, 500, 100]


def test_without_filling_up_another_number_of_rows_is_another_group(distribution):
    groups = groups_of(distribution, [batch(8), batch(8), batch(5)], room=2, fills_up=False)
    assert [(group.data[0].shape, int(group.steps)) for group in groups] == [((2, 8, 3), 2), ((2, 5, 3), 1)]
    assert [group.examples for group in groups] == [None, None]


@pytest.mark.parametrize(("wanted", "most", "room"), [(3, None, 3), (3, 9, 3), (64, 4, 4), (64, None, 64)])
def test_a_shorter_last_execution_is_no_other_shape_and_there_is_no_room_for_more_than_an_epoch(wanted, most, room):
    maker = Batches(None, 1, fills_up=True, most_steps=most)
    executions = list(maker.executions([batch(8)] * 4, lambda: (wanted, wanted)))
    shapes = [group.data[0].shape for groups in executions for group in groups]
    assert shapes == [(room, 8, 3)] * len(executions)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=9),
    wanted=st.integers(1, 4),
    most=st.sampled_from([None, 2, 9]),
    fills_up=st.booleans(),
)
def test_nothing_is_lost_nothing_comes_twice_and_the_order_stays(sizes, wanted, most, fills_up):
    distribution = kte.strategy_scope(require="cpu", replicas=8).strategy
    firsts = np.cumsum([0, *sizes[:-1]]) * 3
    source = [batch(rows, first) for rows, first in zip(sizes, firsts, strict=True)]
    maker = Batches(distribution, 8, fills_up=fills_up, most_steps=most)
    executions = list(maker.executions(iter(source), lambda: (wanted, wanted)))
    got = [rows for groups in executions for group in groups for rows in examples_in(group)]
    assert [len(rows) for rows in got] == sizes
    np.testing.assert_array_equal(np.concatenate(got).ravel(), np.arange(sum(sizes) * 3))
    steps = [sum(1 if group.steps is None else int(group.steps) for group in groups) for groups in executions]
    assert steps == [min(wanted, len(sizes) - i) for i in range(0, len(sizes), wanted)]
    assert not any(leaf.is_deleted() for groups in executions for leaf in jax.tree.leaves(groups[0].data))
