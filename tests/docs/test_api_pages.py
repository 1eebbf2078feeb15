"""The API reference has every public name, once."""

import re
from collections import Counter
from pathlib import Path

import pytest

import keras_tpu_ext as kte
from docs.test_docstring_examples import PUBLIC, exported

API = Path(__file__).parents[2] / "docs" / "api"

pytestmark = pytest.mark.gate_on("keras3_jax")


def test_every_public_name_has_one_place():
    text = "\n".join(page.read_text(encoding="utf-8") for page in API.glob("*.md"))
    there = Counter(re.findall(r"auto(?:class|function):: keras_tpu_ext\.([\w.]+)", text))
    wanted = {name for name, value in PUBLIC.items() if value.__module__ != "keras_tpu_ext.errors"}
    assert dict(there) == dict.fromkeys(wanted, 1)


def test_errors_stand_together():
    assert "automodule:: keras_tpu_ext.errors" in (API / "errors.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", [kte, kte.callbacks, kte.data, kte.layers, kte.precision, kte.hardware])
def test_dir_shows_the_public_names_only(module):
    assert set(dir(module)) - {"__version__"} == set(exported(module))
    assert sorted(module.__all__) == dir(module)
