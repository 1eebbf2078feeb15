import sys

import pytest

from keras_tpu_ext.callbacks import HostBottleneck, InputVerdict
from keras_tpu_ext.callbacks._input_plot import draw_input
from keras_tpu_ext.errors import MissingExtraError, NothingMeasuredError

WAITS = InputVerdict(0.75, 0.040, 0.010, 0.039)
WELL = InputVerdict(0.0, 0.010, 0.010, None)


def bars(axes):
    return [(patch.get_y(), patch.get_width(), patch.get_height()) for patch in axes.patches]


def test_a_steps_time_is_what_it_computes_and_what_it_waits():
    epochs, rates = draw_input([(0, WAITS), (1, WELL)]).axes
    heights = [height for _, _, height in bars(epochs)]
    assert heights == pytest.approx([10.0, 10.0, 30.0, 0.0])
    assert [bottom for bottom, _, _ in bars(epochs)] == pytest.approx([0.0, 0.0, 10.0, 10.0])
    assert [tick.get_text() for tick in epochs.get_xticklabels()] == ["1", "2"]
    assert [text.get_text() for text in epochs.get_legend().get_texts()] == ["computes", "waits for data"]
    assert rates.get_title(loc="left") == "better input: at most 1 times as fast"


def test_the_rates_are_those_of_the_last_epoch():
    _, rates = draw_input([(0, WELL), (1, WAITS)]).axes
    assert [width for _, width, _ in bars(rates)] == pytest.approx([25.0, 100.0, 1 / 0.039])
    assert [text.get_text() for text in rates.texts] == ["25", "100", "25.64"]
    assert rates.figure._suptitle.get_text() == "highly input-bound: 75% of the time waits for data"


def test_a_pipeline_of_which_nothing_is_known_has_no_bar():
    _, rates = draw_input([(3, WELL)]).axes
    assert len(bars(rates)) == 2


def test_many_epochs_keep_few_names():
    epochs, _ = draw_input([(i, WAITS) for i in range(100)]).axes
    assert len(epochs.get_xticks()) == 10


def test_nothing_to_draw_says_what_to_do():
    with pytest.raises(
        NothingMeasuredError, match=r"nothing to draw yet.*more batches in an epoch.*bottleneck\.plot"
    ):
        HostBottleneck().plot()


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"HostBottleneck\.plot\(\) needs matplotlib.*keras-tpu-ext\[plots\]"):
        draw_input([(0, WAITS)])
