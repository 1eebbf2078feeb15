"""A probe of executions whose clock only the test moves, and the average of a step."""

import pytest

from keras_tpu_ext._runtime.common.executions import Stage
from keras_tpu_ext.callbacks._input_probe import InputProbe, StepMeter, probe_length
from probed_loop import Fit

pytestmark = pytest.mark.gate_on("keras3_jax")


def probed(fit, count=4):
    probe = InputProbe(count, fit.clock)
    while not probe.done:
        probe.run(fit.execution())
    return probe


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize(("host", "compute"), [(0.25, 1.0), (1.0, 1.0), (4.0, 1.0)])
def test_both_times_of_a_step_and_that_of_the_pipeline_are_found(steps, host, compute):
    fit = Fit(host, compute, steps=steps)
    probe = probed(fit)
    found = probe.result
    assert found.step_seconds == pytest.approx(host + compute)
    assert found.compute_seconds == pytest.approx(compute)
    assert found.pipeline_seconds == pytest.approx(host)
    assert found.cost_seconds == pytest.approx(0)  # it would have waited for these batches anyway
    assert found.stages == (Stage("Map", 0.5),)


def test_what_it_costs_is_the_time_for_batches_that_nothing_would_have_waited_for():
    fit = Fit(2.0, 3.0, ready=7)  # five executions as they come, then two of those taken ahead
    assert probed(fit).result.cost_seconds == pytest.approx(3 * 2.0)


def test_every_batch_is_trained_on_once_and_in_its_order():
    fit = Fit(1.0, 1.0, steps=2)
    probed(fit)
    assert fit.trained == list(range(probe_length(4) * 2))


def test_of_a_pipeline_whose_batches_are_in_a_buffer_its_time_is_not_known():
    assert probed(Fit(1.0, 1.0, ready=100)).result.pipeline_seconds is None


def test_batches_of_a_buffer_do_not_count_for_the_time_of_the_pipeline():
    # Five executions as they come, then two or three that are in the buffer, then the others are made.
    assert probed(Fit(2.0, 1.0, ready=7)).result.pipeline_seconds == pytest.approx(2.0)
    assert probed(Fit(2.0, 1.0, ready=8)).result.pipeline_seconds == pytest.approx(2.0)


def test_a_pipeline_that_gives_nothing_ahead_is_left_alone():
    fit = Fit(1.0, 1.0, gives_ahead=False)
    probe = probed(fit)
    assert probe.refused
    assert probe.result is None
    assert fit.trained == list(range(6))


@pytest.mark.parametrize("batches", [3, 5])
def test_data_that_end_before_batches_are_taken_end_the_probe(batches):
    fit = Fit(1.0, 1.0, batches=batches)
    probe = InputProbe(4, fit.clock)
    for _ in range(batches):
        probe.run(fit.execution())
    assert not probe.done
    with pytest.raises(StopIteration):
        probe.run(fit.execution())
    assert probe.done
    assert probe.result is None
    assert fit.trained == list(range(batches))


def test_data_that_end_while_batches_are_taken_are_trained_on_all():
    fit = Fit(3.0, 1.0, batches=15, steps=2)
    probe = InputProbe(4, fit.clock)
    while not probe.done:
        probe.run(fit.execution())
    with pytest.raises(StopIteration):
        fit.execution().run()
    assert fit.trained == list(range(15))
    assert probe.result.compute_seconds == pytest.approx(1.0)  # the last execution has one step


def test_what_something_else_came_between_is_not_believed():
    fit = Fit(1.0, 1.0)
    probe = InputProbe(4, fit.clock)
    probe.run(fit.execution())
    probe.invalidate()
    while not probe.done:
        probe.run(fit.execution())
    assert probe.result is None
    assert fit.trained == list(range(10))


def test_the_devices_are_waited_for_at_both_ends_of_what_is_timed_and_nowhere_else():
    fit = Fit(1.0, 1.0)
    probed(fit)
    assert fit.waited_for == [0, 4, 5, 9]


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
    assert meter.epoch_average() == pytest.approx(1.5)
    assert StepMeter(20).epoch_average() is None
    assert StepMeter(20).rolling_average() is None


def test_a_single_pause_among_many_does_not_count():
    assert meter_after([*[1.0] * 9, 30.0]).epoch_average() == pytest.approx(1.0)
    assert meter_after([*[1.0] * 9, 30.0]).rolling_average() == pytest.approx(1.0)
    assert meter_after([*[1.0] * 8, 10.0]).epoch_average() == pytest.approx(2.0)  # of too few


def test_what_comes_again_counts():
    meter = meter_after([1.0, 1.0, 1.0, 11.0] * 5)
    assert meter.epoch_average() == pytest.approx((15 + 4 * 11) / 19)


def test_the_longest_is_the_one_of_the_longest_steps():
    meter, now = StepMeter(20), 0.0
    for seconds, steps in [(1.0, 8)] * 2 + [(8.0, 8)] * 9 + [(6.0, 1), (0.0, 8)]:
        meter.begin(now, steps)
        now += seconds
    assert meter.epoch_average() == pytest.approx(1.0)


def test_the_window_is_of_the_last_executions():
    meter = meter_after([*[9.0] * 20, *[2.0] * 5], window=5)
    assert meter.rolling_average() == pytest.approx(2.0)


def test_a_pause_that_is_told_counts_nothing():
    meter = meter_after([1.0, 1.0])
    meter.pause(0.0, 1)
    meter.begin(1000.0, 1)
    assert meter.epoch_average() == pytest.approx(1.0)
