"""The rates and step times of a `fit`."""

import itertools

import numpy as np
import pytest

from keras_tpu_ext.callbacks import _fit_meter
from keras_tpu_ext.callbacks._rates import StepTimes

pytestmark = pytest.mark.gate_on("keras3_jax")


def times_of(*executions):
    times = StepTimes()
    times.add([steps for steps, _ in executions], [seconds for _, seconds in executions])
    return times


def test_no_rate_before_time_has_passed():
    assert times_of().rate() is None
    assert times_of((1, 0.0)).rate() is None


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_rate_is_steps_over_seconds_of_the_last_executions(size):
    executions = [(1, 0.5), (3, 1.0), (3, 0.75), (2, 4.0), (3, 1.25)]
    times = times_of(*executions)
    last = executions[-size:]
    assert times.rate(-size) == pytest.approx(sum(s for s, _ in last) / sum(t for _, t in last))
    assert times.totals() == (12, 7.5)
    assert times.totals(3) == (5, 5.25)


def of(*executions):
    return times_of(*executions).percentiles()


def test_steps_of_one_length_have_it_exactly():
    assert of((1, 0.123), (1, 0.123)) == (0.123, 0.123, 0.123)


def test_they_are_those_of_numpy():
    seconds = np.random.default_rng(0).lognormal(mean=-5, size=10_000)
    expected = np.percentile(seconds, [50, 90, 99], method="inverted_cdf")
    assert of(*[(1, second) for second in seconds]) == pytest.approx(expected)


def test_an_execution_counts_as_its_steps_of_equal_length():
    assert of((8, 0.8), (2, 2.0)) == pytest.approx((0.1, 1.0, 1.0))
    assert of((91, 9.1), (9, 9.0)).p90 == pytest.approx(0.1)
    assert of((98, 9.8), (2, 2.0)).p99 == pytest.approx(1.0)


def test_a_clock_that_stands_still_and_no_step_at_all():
    assert of((1, 0.0)) == (0.0, 0.0, 0.0)
    assert of() is None


def test_those_of_one_epoch():
    times = times_of((9, 0.9), (91, 91.0))
    assert times.percentiles(1) == pytest.approx((1.0, 1.0, 1.0))
    assert times.percentiles(2) is None


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 17, 1000])
def test_records_stay_below_the_limit_and_evenly_apart(count, monkeypatch):
    monkeypatch.setattr(_fit_meter, "_MAX_RECORDS", 8)
    meter = _fit_meter.FitMeter(window=20, warmup=0, batch_size=8, untrusted_per_step=0, began=0.0)
    for batch in range(count + 2):  # of which the last two may have no end
        meter.batches.append(batch)
        meter.times.append(float(batch))
        meter.update(lambda: None)
    batches = [record.batch for record in meter.records]
    assert len(batches) <= 8
    assert batches[:1] == list(range(count))[:1]
    gaps = {after - before for before, after in itertools.pairwise(batches)}
    assert len(gaps) <= 1
    assert count > 8 or batches == list(range(count))
    assert count <= 8 or len(batches) > 4 or count - batches[-1] <= max(gaps)
