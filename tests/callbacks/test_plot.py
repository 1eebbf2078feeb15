import itertools
import sys

import pytest

from keras_tpu_ext.callbacks._plot import draw
from keras_tpu_ext.callbacks._records import EpochThroughput, ThroughputRecord
from keras_tpu_ext.callbacks._step_times import StepTimePercentiles
from keras_tpu_ext.errors import KteError, MissingExtraError, NothingMeasuredError

RECORDS = [
    ThroughputRecord(0, 1, 2.0, 2.0, 16.0),
    ThroughputRecord(0, 2, 3.0, 3.0, 24.0),
    ThroughputRecord(1, 0, 7.0, 4.0, 32.0),
]
EPOCHS = [EpochThroughput(0, 1.0, 3.0, 2.5, 20.0), EpochThroughput(1, 6.0, 7.0, 4.0, 32.0)]


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_samples_are_drawn_over_time_with_median_epochs_and_gaps():
    figure = draw(RECORDS, EPOCHS, window=20)
    drawn = lines(figure)
    rate = drawn["rolling rate"]
    assert [y for y in rate.get_ydata() if y == y] == [16.0, 24.0, 32.0]
    assert [y for y in rate.get_ydata() if y != y] != []  # broken between epochs
    assert list(drawn["median 24 samples/s"].get_ydata()) == [24.0, 24.0]
    assert list(drawn["whole epoch"].get_xdata()) == [1.0, 3.0]
    assert [text.get_text() for text in figure.axes[0].texts] == ["epoch 1", "epoch 2"]
    assert figure.axes[0].get_ylabel() == "samples per second"
    assert figure.axes[0].get_ylim() == (0, pytest.approx(1.15 * 32))
    assert [patch.get_x() for patch in figure.axes[0].patches] == [3.0]


def test_names_of_short_epochs_do_not_lie_upon_each_other():
    began = [0.0, 9.0, 9.2, 9.4, 10.0, 10.4, 12.0]
    epochs = [EpochThroughput(n, at, at + 0.1, 4.0, 32.0) for n, at in enumerate(began)]
    figure = draw(RECORDS, epochs, window=20)
    figure.draw_without_rendering()
    texts = figure.axes[0].texts
    assert [text.get_text() for text in texts] == ["epoch 1", "epoch 2", "epoch 7"]
    boxes = [text.get_window_extent() for text in texts]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_percentiles_and_an_axis_for_the_device():
    times = StepTimePercentiles(0.0123, 0.02, 1.5)
    figure = draw(RECORDS, EPOCHS, window=20, step_times=times, second_axis=("MFU in %", 0.5))
    (right,) = figure.axes[0].child_axes
    figure.draw_without_rendering()
    assert right.get_ylabel() == "MFU in %"
    assert right.get_ylim() == (0, pytest.approx(0.5 * 1.15 * 32))
    note = figure.axes[0].get_title(loc="right")
    assert note == "rolling over 20 executions\nstep: median 12.3 ms, p90 20 ms, p99 1,500 ms"


def test_batches_are_drawn_where_samples_are_not_known():
    figure = draw(
        [record._replace(samples_per_sec=None) for record in RECORDS],
        [epoch._replace(samples_per_sec=None) for epoch in EPOCHS],
        window=20,
    )
    assert "median 3 batches/s" in lines(figure)


def test_an_epoch_with_nothing_measured_has_no_line_of_its_own():
    nothing = EPOCHS[0]._replace(samples_per_sec=float("nan"))
    assert list(lines(draw(RECORDS, [nothing, EPOCHS[1]], window=20))["whole epoch"].get_xdata()) == [
        6.0,
        7.0,
    ]


def test_many_epochs_keep_few_labels():
    epochs = [EpochThroughput(i, i, i + 0.5, 2.0, 16.0) for i in range(100)]
    assert len(draw(RECORDS, epochs, window=20).axes[0].texts) <= 8


def test_nothing_to_draw_says_what_to_do():
    with pytest.raises(NothingMeasuredError, match=r"no rate to draw yet.*after the warm-up.*model\.fit"):
        draw([], [], window=20)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'keras-tpu-ext\[plots\]'") as caught:
        draw(RECORDS, EPOCHS, window=20)
    assert isinstance(caught.value, KteError)
    assert isinstance(caught.value, ImportError)
