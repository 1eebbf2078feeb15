"""The figures of the callbacks."""

import itertools
import sys

import pytest

from keras_tpu_ext.callbacks import HostBottleneck, InputVerdict
from keras_tpu_ext.callbacks._plots import plot_input, plot_throughput
from keras_tpu_ext.callbacks._rates import EpochThroughput, StepTimePercentiles, ThroughputRecord
from keras_tpu_ext.errors import KteError, MissingExtraError, NothingMeasuredError

pytestmark = pytest.mark.gate_on("keras3_jax")

RECORDS = [
    ThroughputRecord(0, 1, 2.0, 2.0, 16.0),
    ThroughputRecord(0, 2, 3.0, 3.0, 24.0),
    ThroughputRecord(1, 0, 7.0, 4.0, 32.0),
]
EPOCHS = [EpochThroughput(0, 1.0, 3.0, 2.5, 20.0), EpochThroughput(1, 6.0, 7.0, 4.0, 32.0)]


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_samples_are_drawn_over_time_with_median_epochs_and_gaps():
    figure = plot_throughput(RECORDS, EPOCHS, window=20)
    drawn = lines(figure)
    rate = drawn["rolling rate"]
    assert [y for y in rate.get_ydata() if y == y] == [16.0, 24.0, 32.0]
    assert [y for y in rate.get_ydata() if y != y] != []  # broken between epochs
    assert list(drawn["median 32 samples/s"].get_ydata()) == [32.0, 32.0]  # without the first epoch
    assert list(drawn["whole epoch"].get_xdata()) == [1.0, 3.0]
    assert [text.get_text() for text in figure.axes[0].texts] == ["epoch 1", "epoch 2"]
    assert figure.axes[0].get_ylabel() == "samples per second"
    assert figure.axes[0].get_ylim() == (0, pytest.approx(1.15 * 32))
    assert [patch.get_x() for patch in figure.axes[0].patches] == [3.0]


def test_names_of_short_epochs_do_not_lie_upon_each_other():
    began = [0.0, 9.0, 9.2, 9.4, 10.0, 10.4, 12.0]
    epochs = [EpochThroughput(n, at, at + 0.1, 4.0, 32.0) for n, at in enumerate(began)]
    figure = plot_throughput(RECORDS, epochs, window=20)
    figure.draw_without_rendering()
    texts = figure.axes[0].texts
    assert [text.get_text() for text in texts] == ["epoch 1", "epoch 2", "epoch 7"]
    boxes = [text.get_window_extent() for text in texts]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_percentiles_and_an_axis_for_the_device():
    times = StepTimePercentiles(0.0123, 0.02, 1.5)
    figure = plot_throughput(RECORDS, EPOCHS, window=20, step_times=times, second_axis=("MFU in %", 0.5))
    (right,) = figure.axes[0].child_axes
    figure.draw_without_rendering()
    assert right.get_ylabel() == "MFU in %"
    assert right.get_ylim() == (0, pytest.approx(0.5 * 1.15 * 32))
    note = figure.axes[0].get_title(loc="left")
    assert note == "step: median 12.3 ms, p90 20 ms, p99 1,500 ms; rates over 20 executions"


def test_batches_are_drawn_where_samples_are_not_known():
    figure = plot_throughput(
        [record._replace(samples_per_sec=None) for record in RECORDS],
        [epoch._replace(samples_per_sec=None) for epoch in EPOCHS],
        window=20,
    )
    assert "median 4 batches/s" in lines(figure)


def test_an_epoch_with_nothing_measured_has_no_line_of_its_own():
    nothing = EPOCHS[0]._replace(samples_per_sec=float("nan"))
    assert list(lines(plot_throughput(RECORDS, [nothing, EPOCHS[1]], window=20))["whole epoch"].get_xdata()) == [
        6.0,
        7.0,
    ]


def test_many_epochs_keep_few_labels():
    epochs = [EpochThroughput(i, i, i + 0.5, 2.0, 16.0) for i in range(100)]
    assert len(plot_throughput(RECORDS, epochs, window=20).axes[0].texts) <= 8


def test_nothing_to_draw_says_what_to_do():
    with pytest.raises(NothingMeasuredError, match=r"nothing measured yet.*after the warm-up.*model\.fit"):
        plot_throughput([], [], window=20)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install matplotlib") as caught:
        plot_throughput(RECORDS, EPOCHS, window=20)
    assert isinstance(caught.value, KteError)
    assert isinstance(caught.value, ImportError)


WAITS = InputVerdict(0.75, 0.040, 0.010, 0.039)
WELL = InputVerdict(0.0, 0.010, 0.010, None)


def bars(axes):
    return [(patch.get_y(), patch.get_width(), patch.get_height()) for patch in axes.patches]


def test_a_steps_time_is_what_it_computes_and_what_it_waits():
    epochs, rates = plot_input([(0, WAITS), (1, WELL)]).axes
    heights = [height for _, _, height in bars(epochs)]
    assert heights == pytest.approx([10.0, 10.0, 30.0, 0.0])
    assert [bottom for bottom, _, _ in bars(epochs)] == pytest.approx([0.0, 0.0, 10.0, 10.0])
    assert [tick.get_text() for tick in epochs.get_xticklabels()] == ["1", "2"]
    (legend,) = epochs.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["computes", "waits for data"]
    assert rates.get_title(loc="left") == "Better input makes this at most 2.5 times as fast"


def test_the_rates_and_the_title_are_those_of_all_epochs():
    _, rates = plot_input([(0, WELL), (1, WAITS)]).axes
    assert [width for _, width, _ in bars(rates)] == pytest.approx([40.0, 100.0, 1 / 0.039])
    assert [text.get_text() for text in rates.texts] == ["40", "100", "25.64"]
    assert rates.figure.get_suptitle() == (
        "Highly input-bound: 60% of the time waits for data, 0% to 75% in each of 2 epochs"
    )


def test_one_epoch_is_all_of_them():
    figure = plot_input([(0, WELL)])
    assert figure.get_suptitle() == "Not input-bound: 0% of the time waits for data"
    assert figure.axes[1].get_title(loc="left") == "Better input would not help"


def test_a_pipeline_of_which_nothing_is_known_has_no_bar():
    _, rates = plot_input([(3, WELL)]).axes
    assert len(bars(rates)) == 2


def test_many_epochs_keep_few_ticks():
    epochs, _ = plot_input([(i, WAITS) for i in range(100)]).axes
    assert len(epochs.get_xticks()) == 10


def test_no_verdict_to_draw_says_what_to_do():
    with pytest.raises(
        NothingMeasuredError, match=r"nothing measured yet.*more batches in an epoch.*bottleneck\.plot"
    ):
        HostBottleneck().plot()


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"HostBottleneck\.plot\(\) needs matplotlib.*pip install matplotlib"):
        plot_input([(0, WAITS)])
