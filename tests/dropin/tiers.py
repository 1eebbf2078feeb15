"""Which cases of many the gate runs."""

import pytest


def mostly_exhaustive(names, gate):
    """Return all names as parameters, of which the gate runs these only."""
    assert set(gate) <= set(names), "the gate's cases are among all"
    return [name if name in gate else pytest.param(name, marks=pytest.mark.exhaustive) for name in names]
