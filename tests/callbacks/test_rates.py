"""The rates and step times of a `fit`, in bounded memory."""

import numpy as np
import pytest

from keras_tpu_ext.callbacks._rates import DecimatedList, RateWindow, StepTimes

pytestmark = pytest.mark.gate_on("keras3_jax")


def test_no_rate_before_time_has_passed():
    window = RateWindow(3)
    assert window.rate() is None
    window.add([(1, 0.0)])
    assert window.rate() is None


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_rate_is_steps_over_seconds_of_the_last_executions(size):
    executions = [(1, 0.5), (3, 1.0), (3, 0.75), (2, 4.0), (3, 1.25)]
    window = RateWindow(size)
    for count, execution in enumerate(executions, start=1):
        window.add([execution])
        last = executions[:count][-size:]
        assert window.rate() == pytest.approx(sum(s for s, _ in last) / sum(t for _, t in last))
    assert (window.steps, window.seconds) == (12, 7.5)


def test_executions_may_come_together():
    one_by_one, together = RateWindow(2), RateWindow(2)
    executions = [(1, 0.5), (3, 1.0), (3, 0.75)]
    for execution in executions:
        one_by_one.add([execution])
    together.add(executions)
    assert vars(together) == vars(one_by_one)


def of(*executions):
    times = StepTimes()
    for steps, seconds in executions:
        times.add([(steps, seconds)])
    return times.percentiles()


def test_steps_of_one_length_have_it_exactly():
    assert of((1, 0.123), (1, 0.123)) == (0.123, 0.123, 0.123)


def test_they_are_those_of_numpy_to_half_a_per_cent():
    seconds = np.random.default_rng(0).lognormal(mean=-5, size=10_000)
    expected = np.percentile(seconds, [50, 90, 99], method="inverted_cdf")
    assert of(*[(1, second) for second in seconds]) == pytest.approx(expected, rel=0.0051)


def test_an_execution_counts_as_its_steps_of_equal_length():
    assert of((8, 0.8), (2, 2.0)) == pytest.approx((0.1, 1.0, 1.0), rel=0.0051)
    assert of((91, 9.1), (9, 9.0)).p90 == pytest.approx(0.1, rel=0.0051)
    assert of((98, 9.8), (2, 2.0)).p99 == pytest.approx(1.0, rel=0.0051)


def test_a_clock_that_stands_still_and_no_step_at_all():
    assert of((1, 0.0)) == (0.0, 0.0, 0.0)
    assert of() is None


def test_those_of_two_together():
    first, second = StepTimes(), StepTimes()
    first.add([(9, 0.9)])
    second.add([(91, 91.0)])
    assert (first + second).percentiles() == pytest.approx((1.0, 1.0, 1.0), rel=0.0051)
    assert first.percentiles() == pytest.approx((0.1, 0.1, 0.1))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 17, 1000])
def test_items_stay_below_the_limit_and_evenly_apart(count):
    kept = DecimatedList(8)
    for item in range(count):
        kept.append(item)
    assert len(kept.items) <= 8
    assert kept.items[:1] == list(range(count))[:1]
    gaps = {after - before for before, after in zip(kept.items, kept.items[1:], strict=False)}
    assert len(gaps) <= 1
    assert count <= 8 or len(kept.items) > 4 or count - kept.items[-1] <= max(gaps)


def test_all_is_kept_below_the_limit():
    kept = DecimatedList(8)
    for item in range(8):
        kept.append(item)
    assert kept.items == list(range(8))
