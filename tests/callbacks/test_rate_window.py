import pytest

from keras_tpu_ext.callbacks._rate_window import RateWindow


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
