"""The cases of make_old_keras.py, and what Keras 2.15 gave for them."""

import importlib.util
import json
from pathlib import Path

import numpy as np

REFERENCES = Path(__file__).parent / "references"
FILES = REFERENCES / "old_keras"

_spec = importlib.util.spec_from_file_location("make_old_keras", REFERENCES / "make_old_keras.py")
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)

EXPECTED = json.loads((REFERENCES / "old_keras.json").read_text())


def assert_same(found, expected, rtol=2e-4, where=""):
    """Check numbers to `rtol`, which float32 sums in another order need, and everything else to the letter."""
    if isinstance(expected, dict):
        assert set(expected) <= set(found), where
        for key, value in expected.items():
            assert_same(found[key], value, rtol, f"{where}/{key}")
    elif isinstance(expected, list) and expected and not isinstance(expected[0], (int, float)):
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, rtol, f"{where}/{i}")
    elif isinstance(expected, str):
        assert found == expected, where
    else:
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6, err_msg=where)
