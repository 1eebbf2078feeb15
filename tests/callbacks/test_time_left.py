"""How long a fit still takes."""

import pytest

from keras_tpu_ext.callbacks.live_view import TimeLeft

pytestmark = pytest.mark.gate_on("keras3_jax")


def epoch(left, now, number, *, first, step, steps, other):
    """Run an epoch whose first step takes `first` seconds; return the end of it."""
    left.begin_epoch(number, now)
    now += first
    left.after_steps(now, 1)
    now += step * (steps - 1)
    left.end_steps(now, steps)
    return now + other


def test_nothing_is_known_before_two_steps():
    left = TimeLeft(epochs=2, steps=10)
    left.begin_epoch(0, 0.0)
    assert left.seconds(0.0) is None
    left.after_steps(60.0, 1)  # it compiled
    assert left.seconds(60.0) is None
    left.after_steps(64.0, 3)
    assert left.seconds(64.0) == pytest.approx(7 * 2.0 + 10 * 2.0)
    assert left.other is None


def test_validation_and_the_begin_of_an_epoch_count_once_they_are_known():
    left = TimeLeft(epochs=4, steps=10)
    now = epoch(left, 100.0, 0, first=60.0, step=2.0, steps=10, other=5.0)
    left.begin_epoch(1, now)
    assert left.seconds(now) == pytest.approx(3 * (20.0 + 5.0))  # not the 60 s that it compiled
    now = epoch(left, now, 1, first=7.0, step=2.0, steps=10, other=5.0)
    left.begin_epoch(2, now)
    assert left.seconds(now) == pytest.approx(2 * (20.0 + 10.0))  # 5 s before the first step, and 5 s after the last


def test_during_validation_its_rest_is_left():
    left = TimeLeft(epochs=3, steps=10)
    now = epoch(left, 0.0, 0, first=2.0, step=2.0, steps=10, other=8.0)
    now = epoch(left, now, 1, first=0.0, step=2.0, steps=10, other=3.0)
    assert left.seconds(now) == pytest.approx(20.0 + 8.0 + 5.0)
    assert left.seconds(now + 60.0) == pytest.approx(20.0 + 8.0)


def test_the_number_of_steps_may_come_with_the_first_epoch():
    left = TimeLeft(epochs=2, steps=None)
    left.begin_epoch(0, 0.0)
    left.after_steps(1.0, 1)
    left.after_steps(2.0, 2)
    assert left.seconds(2.0) is None
    left.end_steps(10.0, 10)
    assert left.seconds(10.0) == pytest.approx(10.0)


def test_an_epoch_that_is_resumed_in_its_middle():
    left = TimeLeft(epochs=3, steps=100)
    left.begin_epoch(1, 50.0)
    left.after_steps(60.0, 91)
    left.after_steps(62.0, 95)
    assert left.seconds(62.0) == pytest.approx(0.5 * 5 + 0.5 * 100)


def test_the_pace_of_this_epoch_counts():
    left = TimeLeft(epochs=2, steps=10)
    now = epoch(left, 0.0, 0, first=1.0, step=1.0, steps=10, other=0.0)
    left.begin_epoch(1, now)
    left.after_steps(now, 1)
    left.after_steps(now + 12.0, 4)
    assert left.seconds(now + 12.0) == pytest.approx(6 * 4.0)
