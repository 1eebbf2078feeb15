"""The picture of a report: its bars are the figures of the report."""

import sys

import pytest

from keras_tpu_ext.errors import MissingExtraError, NothingMeasuredError
from keras_tpu_ext.preflight.results import Fault, LayerTime, MemoryUse
from preflight.reports import GIB, report

pytestmark = pytest.mark.gate_on("keras3_jax")


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_layers_are_bars_of_both_passes_the_dearest_on_top():
    times, _ = report().plot().axes
    forward, backward = times.containers
    assert [bar.get_width() for bar in forward] == pytest.approx([1.0, 3.0, 1.5])
    assert [bar.get_width() for bar in backward] == pytest.approx([0.0, 0.0, 4.5])
    assert [bar.get_x() for bar in backward] == pytest.approx([1.0, 3.0, 1.5])
    assert [tick.get_text() for tick in times.get_yticklabels()] == ["(optimizer)", "dense", "conv1"]
    assert legend(times) == ["forward", "backward"]
    assert times.get_title() == "Time by layer"
    assert times.get_xlabel() == "ms of a step, as the compiler estimates it"


def test_memory_is_stacked_below_what_is_there():
    _, memory = report().plot().axes
    assert [(bar.get_y(), bar.get_height()) for bar in memory.patches] == [(0, 1), (1, 3)]
    (there,) = memory.get_lines()
    assert list(there.get_ydata()) == [16, 16]
    assert memory.get_ylim() == (0, pytest.approx(1.15 * 16))
    assert memory.get_title() == "GiB of HBM a chip"
    assert legend(memory) == ["weights, state, batch", "temporaries"]


def test_memory_that_does_not_fit_is_in_the_picture_too():
    _, memory = report(chips=4, memory=MemoryUse(32 * GIB, 16 * GIB, 1 * GIB, 31 * GIB)).plot().axes
    assert memory.get_ylim() == (0, pytest.approx(1.15 * 32))
    assert memory.get_title() == "GiB of HBM a core"


def test_many_layers_are_cut_off_and_that_is_said():
    layers = tuple(LayerTime(f"l{i}", 0.1 - i / 1000, 0.0, 0.0, 1, 0.0) for i in range(40))
    times, _ = report(layers=layers).plot().axes
    assert [tick.get_text() for tick in times.get_yticklabels()] == [f"l{i}" for i in reversed(range(15))]
    assert times.get_title() == "The 15 dearest layers of 40"


def test_the_picture_says_what_it_is_of_and_is_written_where_it_is_wanted(tmp_path):
    figure = report().plot(tmp_path / "preflight.png")
    assert figure.get_suptitle() == str(report()).splitlines()[0]
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
