"""The rule by which the loss scale grows and shrinks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_tpu_ext as kte

pytestmark = pytest.mark.gate_on("keras3_jax")


def where(condition, a, b):
    return a if condition else b


def run(scale, verdicts):
    """Return the scale and the count after each verdict, starting as a new model does."""
    state, states = (scale.initial, 0), []
    for finite in verdicts:
        state = scale.after(*state, finite, where)
        states.append(state)
    return states


def test_the_defaults_are_those_of_keras():
    states = run(kte.LossScale(), [True] * 2000 + [False, True])
    assert states[1998] == (2.0**15, 1999)
    assert states[1999] == (2.0**16, 0)
    assert states[2000] == (2.0**15, 0)
    assert states[2001] == (2.0**15, 1)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_the_scale_halves_at_each_overflow_and_doubles_after_enough_good_steps(verdicts, growth_steps):
    scale = kte.LossScale(initial=2.0**10, growth_steps=growth_steps, maximum=2.0**14)
    expected, good = 2.0**10, 0
    for finite, state in zip(verdicts, run(scale, verdicts), strict=True):
        good = good + 1 if finite else 0
        if not finite:
            expected = max(expected / 2, 1.0)
        elif good == growth_steps:
            expected, good = min(expected * 2, 2.0**14), 0
        assert state == (expected, good)


@given(st.lists(st.booleans(), max_size=30), st.floats(1e-3, 1e6))
def test_a_number_stays(verdicts, number):
    assert {scale for scale, _ in run(kte.LossScale.of(number), verdicts)} <= {number}


def test_what_compile_takes():
    assert kte.LossScale.of(None) is None
    assert kte.LossScale.of("dynamic") == kte.LossScale()
    own = kte.LossScale(initial=4.0)
    assert kte.LossScale.of(own) is own
    assert kte.LossScale.from_config(own.get_config()) == own


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"initial": 0}, "LossScale: `initial` must be a number above 0; got 0"),
        ({"initial": float("inf")}, "LossScale: `initial` must be a number above 0; got inf"),
        ({"growth_steps": 0}, "`growth_steps` must be an integer of at least 1; got 0"),
        ({"growth_steps": True}, "`growth_steps` must be an integer of at least 1; got True"),
        ({"growth_factor": 0.5}, "`growth_factor` must be a number of at least 1; got 0.5"),
        ({"backoff_factor": 2}, "`backoff_factor` must be a number above 0 and at most 1; got 2"),
        ({"minimum": -1}, "`minimum` must be a number above 0; got -1"),
        ({"maximum": 2}, "`maximum` must be at least `initial`"),
    ],
)
def test_a_value_that_cannot_work_is_told(arguments, text):
    with pytest.raises(kte.errors.ArgumentError) as told:
        kte.LossScale(**arguments)
    assert text in str(told.value)
