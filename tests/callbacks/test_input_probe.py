"""A probe of executions whose clock only the test moves."""

import pytest

from keras_tpu_ext._runtime.common.executions import Stage
from keras_tpu_ext.callbacks._input_probe import InputProbe, ProbeSchedule
from probed_loop import Fit

pytestmark = pytest.mark.gate_on("keras3_jax")


def begun(fit, count=4, waited=0.0):
    return InputProbe(count, fit.clock, waited)


def probed(fit, count=4, waited=0.0):
    probe = begun(fit, count, waited)
    while not probe.done:
        probe.run(fit.execution())
    return probe


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize(("host", "compute"), [(0.25, 1.0), (1.0, 1.0), (4.0, 1.0)])
def test_both_times_of_a_step_and_that_of_the_pipeline_are_found(steps, host, compute):
    fit = Fit(host, compute, steps=steps)
    found = probed(fit, waited=host).result
    assert found.compute_seconds == pytest.approx(compute)
    assert found.pipeline_seconds == pytest.approx(host)
    assert found.cost_seconds == pytest.approx(0)  # it would have waited for these batches anyway
    assert found.stages == (Stage("Map", 0.5),)


def test_what_it_costs_is_the_time_for_batches_that_nothing_would_have_waited_for():
    assert probed(Fit(2.0, 3.0, ready=2)).result.cost_seconds == pytest.approx(3 * 2.0)
    assert probed(Fit(2.0, 3.0, ready=2), waited=0.5).result.cost_seconds == pytest.approx(3 * 2.0 - 5 * 0.5)


def test_every_batch_is_trained_on_once_and_in_its_order():
    fit = Fit(1.0, 1.0, steps=2)
    probed(fit)
    assert fit.trained == list(range(5 * 2))


def test_of_a_pipeline_whose_batches_are_in_a_buffer_its_time_is_not_known():
    assert probed(Fit(1.0, 1.0, ready=100)).result.pipeline_seconds is None


def test_batches_of_a_buffer_do_not_count_for_the_time_of_the_pipeline():
    # Two or three are in the buffer, then the others are made.
    assert probed(Fit(2.0, 1.0, ready=2)).result.pipeline_seconds == pytest.approx(2.0)
    assert probed(Fit(2.0, 1.0, ready=3)).result.pipeline_seconds == pytest.approx(2.0)


def test_a_pipeline_that_gives_nothing_ahead_is_left_alone():
    fit = Fit(1.0, 1.0, gives_ahead=False)
    probe = probed(fit)
    assert probe.refused
    assert probe.result is None
    assert fit.trained == [0]


def test_data_that_have_ended_end_the_probe():
    fit = Fit(1.0, 1.0, batches=0, gives_ahead=False)
    probe = begun(fit)
    with pytest.raises(StopIteration):
        probe.run(fit.execution())
    assert probe.done
    assert probe.result is None


def test_data_that_end_while_batches_are_taken_are_trained_on_all():
    fit = Fit(3.0, 1.0, batches=5, steps=2)
    probe = begun(fit)
    while not probe.done:
        probe.run(fit.execution())
    with pytest.raises(StopIteration):
        fit.execution().run()
    assert fit.trained == list(range(5))
    assert probe.result.compute_seconds == pytest.approx(1.0)  # the last execution has one step


def test_what_taking_batches_takes_is_noted():
    fit = Fit(2.0, 1.0)
    noted = []
    probe = InputProbe(4, fit.clock, 0.0)
    while not probe.done:
        probe.run(fit.execution())
        noted.append(probe.read_seconds)
        fit.now += 0.5  # the hooks of callbacks, which do not count for a step
    assert noted == [pytest.approx(10.0), 0.0, 0.0, 0.0, 0.0]
    assert probe.result.compute_seconds == pytest.approx(1.0)


def test_the_devices_are_waited_for_at_both_ends_of_what_is_timed_and_nowhere_else():
    fit = Fit(1.0, 1.0)
    probed(fit)
    assert fit.waited_for == [0, 4]


def schedule(steps, fit):
    return ProbeSchedule(fit.clock, steps)


def begins(schedule, fit, executions, step_seconds=1.0):
    """Return at which executions of an epoch a probe begins."""
    schedule.begin_epoch(executions if schedule.found else 0)
    found = []
    for i in range(executions):
        if not schedule.may_begin:
            break
        probe = schedule.next(fit.execution(), step_seconds, 0.0)
        fit.now += step_seconds
        if probe is not None:
            found.append(i)
            while not probe.done:
                probe.run(fit.execution())
            schedule.end(probe)
    return found


def test_a_probe_begins_after_the_warm_up_once_in_a_fit_of_short_epochs():
    fit = Fit(0.0, 1.0, batches=1000)
    one = schedule(30, fit)
    assert [begins(one, fit, 30) for _ in range(3)] == [[2], [], []]
    assert len(one.found) == 1


def test_long_epochs_have_a_probe_each():
    fit = Fit(0.0, 1.0, batches=5000)
    one = schedule(600, fit)
    assert [begins(one, fit, 600) for _ in range(3)] == [[2], [2], [2]]


@pytest.mark.parametrize(("batches", "expected"), [(5, []), (6, [2])])
def test_an_epoch_must_have_room_for_it(batches, expected):
    fit = Fit(0.0, 1.0, batches=1000)
    one = schedule(batches, fit)
    assert begins(one, fit, batches) == expected
    assert one.needed == 6


def test_an_epoch_has_no_probe_if_the_last_one_cost_too_much():
    fit = Fit(5.0, 1.0, batches=5000)  # four batches, 20 s, in an epoch of 600 s
    one = schedule(600, fit)
    assert [begins(one, fit, 600) for _ in range(3)] == [[2], [], []]
    assert one.found[0].cost_seconds == pytest.approx(4 * 5.0)


def test_a_pipeline_that_refuses_is_not_asked_again():
    fit = Fit(0.0, 1.0, batches=5000, gives_ahead=False)
    one = schedule(600, fit)
    assert [begins(one, fit, 600) for _ in range(2)] == [[2], []]
    assert one.refused
