"""The seconds of a step, from begin to begin, and what does not count."""

import pytest

from keras_tpu_ext.callbacks._step_meter import StepMeter


def meter_after(lengths, window=20, steps=1):
    """Return a meter after executions of these seconds, behind the three that an epoch begins with."""
    meter, now = StepMeter(window), 100.0
    for seconds in (5.0, 5.0, *lengths, 0.0):
        meter.begin(now, steps)
        now += seconds
    return meter


def test_the_first_executions_do_not_count():
    meter = meter_after([1.0, 2.0])
    assert meter.executions == 5
    assert meter.of_epoch() == pytest.approx(1.5)
    assert StepMeter(20).of_epoch() is None
    assert StepMeter(20).recent() is None


def test_a_single_pause_among_many_does_not_count():
    assert meter_after([*[1.0] * 9, 30.0]).of_epoch() == pytest.approx(1.0)
    assert meter_after([*[1.0] * 9, 30.0]).recent() == pytest.approx(1.0)
    assert meter_after([*[1.0] * 8, 10.0]).of_epoch() == pytest.approx(2.0)  # of too few


def test_what_comes_again_counts():
    meter = meter_after([1.0, 1.0, 1.0, 11.0] * 5)
    assert meter.of_epoch() == pytest.approx((15 + 4 * 11) / 19)


def test_the_longest_is_the_one_of_the_longest_steps():
    meter, now = StepMeter(20), 0.0
    for seconds, steps in [(1.0, 8)] * 2 + [(8.0, 8)] * 9 + [(6.0, 1), (0.0, 8)]:
        meter.begin(now, steps)
        now += seconds
    assert meter.of_epoch() == pytest.approx(1.0)


def test_the_window_is_of_the_last_executions():
    meter = meter_after([*[9.0] * 20, *[2.0] * 5], window=5)
    assert meter.recent() == pytest.approx(2.0)


def test_a_pause_that_is_told_counts_nothing():
    meter = meter_after([1.0, 1.0])
    meter.pause()
    meter.begin(1000.0, 1)
    assert meter.of_epoch() == pytest.approx(1.0)


def test_what_was_noted_is_worked_off_at_once():
    meter, now = StepMeter(20), 0.0
    for _ in range(14):
        meter.noted.append(now)
        now += 2.0
    assert meter.of_epoch() is None
    meter.work_off(4)
    assert (meter.executions, meter.noted) == (14, [])
    assert meter.of_epoch() == pytest.approx(0.5)
