"""The one promise, over the product of what can be combined: N replicas take the steps of one device.

`KTE_PARITY_SEED=7 pytest tests/parity/test_parity_suite.py` draws other cases, `KTE_PARITY_CASES=1000` more of them,
and `KTE_PARITY_PART=1/2` runs the first of every two.
"""

import os

import pytest

import keras_tpu_ext as kte
from parity import check
from parity.cases import DIMENSIONS, FOUND, NUMBER_OF_CASES, SEED, Case, all_pairs, pairs_of, sample, why_not

CASES, IMPOSSIBLE = sample()
PART, PARTS = map(int, os.environ.get("KTE_PARITY_PART", "1/1").split("/"))


def named(number, case):
    return pytest.param(case, id=f"seed {SEED}, {number}: {case}")


NAMED = [named(number, case) for number, case in enumerate([*FOUND, *CASES])]


@pytest.mark.parametrize("case", NAMED[PART - 1 :: PARTS])
def test_replicas_take_the_steps_of_one_device(case):
    print(f"KTE_PARITY_SEED={SEED}: {case!r}")
    start, expected = check.reference(case)
    got = check.ours(case, kte.strategy_scope(require="cpu", replicas=case.replicas), start)
    assert not check.differences(expected, got, start)


def test_every_two_values_meet_that_can():
    assert len(set(CASES)) == len(CASES) >= NUMBER_OF_CASES
    met = set().union(*map(pairs_of, CASES))
    assert not all_pairs().keys() - met - set(IMPOSSIBLE)
    assert not any(why_not(case) for case in CASES)


def test_the_values_that_cannot_meet_are_these():
    cannot = {(u, v) for (_, u), (_, v) in IMPOSSIBLE}
    has_no_timesteps, has_one_output = {"dense", "list", "dict"}, {"dense", "words"}
    assert cannot == {
        ("dict of words", "none"),  # unreduced losses of other shapes
        *((extras, "none") for extras in DIMENSIONS["extras"] if extras not in ("no extras", "own compute_loss")),
        *((model, "per timestep") for model in has_no_timesteps),
        *((model, "per output") for model in has_one_output),
        *((model, "per class") for model in DIMENSIONS["model"] if model != "dense"),
        *((loss, "per class") for loss in DIMENSIONS["loss"] if loss != "crossentropy"),
        *((loss, "overflow") for loss in DIMENSIONS["loss"] if loss != "mse"),
        ("per class", "overflow"),
        ("per class", "padded"),
        ("add_loss", "padded"),
        ("unscaled", "overflow"),
    }


def test_a_case_is_told_by_what_is_not_plain():
    assert str(Case(weights="per class", steps_per_execution=4)) == (
        "dense, mse, sum_over_batch_size, per class, 96 by 32, SGD, spe 4, graph, 8 replicas"
    )
