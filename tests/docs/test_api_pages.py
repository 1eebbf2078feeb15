"""The API reference has every public name, once."""

import re
from collections import Counter
from pathlib import Path

import pytest

from docs.test_docstring_examples import PUBLIC

API = Path(__file__).parents[2] / "docs" / "api"

pytestmark = pytest.mark.gate_on("keras3_jax")


def test_every_public_name_has_one_place():
    text = "\n".join(page.read_text(encoding="utf-8") for page in API.glob("*.md"))
    there = Counter(re.findall(r"auto(?:class|function):: keras_tpu_ext\.([\w.]+)", text))
    wanted = {name for name, value in PUBLIC.items() if value.__module__ != "keras_tpu_ext.errors"}
    assert dict(there) == dict.fromkeys(wanted, 1)


def test_errors_stand_together():
    assert "automodule:: keras_tpu_ext.errors" in (API / "errors.md").read_text(encoding="utf-8")
