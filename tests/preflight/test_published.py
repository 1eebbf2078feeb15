"""What was measured on real chips: the corrections, and the range of an estimate."""

import json

import pytest

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.hardware import TPU_GENERATIONS
from keras_tpu_ext.preflight import _published
from keras_tpu_ext.preflight._hlo.timeline import Line

pytestmark = pytest.mark.gate_on("keras3_jax")


def row(kind, generation, measured, corrected):
    estimated = {"": 2 * corrected, "copies": corrected}
    estimated |= {"collectives": 2 * corrected, "copies+collectives": corrected}
    return {"kind": kind, "generation": generation, "measured": measured, "estimated": estimated}


@pytest.fixture
def data(monkeypatch):
    found = {
        "corrections": {"v6e": {"copies": {"latency_s": 1e-6, "efficiency": 0.5}}},
        "rows": [
            row("training step", "v3", 0.9, 1.0),
            row("training step", "v3", 1.2, 1.0),
            row("copy", "v3", 9.0, 1.0),
            row("training step", "v2", 1.1, 1.0),
            row("copy", "v6e", 0.7, 1.0),
            row("matrix product", "v6e", 0.8, 1.0),
        ],
    }
    monkeypatch.setattr(_published, "_data", lambda: found)


@pytest.mark.parametrize(
    ("generation", "found"),
    [
        ("v3", (0.9, 1.2, "2 training steps")),
        ("v2", (1.0, 1.1, "1 training step")),
        ("v6e", (0.7, 1.0, "copy, matrix product")),
        ("v5e", None),
    ],
)
def test_an_estimate_ranges_as_far_as_the_measured_ones_were_off(data, generation, found):
    assert _published.published_for(generation, ("copies", "collectives")) == found


def test_the_range_is_that_of_estimates_with_the_same_corrections(data):
    assert _published.published_for("v3", ())[:2] == (0.45, 1.0)


def test_a_correction_is_made_where_it_was_measured_and_asked_for(data):
    assert _published.corrections_for("v6e", _published.NAMES) == {"copies": Line(1e-6, 0.5)}
    assert _published.corrections_for("v6e", ("collectives",)) == {}
    assert _published.corrections_for("v5e", _published.NAMES) == {}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (True, _published.NAMES),
        (False, ()),
        ([], ()),
        (["collectives", "copies"], _published.NAMES),
        ({"copies"}, ("copies",)),
    ],
)
def test_which_corrections_are_asked_for(asked, names):
    assert _published.wanted_corrections(asked) == names


@pytest.mark.parametrize("asked", ["copies", ["copy"], 1, None])
def test_no_other_corrections(asked):
    message = r'preflight: `corrections` must be True, False, or .*; got .*\. Write corrections=\["copies"\]'
    with pytest.raises(ArgumentError, match=message):
        _published.wanted_corrections(asked)


def test_what_the_package_ships():
    """Every combination of corrections has an estimate in each row, and sources are given."""
    found = json.loads(_published.FILE.read_text())
    keys = {"", "copies", "collectives", "copies+collectives"}
    for one in found["rows"]:
        assert set(one["estimated"]) == keys
        assert one["generation"] in TPU_GENERATIONS
        assert one["source"].startswith("https://")
        assert one["measured"] > 0
    assert sum(one["held_out"] for one in found["rows"]) == 3
    of_v6e = found["corrections"]["v6e"]["copies"]
    assert found["corrections"]["v5e"] == {"copies": {**of_v6e, "measured_on": "v6e"}}
    assert set(of_v6e) == {"latency_s", "efficiency"}
    for lines in found["corrections"].values():
        assert all(0 < line["efficiency"] < 1 and line["latency_s"] >= 0 for line in lines.values())
