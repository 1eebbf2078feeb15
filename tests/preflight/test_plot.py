"""The picture of a report: its bars are the figures of the report."""

import inspect
import sys

import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import MissingExtraError, NothingMeasuredError
from keras_tpu_ext.preflight.results import Fault, LayerTime, MemoryUse
from preflight.reports import GIB, MEMORY, report

pytestmark = pytest.mark.gate_on("keras3_jax")

PLOTTED = [name for name, one in vars(kte.callbacks).items() if hasattr(one, "plot")]


def legend(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def notes(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("kind", [kte.PreflightReport, *(vars(kte.callbacks)[name] for name in PLOTTED)])
def test_plot_is_typed(kind):
    assert (
        inspect.signature(kind.plot).return_annotation == "Figure"
    )  # of matplotlib, which is imported for types only


def test_layers_are_bars_of_both_passes_the_slowest_on_top():
    figure = report().plot()
    times, _ = figure.axes
    forward, backward = times.containers
    assert [bar.get_width() for bar in forward] == pytest.approx([1.0, 3.0, 1.5])
    assert [bar.get_width() for bar in backward] == pytest.approx([0.0, 0.0, 4.5])
    assert [bar.get_x() for bar in backward] == pytest.approx([1.0, 3.0, 1.5])
    assert [tick.get_text() for tick in times.get_yticklabels()] == ["(optimizer)", "dense", "conv1"]
    assert legend(figure) == ["forward", "backward"]
    assert times.get_title(loc="left") == "Time by layer"
    assert times.get_xlabel() == "ms of a step, as the compiler estimates it"


def test_memory_is_stacked_below_what_is_there():
    _, memory = report().plot().axes
    assert [(bar.get_y(), bar.get_height()) for bar in memory.patches] == [(0, 1), (1, 3)]
    (there,) = memory.get_lines()
    assert list(there.get_ydata()) == [16, 16]
    assert memory.get_ylim() == (0, pytest.approx(1.15 * 16))
    assert memory.get_title(loc="left") == "GiB of HBM\na chip"
    # The first is too low for its name.
    assert notes(memory) == ["temporaries", "available HBM"]


def test_memory_that_does_not_fit_is_in_the_picture_too():
    _, memory = report(chips=4, memory=MemoryUse(32 * GIB, 16 * GIB, 1 * GIB, 31 * GIB)).plot().axes
    assert memory.get_ylim() == (0, pytest.approx(1.15 * 32))
    assert memory.get_title(loc="left") == "GiB of HBM\na core"


def test_what_does_not_fit_is_drawn_with_the_buffers_of_a_batch_that_does():
    memory = MemoryUse(51 * GIB, 16 * GIB, buffers=MEMORY.buffers, buffers_batch=152)
    figure = report(time=None, layers=(), memory=memory).plot()
    buffers, use = figure.axes
    forward, backward = buffers.containers
    assert [bar.get_width() for bar in forward] == pytest.approx([0, 0.5])
    assert [bar.get_width() for bar in backward] == pytest.approx([1010 / 1024, 0])
    assert buffers.get_title(loc="left") == (
        "The largest buffers at peak memory, at a batch of 152 a replica, which fits"
    )
    assert notes(use) == ["needed", "available HBM"]
    assert legend(figure) == ["forward", "backward"]


def test_what_does_not_fit_is_drawn_without_buffers_too():
    figure = report(time=None, layers=(), memory=MemoryUse(51 * GIB, 16 * GIB)).plot()
    assert notes(figure.axes[1]) == ["needed", "available HBM"]
    assert not figure.legends


def test_many_layers_are_cut_off_and_that_is_said():
    layers = tuple(LayerTime(f"l{i}", 0.1 - i / 1000, 0.0, 0.0, 1, 0.0) for i in range(40))
    times, _ = report(layers=layers).plot().axes
    assert [tick.get_text() for tick in times.get_yticklabels()] == [f"l{i}" for i in reversed(range(15))]
    assert times.get_title(loc="left") == "The 15 slowest of 40 layers"


def test_the_picture_says_what_it_is_of_and_is_written_where_it_is_wanted(tmp_path):
    figure = report().plot(tmp_path / "preflight.png")
    assert figure.get_suptitle().replace("\n", " ") == str(report()).splitlines()[0]
    assert (tmp_path / "preflight.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"time": None, "memory": None, "fault": Fault("so")}, "does not compile"),
        ({"time": None, "memory": MemoryUse(None, GIB)}, "does NOT FIT into memory"),
        ({"memory": MemoryUse(None, GIB)}, "does NOT FIT into memory"),
    ],
)
def test_nothing_to_draw_says_why(changes, why, tmp_path):
    with pytest.raises(
        NothingMeasuredError, match=rf"nothing to draw: 'resnet50' on v5e-8.*{why}\. Print the report"
    ):
        report(**changes).plot(tmp_path / "preflight.png")
    assert not (tmp_path / "preflight.png").exists()


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = r"PreflightReport\.plot\(\) needs matplotlib.*pip install matplotlib"
    with pytest.raises(MissingExtraError, match=message):
        report().plot()
