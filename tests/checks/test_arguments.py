"""The checks of arguments and the text of their errors."""

import math
import pathlib
import time

import numpy as np
import pytest

from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError

pytestmark = pytest.mark.gate_on("keras3_jax")


@pytest.mark.parametrize("value", [1, 20, np.int64(3)])
def test_integers_come_back_as_int(value):
    found = check.integer("fit", "epochs", value, example=5)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.25)])
def test_numbers_come_back_as_float(value):
    found = check.number("fit", "rate", value, above=0, maximum=1, example=0.5)
    assert found == value
    assert type(found) is float


def test_none_is_optional():
    assert check.optional(check.integer, "fit", "epochs", None, example=5) is None
    assert check.optional(check.integer, "fit", "epochs", 3, example=5) == 3


def test_the_home_of_the_user_is_in_paths_and_not_in_urls(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    given = ("~/x", pathlib.Path("~/x"), b"~/x", "a/~/x", "gs://bucket/~", "x")
    assert list(map(check.path, given)) == [*["/home/me/x"] * 3, "a/~/x", "gs://bucket/~", "x"]


def test_choices_and_functions_come_back():
    assert check.one_of("fit", "mode", "min", ("min", None)) == "min"
    assert check.one_of("fit", "mode", None, ("min", None)) is None
    assert check.function("fit", "clock", time.sleep, what="seconds", example="time.time") is time.sleep


CASES = [
    (check.integer, 0, {"example": 5}, "an integer of at least 1; got 0. Write x=5."),
    (check.integer, True, {"example": 5}, "an integer of at least 1; got True. Write x=5."),
    (check.integer, 2.0, {"minimum": 0, "maximum": 9, "example": 5}, "an integer from 0 to 9; got 2.0. Write x=5."),
    (check.integer, "8", {"what": '"auto" or an integer', "example": '"auto"'}, None),
    (check.number, math.nan, {"above": 0, "example": 5}, "a number above 0; got nan. Write x=5."),
    (check.number, math.inf, {"minimum": 1, "example": 5}, "a number of at least 1; got inf. Write x=5."),
    (check.number, 1.5, {"minimum": 0, "maximum": 1, "example": 0.5}, "a number from 0 to 1; got 1.5. Write x=0.5."),
    (check.number, 0, {"above": 0, "maximum": 1, "example": 1}, "a number above 0 and at most 1; got 0. Write x=1."),
    (check.number, 10**400, {"example": 5}, f"a number; got {10**400}. Write x=5."),
    (check.number, "1", {"example": 5}, "a number; got '1'. Write x=5."),
    (check.one_of, "cuda", {"choices": (None, "tpu", "cpu")}, 'None, "tpu" or "cpu"; got \'cuda\'. Write x="tpu".'),
    (check.one_of, 1, {"choices": (True, "all")}, 'True or "all"; got 1. Write x="all".'),
    (check.function, 3, {"what": "seconds", "example": "f"}, "a function that returns seconds; got 3. Write x=f."),
]


@pytest.mark.parametrize(("checked", "value", "options", "text"), CASES)
def test_errors_say_what_was_needed_what_came_and_what_to_write(checked, value, options, text):
    text = text or '"auto" or an integer of at least 1; got \'8\'. Write x="auto".'
    with pytest.raises(ArgumentError) as caught:
        checked("fit", "x", value, **options)
    assert str(caught.value) == f"fit: `x` must be {text}"
