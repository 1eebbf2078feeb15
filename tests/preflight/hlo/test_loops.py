"""How often a loop runs, by the instructions that count."""

import pytest

from keras_tpu_ext.preflight._hlo.loops import trip_count
from keras_tpu_ext.preflight._hlo.module import Module

pytestmark = pytest.mark.gate_on("keras3_jax")

STATE = "(f32[8]{0}, s32[])"
TO_TEN = f"""\
%condition (c: (f32[8], s32[])) -> pred[] {{
  %c = {STATE} parameter(0)
  %i = s32[] get-tuple-element(%c), index=1
  %limit = s32[] constant(10)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}}

%body (b: (f32[8], s32[])) -> (f32[8], s32[]) {{
  %b = {STATE} parameter(0)
  %x = f32[8]{{0}} get-tuple-element(%b), index=0
  %j = s32[] get-tuple-element(%b), index=1
  %step = s32[] constant(1)
  %next = s32[] add(%j, %step)
  ROOT %after = {STATE} tuple(%x, %next)
}}

ENTRY %main (p: f32[8], q: s32[]) -> (f32[8], s32[]) {{
  %p = f32[8]{{0}} parameter(0)
  %q = s32[] parameter(1)
  %zero = s32[] constant(0)
  %first = s32[] copy(%zero)
  %before = {STATE} tuple(%p, %first)
  ROOT %loop = {STATE} while(%before), condition=%condition, body=%body
}}
"""


def trips(changes):
    """Return the trip count of the loop to ten with other text in some places."""
    text = TO_TEN
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    module = Module.parse(text)
    return trip_count(module.entry.by_name["loop"], module.entry, module)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 10),
        ({"copy(%zero)": "constant(4)"}, 6),
        ({"constant(0)": "constant(-5)"}, 15),
        ({"constant(1)": "constant(2)"}, 5),
        ({"constant(1)": "constant(3)"}, 4),
        ({"constant(1)": "constant(4)", "constant(0)": "constant(1)"}, 3),
        ({"add(%j, %step)": "add(%step, %j)"}, 10),
        ({"constant(0)": "constant(10)"}, 0),
        ({"constant(0)": "constant(12)"}, 0),
        (
            {
                "%less = pred[] compare(%i, %limit)": "%less = pred[] compare(%k, %limit)",
                "%limit = ": "%k = s32[] bitcast(%i)\n  %limit = ",
            },
            10,
        ),
    ],
)
def test_a_loop_counts_by_a_constant_up_to_another(changes, count):
    assert trips(changes) == count


def test_what_the_compiler_states_is_the_count_whatever_is_in_it():
    stated = {"body=%body": 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'}
    assert trips(stated) == 7
    assert trips(stated | {"direction=LT": "direction=NE"}) == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"tuple(%p, %first)": "tuple(%p, %q)"},
        {"tuple(%p, %first)": "parameter(2)"},
        {"direction=LT": "direction=LE"},
        {"direction=LT": "direction=GT"},
        {"compare(%i, %limit)": "compare(%limit, %i)"},
        {"compare(%i, %limit), direction=LT": "fusion(%i, %limit), kind=kLoop, calls=%fused"},
        {"constant(10)": "get-tuple-element(%c), index=0"},
        {"constant(10)": "constant(10.5)"},
        {"%limit)": "%elsewhere)"},
        {"add(%j, %step)": "subtract(%j, %step)"},
        {"add(%j, %step)": "add(%j, %j)"},
        {"add(%j, %step)": "add(%x, %step)"},
        {"tuple(%x, %next)": "tuple(%next, %x)"},
        {"tuple(%x, %next)": "fusion(%x, %next), kind=kLoop, calls=%fused"},
        {"constant(1)": "constant(0)"},
        {"constant(1)": "constant(-1)"},
        {"constant(1)": "parameter(1)"},
    ],
    ids=str,
)
def test_of_any_other_loop_nobody_knows(changes):
    assert trips(changes) is None
