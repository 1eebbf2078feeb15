"""The one promise, over the product of what can be combined: N replicas take the steps of one device."""

import itertools

import pytest

import keras_tpu_ext as kte
from parity import check
from parity.cases import DIMENSIONS, NUMBER_OF_CASES, SEED, all_pairs, pairs_of, sample, why_not

CASES, IMPOSSIBLE = sample()


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{i}: {case}") for i, case in enumerate(CASES)])
def test_replicas_take_the_steps_of_one_device(case):
    print(f"KTE_PARITY_SEED={SEED}: {case!r}")
    _, start, expected = check.reference(case)
    got = check.ours(case, kte.strategy_scope(require="cpu", replicas=case.replicas), start)
    check.compare(expected, got, start)
