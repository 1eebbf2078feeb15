import numpy as np
import pytest

from keras_tpu_ext.callbacks._step_times import StepTimes


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
