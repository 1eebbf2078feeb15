import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tpu_ext._runtime.training.execution_schedule import LONGEST, SHORTEST, StepsTuner, steps_that_fit

pytestmark = pytest.mark.gate_on("keras3_jax")


def settle(seconds_of, executions=40):
    """Run executions whose length in seconds is a function of their steps."""
    tuner = StepsTuner()
    tried = []
    for _ in range(executions):
        tried.append(tuner.steps)
        tuner.note(tuner.steps, seconds_of(tuner.steps))
    return tuner, tried


@given(st.floats(1e-6, 0.6), st.floats(0.0, 0.1))
def test_an_execution_takes_the_time_aimed_at(per_step, fixed):
    tuner, _ = settle(lambda steps: fixed + steps * per_step)
    assert tuner.settled
    assert SHORTEST <= fixed + tuner.steps * per_step <= LONGEST


def test_a_slow_step_stays_alone():
    tuner, tried = settle(lambda steps: 3.0 * steps)
    assert tuner.settled
    assert set(tried) == {1}


def test_it_grows_by_no_more_than_eight_times():
    _, tried = settle(lambda steps: 1e-4 * steps)
    assert max(b / a for a, b in itertools.pairwise(tried)) == 8


def test_one_slow_execution_on_the_way_does_not_settle_it():
    tuner = StepsTuner()
    tuner.note(1, 0.5)  # a step that was slow once
    assert not tuner.settled
    tuner.note(1, 0.001)
    assert tuner.steps == 8


@given(st.floats(1e-6, 0.5), st.integers(1, 2**20))
def test_steps_of_a_known_time_take_up_to_half_a_second(per_step, most):
    steps = steps_that_fit(per_step, most)
    assert steps == most or 0.25 < steps * per_step <= 0.5


def test_steps_of_which_nothing_is_known_are_those_that_are_tried_first():
    assert [steps_that_fit(None, most) for most in (2**20, 8, 5, 1)] == [8, 8, 5, 1]
    assert steps_that_fit(3.0, 100) == 1


def test_it_comes_down_again():
    tuner = StepsTuner()
    for seconds in (0.001, 0.01, 40.0):
        tuner.note(tuner.steps, seconds)
    assert tuner.steps == 1


@pytest.mark.parametrize("seconds", [0.0, 1e-12])
def test_a_clock_that_stands_still_is_no_error(seconds):
    tuner, _ = settle(lambda steps: seconds)
    assert tuner.steps == 2**20


def test_a_shorter_last_execution_teaches_nothing():
    tuner = StepsTuner()
    tuner.note(1, 0.001)
    tuner.note(3, 0.001)
    assert tuner.steps == 8


def test_it_settles_where_an_execution_has_all_of_an_epoch():
    tuner = StepsTuner()
    for steps in (1, 8, 64, 9, 73):  # an epoch of 82 steps, and one of 73 in one execution
        tuner.note(steps, 1e-4 * steps)
    assert tuner.steps == 512
    assert tuner.settled
    tuner.note(512, 1e-2)
    assert tuner.steps == 512


def test_epochs_that_end_early_between_whole_executions_settle_nothing():
    tuner = StepsTuner()
    for steps, seconds in ((1, 0.001), (3, 0.001), (8, 0.001), (2, 0.001), (64, 0.001)):
        tuner.note(steps, seconds)
    assert not tuner.settled
