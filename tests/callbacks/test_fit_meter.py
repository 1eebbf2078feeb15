"""The executions and examples of one epoch."""

import pytest

from keras_tpu_ext.callbacks._fit_meter import ExampleCounter, FitMeter

pytestmark = pytest.mark.gate_on("keras3_jax")


def play(hooks, together=False):
    """Return a meter after an epoch of such hooks, and the steps and the seconds of each execution."""
    meter = FitMeter(window=20, warmup=0, batch_size=1, untrusted_per_step=0, began=0.0)
    for name, batch, now in hooks:
        if name == "end":
            meter.ends.append((batch, now))
            continue
        meter.batches.append(batch)
        meter.times.append(now)
        if not together:
            meter.update(lambda: None)
    last = meter.last_batch, meter.last_begin
    meter.end_epoch(meter.last_batch + 1, None)
    times = meter.step_times
    return last, meter.epochs, list(zip(times._steps, times._seconds, strict=True))


def test_an_execution_lasts_until_the_next_begins_and_the_last_until_its_end():
    last, (epoch,), executions = play(
        [("begin", 0, 1), ("end", 0, 2), ("begin", 1, 3), ("end", 1, 5), ("begin", 2, 6), ("end", 2, 9)]
    )
    assert executions == [(1, 2), (1, 3), (1, 3)]
    assert (last, epoch.began, epoch.ended) == ((2, 2), 1, 9)


def test_the_batch_index_jumps_by_steps_per_execution():
    *_, executions = play([("begin", 0, 1), ("end", 2, 2), ("begin", 3, 3), ("end", 5, 5)])
    assert executions == [(3, 2), (3, 2)]


def test_begins_may_be_processed_together():
    hooks = [("begin", 0, 1), ("end", 0, 2), ("begin", 1, 3), ("end", 1, 5), ("begin", 2, 6), ("end", 2, 9)]
    assert play(hooks, together=True) == play(hooks)


def test_a_begin_without_an_end_is_no_execution():
    last, _, executions = play([("begin", 0, 1), ("end", 2, 2), ("begin", 3, 3), ("end", 5, 5), ("begin", 6, 100)])
    assert executions == [(3, 2), (3, 2)]
    assert last == (5, 3)


def test_late_and_disordered_ends_change_nothing():
    *_, executions = play(
        [("begin", 0, 1), ("begin", 1, 3), ("begin", 2, 6), ("end", 2, 9), ("end", 0, 10), ("end", 1, 11)]
    )
    assert executions == [(1, 2), (1, 3), (1, 3)]


def test_an_epoch_without_batches_has_no_executions():
    assert play([]) == ((-1, -1), [], [])
    assert play([("begin", 0, 1)]) == ((-1, -1), [], [])


def test_readings_tell_examples_per_step_and_the_total_is_the_count():
    counter = ExampleCounter(None)
    assert counter.estimate(3) is None
    counter.read(2, 8.0)
    assert (counter.per_step, counter.estimate(5)) == (4.0, 20.0)
    counter.read(4, 20.0)
    assert (counter.per_step, counter.estimate(5)) == (6.0, 26.0)
    assert counter.total(7, 33.0) == 33.0


def test_without_a_reading_the_total_tells_examples_per_step():
    counter = ExampleCounter(None)
    assert counter.total(4, 30.0) == 30.0
    assert counter.per_step == 7.5


@pytest.mark.parametrize(("untrusted_per_step", "count"), [(1, 5.0), (8, 40.0)])
def test_one_example_per_step_and_replica_is_no_count(untrusted_per_step, count):
    counter = ExampleCounter(None, untrusted_per_step)
    counter.read(5, count)
    assert counter.per_step is None
    assert counter.total(5, count) is None
    assert counter.per_step is None


def test_a_count_that_was_set_back_in_the_epoch_gives_no_total():
    counter = ExampleCounter(None)
    counter.read(5, 40.0)
    counter.read(10, 24.0)
    assert counter.per_step == 8.0
    assert counter.estimate(12) is None
    assert counter.total(12, 40.0) is None
    counter.start_epoch()
    assert counter.total(12, 96.0) == 96.0


def test_a_count_that_was_set_back_after_the_last_reading_gives_no_total():
    counter = ExampleCounter(None)
    counter.read(10, 80.0)
    assert counter.total(12, 24.0) is None


@pytest.mark.parametrize(("counted", "total"), [(96.0, 96.0), (89.0, 89.0), (88.0, 88.0), (87.0, None)])
def test_where_batches_have_one_size_only_the_last_may_be_smaller(counted, total):
    counter = ExampleCounter(None)
    counter.read(2, 16.0)
    counter.read(4, 32.0)
    assert counter.total(12, counted) == total
    assert counter.estimate(12) == (None if total is None else 96.0)


def test_where_the_count_has_run_out_of_digits_the_readings_tell():
    counter = ExampleCounter(None)
    counter.read(10, 80.0)
    counter.read(20, None)
    assert counter.total(30, None) == 240.0


@pytest.mark.parametrize(
    ("counted", "total"), [(None, 32.0), (30.0, 30.0), (32.0, 32.0), (4.0, 32.0), (64.0, 32.0), (24.0, 32.0)]
)
def test_a_given_batch_size_is_used_and_the_count_only_for_the_last_batch(counted, total):
    counter = ExampleCounter(8, 1)
    assert counter.estimate(3) == 24
    assert counter.total(4, counted) == total
    assert counter.mismatch == ((counted, 4) if counted in (64.0, 24.0) else None)
