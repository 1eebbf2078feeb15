"""When the stored outputs of a notebook are old; `make docs` asks of those in examples/."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate_on("keras3_jax")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def notebooks():
    return runpy.run_path(str(ROOT / ".ci" / "notebooks.py"))


@pytest.fixture
def notebook(notebooks):
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["throughput/samples_per_sec 12\n"]},
        {"output_type": "display_data", "data": {"image/png": "", "text/plain": ["<Figure>"]}},
    ]
    made = {"metadata": {}, "cells": [{"cell_type": "code", "source": ["fit()"], "outputs": outputs}]}
    made["metadata"]["keras_tpu_ext"] = notebooks["made_with"](made)
    return made


def test_outputs_that_were_just_made_are_not_old(notebooks, notebook):
    assert not notebooks["why_old"](notebook)
    assert "throughput/samples_per_sec" in notebook["metadata"]["keras_tpu_ext"]["words"]


def test_a_change_of_the_code_is_seen(notebooks, notebook):
    notebook["cells"][0]["source"] = ["fit(epochs=2)"]
    assert notebooks["why_old"](notebook) == "its code has changed since it was run"


def test_a_key_that_the_package_no_longer_has_is_seen(notebooks, notebook):
    notebook["metadata"]["keras_tpu_ext"]["words"].append("throughput/of_before")
    reason = notebooks["why_old"](notebook)
    assert reason == "it shows 'throughput/of_before', which the package no longer says"


def test_another_way_of_drawing_is_seen(notebooks, notebook):
    notebook["metadata"]["keras_tpu_ext"]["draws"] = "0"
    assert notebooks["why_old"](notebook) == "what draws its pictures has changed"


def test_a_notebook_without_a_stamp_is_told(notebooks, notebook):
    del notebook["metadata"]["keras_tpu_ext"]
    assert notebooks["why_old"](notebook) == "its outputs have not been stamped"


def test_docstrings_are_no_words(notebooks):
    assert not any("Args:" in word for word in notebooks["package_words"]())
